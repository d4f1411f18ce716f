//! No path of somebody's machine: what is written here has to be true everywhere.

use super::finding::Finding;
use super::sources::Source;

/// What begins a path of a machine, and what to use instead.
const EVERYWHERE: &[(&str, &str)] = &[
    ("/work/main", "a path relative to the source tree"),
    ("/work/shared", "a document of this tree"),
    ("/work/.library", "a document of this tree"),
    ("/root/.", "the user's home directory"),
    ("/opt/peers", "PATH or an option"),
    ("../shared", "a document of this tree"),
    // Programs that run as nobody make it.
    ("/nonexistent", "a path in a temporary directory"),
];

/// Paths that must not be in what users get: code of the crates, and documents. Tests may well name such places in a container.
const FOR_USERS: &[(&str, &str)] = &[
    ("/work/", "a path relative to the source tree"),
    ("/root/", "the user's home directory"),
    ("/home/", "the user's home directory"),
    ("/tmp/", "a directory for temporary files that is asked for (std::env::temp_dir, mktemp -d)"),
];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    // These lists themselves, and what tests them.
    if source.path == "xtask/src/tidy/paths.rs" || source.path.ends_with("Cargo.lock") {
        return;
    }
    let for_users = if is_for_users(&source.path) { FOR_USERS } else { &[] };
    for (number, line) in source.text.lines().enumerate() {
        // The first that fits says enough about a line.
        if let Some((path, instead)) =
            EVERYWHERE.iter().chain(for_users).find(|(path, _)| begins_in(line, path))
        {
            let message = format!("`{path}` is of somebody's machine; use {instead}");
            findings.push(Finding::new(&source.path, number + 1, "machine-path", message));
        }
    }
}

fn is_for_users(path: &str) -> bool {
    (path.starts_with("crates/") && path.contains("/src/")) || path.ends_with(".md")
}

/// Whether `path` stands in `line` and begins there, instead of going on from something before.
fn begins_in(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        // `$ROOT/tmp/x`, `{dir}/work/x`, `"$dir"/work/x` and `lower/work/x` are relative to something.
        !before.is_some_and(|c| c.is_alphanumeric() || "_-./}$*])\"'".contains(c) && !opens(line, at))
    })
}

/// Whether the quote before `at` opens a string: there is an even number of its kind before it.
fn opens(line: &str, at: usize) -> bool {
    let before = line.get(..at).unwrap_or_default();
    match before.chars().next_back() {
        Some(quote @ ('"' | '\'')) => before.matches(quote).count() % 2 == 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut findings = Vec::new();
        check(&Source::new("README.md", text), &mut findings);
        findings.len()
    }

    #[test]
    fn paths_of_machines() {
        for bad in [
            "see /work/main/x",
            "let x = \"/tmp/x\";",
            "cd '/root/x'",
            "`../shared/design`",
            "PATH=/opt/peers/bin",
            "lowerdir=/tmp/a:b",
            "(/home/me/x)",
            "Path::new(\"/nonexistent\")",
        ] {
            assert_eq!(count(bad), 1, "{bad}");
        }
    }

    #[test]
    fn tests_may_name_places_in_a_container_but_not_this_machine() {
        let count = |path: &str, text: &str| {
            let mut findings = Vec::new();
            check(&Source::new(path, text), &mut findings);
            findings.len()
        };
        assert_eq!(count("tests/engines/x.sh", "touch /tmp/x /root/x /home/user"), 0);
        assert_eq!(count("tests/engines/x.sh", "ls /work/main"), 1);
        assert_eq!(count("crates/x/tests/x.rs", "\"/tmp/x\""), 0);
        assert_eq!(count("crates/x/src/x.rs", "\"/tmp/x\""), 1);
    }

    #[test]
    fn allowed_paths_pass() {
        for good in [
            "lowerdir=/lower,upperdir=/upper,workdir=/work",
            "{top}/work/x",
            "$root/tmp/x",
            "\"$root\"/tmp/x",
            "target/tmp/x",
            "/var/tmp/x",
            "the /tmp directory, /root",
            "std::env::temp_dir()",
        ] {
            assert_eq!(count(good), 0, "{good}");
        }
    }
}
