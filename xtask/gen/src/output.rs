//! A generated file: comparing it with what is on disk, and writing it. Knows nothing of contents.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A file as it should be.
pub(crate) struct Output {
    /// Path from the repository's root.
    pub(crate) path: &'static str,
    /// The whole content, ending in a newline.
    pub(crate) content: String,
}

/// How the file on disk deviates.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Drift {
    /// There is none.
    Missing,
    /// The first line that differs.
    Differs {
        /// Its number, from 1.
        line: usize,
        /// What the file on disk has there; empty past its end.
        found: String,
        /// What should be there; empty past the end.
        expected: String,
    },
}

impl Output {
    /// Compares with the file under `root`.
    pub(crate) fn drift(&self, root: &Path) -> Result<Option<Drift>> {
        let path = root.join(self.path);
        let found = match fs::read_to_string(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Drift::Missing)),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(first_difference(&found, &self.content))
    }

    /// Writes the file under `root`, and the directories it needs.
    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        let path = root.join(self.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        fs::write(&path, &self.content).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn first_difference(found: &str, expected: &str) -> Option<Drift> {
    if found == expected {
        return None;
    }
    let (mut left, mut right) = (found.split('\n'), expected.split('\n'));
    for line in 1.. {
        let (found, expected) = (left.next(), right.next());
        if found != expected {
            return Some(Drift::Differs {
                line,
                found: found.unwrap_or_default().to_owned(),
                expected: expected.unwrap_or_default().to_owned(),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(line: usize, found: &str, expected: &str) -> Drift {
        Drift::Differs { line, found: found.to_owned(), expected: expected.to_owned() }
    }

    #[test]
    fn the_first_difference_is_named_by_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(differs(2, "b", "c")));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(differs(2, "", "b")));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some(differs(2, "b", "")));
        assert_eq!(first_difference("a", "a\n"), Some(differs(2, "", "")));
    }

    #[test]
    fn a_missing_file_is_drift_and_a_written_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let output = Output { path: "new/file.yaml", content: "a: 1\n".to_owned() };
        assert_eq!(output.drift(directory.path()).unwrap(), Some(Drift::Missing));
        output.write(directory.path()).unwrap();
        assert_eq!(output.drift(directory.path()).unwrap(), None);
    }
}
