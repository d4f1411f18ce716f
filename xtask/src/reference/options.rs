//! The page of mount options, from their table.

use super::row;
use vellum::options::table::{SECTIONS, SILENT};

const INTRODUCTION: &str = "\
# Mount options

Options follow `-o`, separated by commas, as in fstab. A later option replaces an earlier one.
An unknown option is refused by its name.

In values, a backslash makes the next character part of the value. Commas and backslashes need one, and colons between layers.
A value in double quotes may hold commas. Relative paths start at the working directory.
`SIZE` and `RATE` take the suffixes k, m, g.
";

pub(super) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in SECTIONS {
        page += &format!("\n## {}\n\n| option | meaning |\n| --- | --- |\n", section.title);
        page.extend(section.rows.iter().map(|option| row(option.syntax, option.meaning)));
        if !section.text.is_empty() {
            page += &format!("\n{}\n", section.text);
        }
    }
    page += "\nThe following options belong to other programs, or name a behaviour that Vellum has anyway. ";
    page += "So do all options that begin with `x-` or `X-`.\n\n";
    for (whose, names) in SILENT {
        let names: Vec<String> = names.split(' ').map(|name| format!("`{name}`")).collect();
        page += &format!("- {whose}: {}.\n", names.join(", "));
    }
    page
}
