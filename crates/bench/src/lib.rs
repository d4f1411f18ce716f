//! Workloads, and comparisons of Vellum with other filesystems in one run
