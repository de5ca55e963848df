//! Reading what test programs print: how many tests passed and failed.

use std::ops::AddAssign;

/// Number of tests by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that are marked to be ignored.
    pub(crate) ignored: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The counts of a line such as `test result: ok. 5 passed; 0 failed; 1 ignored; …`; `None` for other lines.
pub(crate) fn parse_line(line: &str) -> Option<Counts> {
    let plain = without_colours(line);
    let (_verdict, numbers) = plain.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        numbers.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
    };
    Some(Counts {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored").unwrap_or(0),
    })
}

/// The text without the escape sequences of terminal colours.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_colour, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_gives_its_counts() {
        let line =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 4 filtered out; finished in 0.52s";
        assert_eq!(parse_line(line), Some(Counts { passed: 12, failed: 0, ignored: 3 }));
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(parse_line(line), Some(Counts { passed: 1, failed: 2, ignored: 0 }));
    }

    #[test]
    fn colours_do_not_matter() {
        let line = "test result: \u{1b}[32mok\u{1b}[0m. 1 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(parse_line(line), Some(Counts { passed: 1, failed: 0, ignored: 0 }));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in [
            "",
            "running 3 tests",
            "test a::b ... ok",
            "the test result: ok. 1 passed; 0 failed",
            "test result: odd",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }

    #[test]
    fn counts_add_up() {
        let mut sum = Counts::default();
        sum += Counts { passed: 1, failed: 2, ignored: 3 };
        sum += Counts { passed: 10, failed: 20, ignored: 30 };
        assert_eq!(sum, Counts { passed: 11, failed: 22, ignored: 33 });
    }
}
