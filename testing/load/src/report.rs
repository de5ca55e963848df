//! Results as a table for people and as JSON for machines.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::interruptions::Window;
use crate::ledger::Verdict;
use crate::plot;
use crate::record::Record;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Settled {
    /// The cluster was as specified after so many seconds.
    After(f64),
    /// Not in time.
    No,
    /// It is held on purpose until somebody acts.
    Held,
}

/// One operation or fault and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// Whether the cluster came to be as specified.
    pub settled: Settled,
    /// After a fault: the longest time in which a probed slot took no write, seconds.
    pub writable_s: Option<f64>,
    /// What clients saw.
    pub window: Window,
    /// What is left of the data.
    pub verdict: Verdict,
    /// Steps that must not be, seen by watching the order of steps.
    pub order: Vec<String>,
    /// Anything else that a reader must know.
    pub note: String,
}

impl Row {
    /// What a planned operation must not show, in words; nothing when it went as it should.
    pub fn faults_of_a_plan(&self) -> Vec<String> {
        let mut faults = self.faults_of_a_recovery();
        if self.verdict.lost > 0 {
            faults.push(format!("{}: {} acknowledged writes are lost", self.name, self.verdict.lost));
        }
        if self.window.failed() > 0 {
            faults.push(format!("{}: commands failed: {:?}", self.name, self.window.failures));
        }
        if self.window.newcomers() > 0 {
            faults.push(format!("{}: newcomers failed: {:?}", self.name, self.window.newcomers_failed));
        }
        faults.extend(self.order.iter().map(|order| format!("{}: {order}", self.name)));
        faults
    }

    /// What must not be even after a fault, in words.
    pub fn faults_of_a_recovery(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.settled == Settled::No {
            faults.push(format!("{}: not settled: {}", self.name, self.note));
        }
        if self.verdict.wrong > 0 || self.verdict.unreadable > 0 || self.verdict.keys == 0 {
            faults.push(format!("{}: {:?}", self.name, self.verdict));
        }
        faults
    }
}

/// A table of rows, in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| operation | settled s | writable s | lost | wrong | failed | newcomers failed | slot stall ms | over 60 ms | application stall ms | poorest second | order | note |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let seconds = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), |time| format!("{time:.1}"));
    for row in rows {
        let Row { name, settled, writable_s, window, verdict, order, note } = row;
        let settled = match settled {
            Settled::After(time) => format!("{time:.1}"),
            Settled::No => "**no**".to_owned(),
            Settled::Held => "held".to_owned(),
        };
        let kinds: Vec<&str> = window.failures.keys().map(String::as_str).collect();
        let failed = match window.failed() {
            0 => "0".to_owned(),
            count => format!("{count} ({})", kinds.join(", ")),
        };
        let order = if order.is_empty() { "ok".to_owned() } else { order.join("; ") };
        let text = format!(
            "| {name} | {settled} | {} | {} | {} | {failed} | {} | {} | {} | {} | {:.0} % | {order} | {note} |\n",
            seconds(*writable_s),
            verdict.lost,
            verdict.wrong + verdict.unreadable,
            window.newcomers(),
            window.slot_ms,
            window.interruptions_ms.len(),
            window.application_ms,
            window.dip * 100.0
        );
        out.push_str(&text);
    }
    out
}

/// Everything of a run.
#[derive(Debug, Serialize)]
pub struct Results<'a> {
    /// Name of the scenario.
    pub scenario: &'a str,
    /// Operations and faults.
    pub rows: &'a [Row],
    /// All that was recorded.
    pub record: &'a Record,
}

/// Writes `NAME.json`, `NAME.md` and `NAME.svg` into `folder`.
///
/// # Errors
///
/// They cannot be written.
pub fn save(folder: &Path, results: &Results<'_>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let write = |end: &str, text: String| {
        let path = folder.join(format!("{}.{end}", results.scenario));
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("json", serde_json::to_string(results).context("results as JSON")?)?;
    write("md", table(results.rows))?;
    write("svg", plot::svg(results.scenario, results.record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_was_missed() {
        let row = Row {
            name: "shards 3→4".to_owned(),
            settled: Settled::No,
            writable_s: Some(1.25),
            window: Window { failures: [("timeout".to_owned(), 3)].into(), ..Window::default() },
            verdict: Verdict { lost: 7, ..Verdict::default() },
            order: vec!["two shards in motion".to_owned()],
            note: String::new(),
        };
        assert_eq!(row.faults_of_a_plan().len(), 5, "{:?}", row.faults_of_a_plan());
        assert_eq!(row.faults_of_a_recovery().len(), 2);
        let table = table(&[row]);
        for words in ["**no**", "1.2", "| 7 |", "3 (timeout)", "two shards in motion"] {
            assert!(table.contains(words), "{words} not in {table}");
        }
    }
}
