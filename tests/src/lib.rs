//! Integration tests of Vellum through real mounts
