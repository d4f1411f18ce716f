//! Markdown of the reference as parts of a manual page. It knows what these pages have: headings, paragraphs, lists,
//! tables of words and meanings, code and links.

use vellum::help::without_marks;

/// What follows the page's title, with `heading` for headings of the second level.
pub(super) fn sections(page: &str, heading: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in page.lines().skip_while(|line| !line.starts_with("# ")).skip(1) {
        let (before, line) = match line.split_once(' ') {
            Some(("##", title)) if heading == ".SH" => (format!("{heading} {}\n", title.to_uppercase()), ""),
            Some(("##", title)) => (format!("{heading} {title}\n"), ""),
            Some(("###", title)) => (format!(".SS {title}\n"), ""),
            Some(("-", item)) => (".IP \\(bu 2\n".to_owned(), item),
            Some(("|", cells)) => match cells.trim_end_matches(" |").split_once(" | ") {
                // The head of a table, and the line below.
                Some(("option" | "argument" | "variable" | "status" | "---", _)) | None => continue,
                Some((word, meaning)) => (format!(".TP\n{}\n", inline(word)), meaning),
            },
            _ if line.is_empty() || inside => (String::new(), line),
            _ => (".PP\n".to_owned(), line),
        };
        inside = !line.is_empty();
        text += &before;
        if inside {
            text += &format!("{}\n", inline(line));
        }
    }
    text
}

/// A line of text, with code in bold.
fn inline(markdown: &str) -> String {
    let parts = markdown.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.replace('\\', "").to_owned(),
        _ => format!("\u{1}{}\u{2}", part.replace("\\|", "|").replace('\\', "\\e").replace('-', "\\-")),
    });
    let text = without_marks(&parts.collect::<String>()).replace('\u{1}', "\\fB").replace('\u{2}', "\\fR");
    // Words that would be requests.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
