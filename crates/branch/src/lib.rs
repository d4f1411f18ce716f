//! Branches, the storage under a union: local directories, and memory for tests and models
