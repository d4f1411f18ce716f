//! The commands of a page, and what they print.
//!
//! A block of the kind `console` below a line `<!-- run -->` is run; `<!-- run A B -->` needs the programs A and B. A
//! line that begins with `$ ` or `# ` is a command, and the lines below it are its output. There `…` stands for any
//! text, and alone in a line for any lines.

use std::fmt::Write;

const ANY: &str = "…";
/// A line that no command prints.
const MARK: &str = "@@ step";

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Its line, from 1.
    pub(super) line: usize,
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// What a page has to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) needs: Vec<String>,
    pub(super) steps: Vec<Step>,
}

/// The marked blocks of a page, in their order.
pub(super) fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut marked = false;
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        if let Some(needs) = line.strip_prefix("<!-- run").and_then(|rest| rest.strip_suffix("-->")) {
            page.needs.extend(needs.split_whitespace().map(str::to_owned));
            marked = true;
        } else if line.starts_with("```") {
            inside = !inside && marked && line == "```console";
            marked &= inside;
        } else if let (true, Some(command)) = (inside, command) {
            page.steps.push(Step { line: at + 1, command: command.to_owned(), output: Vec::new() });
        } else if let (true, Some(step)) = (inside, page.steps.last_mut()) {
            step.output.push(line.to_owned());
        }
    }
    page
}

/// What bash is given: all commands in one shell, with a mark and the exit status after each one's output.
pub(super) fn script(page: &Page) -> String {
    let mut text = String::from("exec 2>&1\n");
    for step in &page.steps {
        let _ = write!(text, "{}\nprintf '\\n{MARK} %d\\n' $?\n", step.command);
    }
    text
}

/// Compares what was printed with the page; the first difference.
pub(super) fn compare(page: &Page, printed: &str) -> Result<(), String> {
    let mut rest = printed;
    for Step { line, command, output } in &page.steps {
        let Some((own, after)) = rest.split_once(&format!("\n{MARK} ")) else {
            return Err(format!("line {line}, {command}: it did not end; {rest}"));
        };
        let (status, after) = after.split_once('\n').unwrap_or((after, ""));
        let lines: Vec<&str> = own.trim_end_matches('\n').split('\n').filter(|_| !own.is_empty()).collect();
        let wanted: Vec<&str> = output.iter().map(String::as_str).collect();
        // A command may fail where the page shows how.
        if !fits(&wanted, &lines) || output.is_empty() && status != "0" {
            return Err(format!(
                "line {line}, {command}: it printed {lines:?}, exit status {status}, and not {wanted:?}"
            ));
        }
        rest = after;
    }
    Ok(())
}

fn fits(wanted: &[&str], lines: &[&str]) -> bool {
    match wanted.split_first() {
        None => lines.is_empty(),
        Some((first, after)) if *first == ANY => {
            (0..=lines.len()).any(|skipped| fits(after, &lines[skipped..]))
        }
        Some((first, after)) => {
            lines.split_first().is_some_and(|(line, others)| is_like(first, line) && fits(after, others))
        }
    }
}

/// Whether a line is the one of the page, with any text in the place of each `…`.
fn is_like(wanted: &str, line: &str) -> bool {
    let Some((begin, after)) = wanted.split_once(ANY) else { return wanted == line };
    let Some(rest) = line.strip_prefix(begin) else { return false };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|at| is_like(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "```console\n$ not this\n```\n<!-- run -->\n\n```console\n$ one\n# two\nout … end\n…\n```\n\ntext\n<!-- run sh env -->\n```sh\nnot this\n```\n";

    #[test]
    fn marked_blocks_are_read() {
        let page = read(TEXT);
        let step = |line, command: &str, output: &[&str]| Step {
            line,
            command: command.into(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(page.steps, [step(7, "one", &[]), step(8, "two", &["out … end", "…"])]);
        assert_eq!(page.needs, ["sh", "env"]);
        assert!(script(&page).contains("one\nprintf"));
    }

    #[test]
    fn outputs_are_compared() {
        let page = read(TEXT);
        let of = |one: &str, two: &str, status: u8| format!("{one}\n@@ step {status}\n{two}\n@@ step 1\n");
        for good in ["out at the end\n", "out  end\nmore\nand more\n"] {
            assert_eq!(compare(&page, &of("", good, 0)), Ok(()), "{good}");
        }
        for bad in ["", "out\n", "an out at the end\n", "out at the ends\n"] {
            assert!(compare(&page, &of("", bad, 0)).is_err(), "{bad}");
        }
        assert!(compare(&page, &of("", "out end\n", 1)).is_err());
        assert!(compare(&page, &of("said\n", "out  end\n", 0)).is_err());
        assert!(compare(&page, "\n@@ step 0\n").is_err());
    }
}
