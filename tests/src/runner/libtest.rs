//! What `cargo test -- --show-output` says, read line by line and held against its own sums.
//!
//! A test that cannot be tried where it runs prints a line that begins with `SKIPPED: ` and ends; libtest calls that "ok", and
//! shows the line under the test's name. Nothing is taken on trust: results that are named must be as many as libtest
//! says there were, and a program that ends in the middle is a failure.

use super::{Line, Verdict};

/// How a test says that it could not be tried.
const MARK: &str = "SKIPPED: ";

/// The results that the log of `case` names, and a failure for each test program whose results do not add up.
pub(super) fn read(case: &str, text: &str) -> Vec<Line> {
    let mut reader = Reader { case, unit: String::new(), lines: Vec::new(), block: None, shown: None };
    text.lines().for_each(|line| reader.line(line));
    reader.ends();
    reader.lines
}

/// Tests that libtest runs in one go, between "running N tests" and "test result: ...".
struct Block {
    /// How many it has announced.
    announced: usize,
    /// Where its results begin in the list of all.
    first: usize,
}

struct Reader<'a> {
    case: &'a str,
    /// The test program.
    unit: String,
    lines: Vec<Line>,
    block: Option<Block>,
    /// The test whose output is being shown.
    shown: Option<String>,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) {
        let trimmed = line.trim_start();
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.shown = Some(name.to_owned());
        } else if matches!(line, "successes:" | "failures:") {
            self.shown = None;
        } else if let Some(sums) = line.strip_prefix("test result: ") {
            self.shown = None;
            self.sums(sums);
        } else if let Some(why) = trimmed.strip_prefix(MARK) {
            self.skipped(why);
        } else if self.shown.is_some() {
            // Whatever a test prints is no result.
        } else if let Some(rest) = trimmed.strip_prefix("Running ").filter(|rest| rest.contains(" (")) {
            // "unittests src/lib.rs (target/debug/deps/vellum_vfs-0123)" or "tests/x.rs (target/...)"
            self.ends();
            let file = rest.rsplit('/').next().unwrap_or(rest).trim_end_matches(')');
            self.unit = file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned();
        } else if let Some(rest) = trimmed.strip_prefix("Doc-tests ") {
            self.ends();
            self.unit = format!("{rest} (doc)");
        } else if let Some(announced) = announced(line) {
            self.ends();
            self.block = Some(Block { announced, first: self.lines.len() });
        } else if let Some((test, result)) = result_in(line) {
            let name = self.named(test);
            self.lines.push(Line { name, result });
        }
    }

    fn named(&self, test: &str) -> String {
        format!("{} {}::{test}", self.case, self.unit)
    }

    fn skipped(&mut self, why: &str) {
        let result = Verdict::Skipped(why.trim().to_owned());
        // Printed by a process that libtest does not hear, or by a program without libtest.
        let Some(test) = &self.shown else {
            let of_all = self.unit.is_empty();
            let name = if of_all { self.case.to_owned() } else { self.named("a part of it") };
            self.lines.push(Line { name, result });
            return;
        };
        let name = self.named(test);
        let of_it = self.lines.iter_mut().rev().find(|line| line.name == name);
        match of_it {
            Some(line) if matches!(line.result, Verdict::Failed(_)) => {}
            Some(line) => line.result = result,
            None => self.lines.push(Line { name, result }),
        }
    }

    /// "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out": as many as have been named.
    fn sums(&mut self, sums: &str) {
        let number = |word: &str| {
            sums.split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
        };
        let block = self.block.take();
        let first = block.as_ref().map_or(self.lines.len(), |block| block.first);
        let named = self.lines.get(first..).unwrap_or_default();
        let failed = named.iter().filter(|line| matches!(line.result, Verdict::Failed(_))).count();
        let counted: Option<(usize, usize)> = (|| {
            let failed = number("failed")?;
            Some((number("passed")? + failed + number("ignored")? + number("measured")?, failed))
        })();
        let parts = named.iter().filter(|line| line.name.ends_with("::a part of it")).count();
        if block.is_none() || counted != Some((named.len() - parts, failed)) {
            let why =
                format!("{} tests are named, {failed} of them failed, but: {sums}", named.len() - parts);
            self.wrong(why);
        }
    }

    /// Before the next program begins, or at the end.
    fn ends(&mut self) {
        self.shown = None;
        if let Some(block) = self.block.take() {
            let named = self.lines.len() - block.first;
            self.wrong(format!("ended after {named} of {} tests", block.announced));
        }
    }

    fn wrong(&mut self, why: String) {
        let name = format!("{} {}", self.case, self.unit);
        self.lines.push(Line { name, result: Verdict::Failed(why) });
    }
}

/// "running 3 tests".
fn announced(line: &str) -> Option<usize> {
    let number = line.strip_prefix("running ")?;
    number.strip_suffix(" tests").or_else(|| number.strip_suffix(" test"))?.parse().ok()
}

