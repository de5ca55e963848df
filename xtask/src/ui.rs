//! What a person reads while xtask works: one line a part, with its time. The only place that prints.
//!
//! A reader that has gone away (`| head`) is no reason to stop in the middle of the work, so what cannot be
//! printed is dropped.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

/// A part of the work that is being timed; say how it ended with [`Part::done`].
#[derive(Debug)]
pub(crate) struct Part {
    name: String,
    start: Instant,
}

impl Part {
    /// Starts the clock. Prints nothing yet: most parts end within a second.
    pub(crate) fn start(name: impl Into<String>) -> Self {
        Self { name: name.into(), start: Instant::now() }
    }

    /// Says that the part is still at work, and how far it is.
    pub(crate) fn alive(&self, detail: &str) {
        line(&format!("  … {}", row(&self.name, self.start.elapsed(), detail)));
    }

    /// Says that the part is finished.
    pub(crate) fn done(&self, detail: &str) {
        line(&format!("  ✓ {}", row(&self.name, self.start.elapsed(), detail)));
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Prints one line.
pub(crate) fn line(text: &str) {
    drop(writeln!(io::stdout(), "{text}"));
}

/// Prints a line that is no part of the result.
pub(crate) fn note(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// Prints an error with its causes.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("\nerror: {error:#}"));
}

/// Name, time and detail in columns.
pub(crate) fn row(name: &str, time: Duration, detail: &str) -> String {
    format!("{name:<24}{:>7.1} s   {detail}", time.as_secs_f64()).trim_end().to_owned()
}

/// A duration as a person says it: `4.2 s`, `3 min 07 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_naturally() {
        assert_eq!(duration(Duration::from_millis(4240)), "4.2 s");
        assert_eq!(duration(Duration::from_secs(187)), "3 min 07 s");
    }

    #[test]
    fn rows_have_columns_and_no_trailing_blanks() {
        assert_eq!(row("etcd", Duration::from_millis(300), ""), format!("{:<24}    0.3 s", "etcd"));
    }
}
