//! The page of commands, from the definitions that the program parses its command line with.

use super::row;
use clap::{Arg, ArgAction, Command, CommandFactory};

const INTRODUCTION: &str = "\
# Commands

`vellum COMMAND --help` prints the same. Commands with `--json` print JSON for programs.

Without a command, `vellum` is a mount program: `vellum -o OPTIONS MOUNTPOINT`, or `vellum SOURCE MOUNTPOINT -o OPTIONS`.
";
/// More arguments than this are shown once.
const MANY: usize = 10;
const SAME: &str = "\nThe arguments are those of the command before.\n";
/// Commands that have a page in the guide.
const GUIDES: &[(&str, &str)] = &[
    ("vellum mount", "profiles"),
    ("vellum flatten", "blocks"),
    ("vellum weight", "cache"),
    ("vellum pool", "pools"),
    ("vellum metrics", "metrics"),
    ("vellum balance", "balance"),
    ("vellum run", "run"),
    ("vellum checkpoint", "checkpoints"),
    ("vellum zoned", "zoned"),
];

pub(super) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut program = vellum::cli::Cli::command();
    program.build();
    program.get_subcommands().for_each(|command| section(&mut page, "vellum", command, "##"));
    page
}

fn section(page: &mut String, parent: &str, command: &Command, heading: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    let usage = command.clone().render_usage().to_string().replace(['<', '>'], "");
    *page += &format!("\n{heading} {name}\n\n`{}`\n", usage.trim_start_matches("Usage: "));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    *page += &format!("\n{}.\n", about.unwrap_or_default().trim_end_matches('.'));
    if let Some((_, guide)) = GUIDES.iter().find(|(of, _)| *of == name) {
        *page += &format!("\nThe book has a page about it: [{guide}](../guide/{guide}.md).\n");
    }
    let shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let rows: String = command.get_arguments().filter(shown).map(argument).collect();
    if !rows.is_empty() && !command.has_subcommands() {
        let table = format!("\n| argument | meaning |\n| --- | --- |\n{rows}");
        *page += if page.contains(&table) && rows.lines().count() > MANY { SAME } else { &table };
    }
    command.get_subcommands().for_each(|one| section(page, &name, one, "###"));
}

fn argument(arg: &Arg) -> String {
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
    let value = value.map(|names| names.join(" ")).unwrap_or_default();
    let values = arg.get_possible_values();
    let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
    let is_choice = !names.is_empty() && arg.get_action().takes_values();
    let value = if is_choice { names.join("|") } else { value };
    let switches: Vec<String> = arg
        .get_short()
        .map(|short| format!("-{short}"))
        .into_iter()
        .chain(arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let mut syntax = switches.join(", ");
    match (syntax.is_empty(), value.is_empty()) {
        (true, _) => syntax = value,
        (_, true) => {}
        _ if arg.is_require_equals_set() => syntax += &format!("[={value}]"),
        _ => syntax += &format!(" {value}"),
    }
    if matches!(arg.get_action(), ArgAction::Append) {
        syntax += "...";
    }
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    // As `--help` says it.
    let help = match help.split_once(" [default: ") {
        Some((help, default)) => {
            format!("{}. Default: {}.", help.trim_end_matches('.'), default.trim_end_matches(['.', ']']))
        }
        None => format!("{}.", help.trim_end_matches('.')),
    };
    let explained = values.iter().filter(|_| is_choice).filter_map(|one| {
        let help = one.get_help()?.to_string();
        Some(format!(" `{}`: {}.", one.get_name(), help.trim_end_matches('.')))
    });
    let default = arg
        .get_default_values()
        .first()
        .filter(|_| arg.get_action().takes_values() && !arg.is_hide_default_value_set());
    let default = default.map(|value| format!(" Default: `{}`.", value.display())).unwrap_or_default();
    row(&syntax, &format!("{help}{}{default}", explained.collect::<String>()))
}