/// "test a::b ... ok", also where other output stands before it in the line.
fn result_in(line: &str) -> Option<(&str, Verdict)> {
    let (before, result) = line.rsplit_once(" ... ")?;
    let test = before.strip_prefix("test ").or_else(|| before.rsplit_once("test ").map(|(_, test)| test))?;
    let result = match result.split_once(", ").unwrap_or((result, "")) {
        ("ok", _) => Verdict::Passed,
        ("FAILED", _) => Verdict::Failed("see the log".to_owned()),
        ("ignored", "") => Verdict::Skipped("marked #[ignore]".to_owned()),
        ("ignored", why) => Verdict::Skipped(why.trim().to_owned()),
        _ => return None,
    };
    Some((test, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(log: &str) -> Vec<(String, Verdict)> {
        read("unit", log).into_iter().map(|line| (line.name, line.result)).collect()
    }

    fn failures(log: &str) -> Vec<String> {
        let failed = |(name, result)| match result {
            Verdict::Failed(why) => Some(format!("{name}: {why}")),
            _ => None,
        };
        results(log).into_iter().filter_map(failed).collect()
    }

    #[test]
    fn tests_are_named_and_counted() {
        let log = "   Compiling x\n     Running unittests src/lib.rs (target/debug/deps/vellum_vfs-01ab)\n\n\
                   running 3 tests\ntest idmap::tests::a ... ok\ntest b ... FAILED\ntest c ... ignored, needs root\n\n\
                   test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                   \x20  Doc-tests vellum_sys\n\nrunning 1 test\ntest crates/x.rs - f (line 3) - compile fail ... ok\n\n\
                   test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let expected = [
            ("unit vellum_vfs::idmap::tests::a", Verdict::Passed),
            ("unit vellum_vfs::b", Verdict::Failed("see the log".into())),
            ("unit vellum_vfs::c", Verdict::Skipped("needs root".into())),
            ("unit vellum_sys (doc)::crates/x.rs - f (line 3) - compile fail", Verdict::Passed),
        ];
        assert_eq!(results(log), expected.map(|(name, result)| (name.to_owned(), result)));
    }

    #[test]
    fn a_result_after_other_output_counts() {
        let log = "     Running tests/x.rs (target/debug/deps/x-01ab)\nrunning 2 tests\n\
                   datatest x ... FAILED\nmore: test y ... ok\n\
                   test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert_eq!(failures(log), ["unit x::x: see the log"]);
        assert_eq!(results(log).len(), 2);
    }

    #[test]
    fn a_result_that_is_not_named_is_missed() {
        let log = "     Running tests/x.rs (target/debug/deps/x-01ab)\nrunning 2 tests\ntest a ... ok\n\
                   test b ... somebody prints here\nFAILED\n\
                   test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert_eq!(failures(log).len(), 1);
        assert!(
            failures(log)[0].contains("1 tests are named, 0 of them failed, but: FAILED. 1 passed; 1 failed")
        );
    }

    #[test]
    fn a_program_that_ends_in_the_middle_has_failed() {
        let log = "     Running tests/x.rs (target/debug/deps/x-01ab)\nrunning 2 tests\ntest a ... ok\n\
                   \x20    Running tests/y.rs (target/debug/deps/y-01ab)\nrunning 0 tests\n\
                   test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n\
                   running 1 test\n";
        assert_eq!(failures(log), ["unit x: ended after 1 of 2 tests", "unit y: ended after 0 of 1 tests"]);
    }

    #[test]
    fn a_test_that_could_not_be_tried_is_skipped() {
        let log = "     Running tests/x.rs (target/debug/deps/x-01ab)\nrunning 3 tests\ntest a ... ok\ntest b ... ok\n\
                   test c ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nbefore\nSKIPPED: needs root\n\
                   test b ... FAILED\n\nsuccesses:\n    a\n    b\n\nfailures:\n\n---- c stdout ----\nSKIPPED: half of it\n\
                   \nfailures:\n    c\n\n\
                   test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        let expected = [
            ("unit x::a", Verdict::Skipped("needs root".into())),
            ("unit x::b", Verdict::Passed),
            ("unit x::c", Verdict::Failed("see the log".into())),
        ];
        assert_eq!(results(log), expected.map(|(name, result)| (name.to_owned(), result)));
    }

    #[test]
    fn skips_without_a_test_name_count() {
        let log = "     Running tests/sandbox.rs (target/debug/deps/sandbox-01ab)\n    SKIPPED: files: too old\n\
                   running 1 test\ntest a ... ok\nSKIPPED: by a child\n\
                   test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        let skipped: Vec<_> =
            results(log).into_iter().filter(|(_, result)| *result != Verdict::Passed).collect();
        assert_eq!(skipped.len(), 2);
        assert_eq!(skipped[0].1, Verdict::Skipped("files: too old".into()));
        assert!(failures(log).is_empty());
        let of_all = [("unit".to_owned(), Verdict::Skipped("NOT COMPARED: another kernel".into()))];
        assert_eq!(results("counted\nSKIPPED: NOT COMPARED: another kernel\n"), of_all);
    }
}
