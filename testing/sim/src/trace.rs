//! What happened, one line each: time, actor, call, outcome. The last lines are kept for the report of a failure.

use std::collections::VecDeque;
use std::io::Write;

use crate::clock::{Ms, START};

/// Lines kept for a report.
const KEPT: usize = 120;

/// Collects the lines.
#[derive(Debug, Default)]
pub struct Trace {
    /// Writes each line to the standard output, too.
    pub live: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// Adds a line.
    pub fn line(&mut self, now: Ms, actor: &str, what: &str) {
        let millis = now - START;
        let line = format!("{:>5}.{:03}  {actor:<10} {what}", millis / 1000, millis % 1000);
        if self.live {
            // A reader that has gone away is no concern of the simulation.
            drop(writeln!(std::io::stdout(), "{line}"));
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last `count` lines.
    pub fn tail(&self, count: usize) -> Vec<String> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).cloned().collect()
    }
}
