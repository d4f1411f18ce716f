//! The `vellum` command: its option model, subcommands and messages. The program is a thin `main` over this.
#![forbid(unsafe_code)]

pub mod options;
