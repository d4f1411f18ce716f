//! The filesystem service: one process that serves a mounted tree
