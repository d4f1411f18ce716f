//! What `--help` and `--version` print for a mount program.

use crate::cli::Cli;
use crate::options::table::SECTIONS;
use clap::CommandFactory;

const USAGE: &str = "\
usage: vellum -o lowerdir=DIR[:DIR...][,upperdir=DIR,workdir=DIR][,OPTION...] MOUNTPOINT
       vellum SOURCE MOUNTPOINT -o OPTIONS
       vellum COMMAND ...                       (vellum COMMAND --help)
";
const WIDTH: usize = 110;

/// The usage, for callers that give no subcommand: a line or two for each command and option.
#[must_use]
pub fn text() -> String {
    let mut text = format!("{USAGE}\nCommands:\n");
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        entry(&mut text, 13, command.get_name(), first_sentence(&about));
    }
    for section in SECTIONS {
        text += &format!("\n{}:\n", section.title);
        for row in section.rows {
            let default =
                row.meaning.split_once("Default: ").map(|(_, default)| default.trim_end_matches('.'));
            let default = default.map(|default| format!(" (default: {default})")).unwrap_or_default();
            let meaning = format!("{}{default}", first_sentence(row.meaning));
            entry(&mut text, 25, row.syntax, &meaning);
        }
    }
    text + "\nvellum(8) says more, and which options of other programs are accepted without effect.\n"
}

/// Without a full stop.
fn first_sentence(text: &str) -> &str {
    text.split(". ").next().unwrap_or(text).trim_end_matches('.')
}

/// A word and its meaning, which begins `indent` columns to the right.
fn entry(text: &mut String, indent: usize, word: &str, meaning: &str) {
    let mut line = format!("  {word:indent$}");
    let pad = " ".repeat(indent + 2);
    if word.len() >= indent {
        *text += &format!("{}\n", line.trim_end());
        line.clone_from(&pad);
    }
    for word in without_marks(meaning).split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            *text += &format!("{line}\n");
            line = format!("{pad}{word}");
        } else {
            line += if line.ends_with(' ') { "" } else { " " };
            line += word;
        }
    }
    *text += &format!("{line}\n");
}

/// Markdown as plain text: no code, and of links their words.
#[must_use]
pub fn without_marks(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        match link.split_once("](").and_then(|(words, after)| Some((words, after.split_once(')')?.1))) {
            Some((words, after)) if !words.contains(['[', ']']) => {
                text += words;
                rest = after;
            }
            _ => {
                text.push('[');
                rest = link;
            }
        }
    }
    (text + rest).replace('`', "")
}

/// The version as mount programs print it: callers show the lines as they are.
#[must_use]
pub fn version() -> String {
    format!("vellum: version {}\n", env!("CARGO_PKG_VERSION"))
}
