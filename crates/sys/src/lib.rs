//! Every system call that Vellum uses, behind a trait with a fault-injecting twin
