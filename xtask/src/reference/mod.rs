//! The reference for users, made of the program's own definitions: the pages of options and commands, and the manual.
//!
//! The manual is a frame around these pages and that of the environment, which is written by hand.

mod commands;
mod options;
mod roff;

use std::path::Path;

/// A page written by hand that the manual contains.
pub(crate) const ENVIRONMENT: &str = "docs/src/reference/environment.md";
const FRAME: &str = include_str!("manual.roff");

/// The files, each with its text. `environment` is the text of [`ENVIRONMENT`].
pub(crate) fn files(environment: &str) -> [(&'static str, String); 3] {
    let (options, commands) = (options::page(), commands::page());
    let manual = FRAME
        .replace("{commands}\n", &roff::sections(&commands, ".SS"))
        .replace("{options}\n", &roff::sections(&options, ".SS"))
        .replace("{environment}\n", &roff::sections(environment, ".SH"));
    [
        ("docs/src/reference/options.md", options),
        ("docs/src/reference/commands.md", commands),
        ("docs/man/vellum.8", manual),
    ]
}

/// Writes the files of the tree at `root`.
pub(crate) fn write(root: &Path) -> std::io::Result<()> {
    let environment = std::fs::read_to_string(root.join(ENVIRONMENT))?;
    files(&environment).iter().try_for_each(|(path, text)| std::fs::write(root.join(path), text))
}

/// A row of a table: what is written, and what it means.
fn row(code: &str, meaning: &str) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    format!("| `{}` | {} |\n", cell(code), cell(meaning))
}
