//! What clients saw during one operation: failures, and stalls gathered into interruptions.
//!
//! Pure arithmetic over a [`Record`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::record::{Counts, INTERVAL, Record, Stall, Who};

/// Stalls that are longer count as interruptions: the goal for a planned failover or a batch of slots.
pub const GOAL: Duration = Duration::from_millis(60);
/// Counts are added up over so many intervals before the lowest is taken: a second.
const SMOOTH: usize = 10;

/// How long after a step a stall may begin that is still its own.
const STEP: Duration = Duration::from_secs(2);
/// How marks of the operator's actions begin.
pub const OPERATOR: &str = "operator: ";
/// How marks of steps begin that are taken without the operator.
pub const BY_HAND: &str = "by hand: ";

/// What clients saw from one time to another.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Window {
    /// Start and end, seconds since the start of the run.
    pub seconds: (f64, f64),
    /// Acknowledged writes of the application.
    pub writes: u64,
    /// Its answered reads.
    pub reads: u64,
    /// Its failed commands, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Failed newcomers, by kind.
    pub newcomers_failed: BTreeMap<String, u64>,
    /// Longest command of the application, milliseconds.
    pub application_ms: u64,
    /// Longest time in which a probed slot took no write, milliseconds.
    pub slot_ms: u64,
    /// Longest a newcomer needed, milliseconds.
    pub newcomer_ms: u64,
    /// Lengths of the interruptions longer than [`GOAL`] that probes saw, milliseconds, in order.
    pub interruptions_ms: Vec<u64>,
    /// The same as the application saw them.
    pub application_interruptions_ms: Vec<u64>,
    /// For each kind of step, the longest slot stall of each step of it, milliseconds, in order; 0 where none was worth
    /// keeping.
    pub steps_ms: BTreeMap<String, Vec<u64>>,
    /// Times from one step of the operator to its next, by the kinds of the two, milliseconds, in order.
    pub gaps_ms: BTreeMap<String, Vec<u64>>,
    /// Writes in the poorest second as a part of the median second before the window; 1 when nothing shows.
    pub dip: f64,
}

impl Window {
    /// Failed commands of the application.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Failed newcomers.
    pub fn newcomers(&self) -> u64 {
        self.newcomers_failed.values().sum()
    }
}

/// What clients saw between `from` and `to`.
pub fn window(record: &Record, from: Duration, to: Duration) -> Window {
    let touches = |stall: &&Stall| stall.to >= from && stall.from <= to;
    let within: Vec<&Stall> = record.stalls.iter().filter(touches).collect();
    let longest = |who| {
        let lengths = within.iter().filter(|it| it.who == who).map(|it| it.length());
        millis(lengths.max().unwrap_or_default())
    };
    let failed = |who| {
        let mut kinds = BTreeMap::new();
        for stall in within.iter().filter(|it| it.who == who) {
            if let Some(failure) = &stall.failure {
                *kinds.entry(failure.clone()).or_default() += 1;
            }
        }
        kinds
    };
    let counts = slice(&record.counts, from, to);
    Window {
        seconds: (from.as_secs_f64(), to.as_secs_f64()),
        writes: counts.iter().map(|it| u64::from(it.writes)).sum(),
        reads: counts.iter().map(|it| u64::from(it.reads)).sum(),
        failures: failed(Who::Application),
        newcomers_failed: failed(Who::Newcomer),
        application_ms: longest(Who::Application),
        slot_ms: longest(Who::Slot),
        newcomer_ms: longest(Who::Newcomer),
        interruptions_ms: interruptions(&within, Who::Slot),
        application_interruptions_ms: interruptions(&within, Who::Application),
        steps_ms: steps(record, from, to),
        gaps_ms: gaps(record, from, to),
        dip: dip(counts, slice(&record.counts, from.saturating_sub(Duration::from_secs(5)), from)),
    }
}

/// Overlapping stalls longer than [`GOAL`] are one interruption, as long as its longest stall.
fn interruptions(stalls: &[&Stall], who: Who) -> Vec<u64> {
    let mut long: Vec<&&Stall> = stalls.iter().filter(|it| it.who == who && it.length() > GOAL).collect();
    long.sort_by_key(|it| it.from);
    let mut groups: Vec<(Duration, Duration)> = Vec::new();
    for stall in long {
        match groups.last_mut() {
            Some((end, longest)) if stall.from <= *end => {
                *end = (*end).max(stall.to);
                *longest = (*longest).max(stall.length());
            }
            _ => groups.push((stall.to, stall.length())),
        }
    }
    groups.into_iter().map(|(_end, longest)| millis(longest)).collect()
}

/// A slot stall belongs to the last step before its end, if that is not longer ago than [`STEP`].
fn steps(record: &Record, from: Duration, to: Duration) -> BTreeMap<String, Vec<u64>> {
    let mut steps: Vec<(Duration, &str, u64)> = record
        .marks
        .iter()
        .filter(|mark| (from..=to).contains(&mark.at))
        .filter_map(|mark| Some((mark.at, kind(&mark.text)?, 0)))
        .collect();
    steps.sort_by_key(|(at, ..)| *at);
    for stall in record.stalls.iter().filter(|it| it.who == Who::Slot && it.to >= from && it.from <= to) {
        let before = steps.partition_point(|(at, ..)| *at <= stall.to);
        if let Some((at, _, longest)) = before.checked_sub(1).and_then(|last| steps.get_mut(last))
            && stall.from.saturating_sub(*at) < STEP
        {
            *longest = (*longest).max(millis(stall.length()));
        }
    }
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (_at, kind, longest) in steps {
        kinds.entry(kind.to_owned()).or_default().push(longest);
    }
    kinds
}

/// How soon the operator goes on after each of its steps.
fn gaps(record: &Record, from: Duration, to: Duration) -> BTreeMap<String, Vec<u64>> {
    let within = record.marks.iter().filter(|mark| (from..=to).contains(&mark.at));
    let mut steps: Vec<(Duration, &str)> = within
        .filter(|mark| mark.text.starts_with(OPERATOR))
        .filter_map(|mark| Some((mark.at, kind(&mark.text)?)))
        .collect();
    steps.sort_by_key(|(at, _)| *at);
    let mut gaps: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for ((at, one), (later, next)) in steps.iter().zip(steps.iter().skip(1)) {
        gaps.entry(format!("{one}→{next}")).or_default().push(millis(later.saturating_sub(*at)));
    }
    gaps
}

/// The kind of a step, of the operator's or by hand; none of another mark.
fn kind(mark: &str) -> Option<&str> {
    let words = mark.strip_prefix(OPERATOR).or_else(|| mark.strip_prefix(BY_HAND))?;
    words.split(' ').next()
}

fn slice(counts: &[Counts], from: Duration, to: Duration) -> &[Counts] {
    let index = |at: Duration| usize::try_from(at.as_millis() / INTERVAL.as_millis()).unwrap_or(0);
    let end = index(to).min(counts.len());
    counts.get(index(from).min(end)..end).unwrap_or_default()
}

fn dip(during: &[Counts], before: &[Counts]) -> f64 {
    let seconds = |counts: &[Counts]| -> Vec<u32> {
        counts.windows(SMOOTH).map(|second| second.iter().map(|it| it.writes).sum()).collect()
    };
    let mut usual = seconds(before);
    usual.sort_unstable();
    let median = usual.get(usual.len() / 2).copied().unwrap_or(0);
    match seconds(during).into_iter().min() {
        Some(lowest) if median > 0 => (f64::from(lowest) / f64::from(median)).min(1.0),
        _ => 1.0,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Mark;

    fn stall(who: Who, from: u64, to: u64, failure: Option<&str>) -> Stall {
        let at = Duration::from_millis;
        Stall { who, slot: 0, from: at(from), to: at(to), failure: failure.map(str::to_owned) }
    }

    fn record(stalls: Vec<Stall>) -> Record {
        Record { stalls, ..Record::default() }
    }

    #[test]
    fn the_longest_of_each_and_every_failure_is_told() {
        let record = record(vec![
            stall(Who::Application, 100, 200, None),
            stall(Who::Slot, 100, 170, None),
            stall(Who::Application, 150, 180, Some("timeout")),
            stall(Who::Newcomer, 150, 450, Some("connect")),
            stall(Who::Application, 5000, 9000, Some("later")),
        ]);
        let seen = window(&record, Duration::ZERO, Duration::from_secs(1));
        assert_eq!((seen.application_ms, seen.slot_ms, seen.newcomer_ms), (100, 70, 300));
        assert_eq!((seen.failed(), seen.newcomers()), (1, 1));
        assert!(seen.failures.contains_key("timeout"));
    }

    #[test]
    fn a_stall_across_the_edge_belongs_to_the_window() {
        let record = record(vec![stall(Who::Slot, 900, 1500, None)]);
        assert_eq!(window(&record, Duration::from_secs(1), Duration::from_secs(2)).slot_ms, 600);
        assert_eq!(window(&record, Duration::from_secs(2), Duration::from_secs(3)).slot_ms, 0);
    }

    #[test]
    fn stalls_at_one_time_are_one_interruption_and_short_ones_none() {
        let record = record(vec![
            stall(Who::Slot, 100, 200, None),
            stall(Who::Slot, 110, 230, None),
            stall(Who::Slot, 500, 555, None),
            stall(Who::Slot, 900, 970, None),
        ]);
        let seen = window(&record, Duration::ZERO, Duration::from_secs(1));
        assert_eq!(seen.interruptions_ms, [120, 70]);
    }

    #[test]
    fn a_stall_belongs_to_the_last_step_before_its_end() {
        let at = Duration::from_millis;
        let mark = |from, text: &str| Mark { at: at(from), text: text.to_owned() };
        let mut record = record(vec![
            stall(Who::Slot, 90, 150, None),
            stall(Who::Slot, 110, 130, None),
            stall(Who::Application, 110, 990, None),
            stall(Who::Slot, 510, 540, None),
            stall(Who::Slot, 9000, 9200, None),
        ]);
        record.marks = vec![
            mark(300, "a roll"),
            mark(500, "by hand: MigrateSlots a"),
            mark(100, "operator: Failover a-1 handing over"),
            mark(600, "operator: Failover a-2 handing over"),
        ];
        let seen = window(&record, Duration::ZERO, at(10_000));
        let wanted = [("Failover".to_owned(), vec![60, 0]), ("MigrateSlots".to_owned(), vec![30])];
        assert_eq!(seen.steps_ms, BTreeMap::from(wanted));
        assert_eq!(seen.gaps_ms, BTreeMap::from([("Failover→Failover".to_owned(), vec![500])]));
    }

    #[test]
    fn a_dip_is_the_poorest_second_beside_an_ordinary_one() {
        let mut counts = vec![Counts { writes: 100, ..Counts::default() }; 100];
        for poor in &mut counts[70..80] {
            poor.writes = 25;
        }
        let record = Record { counts, ..Record::default() };
        let seen = window(&record, Duration::from_secs(6), Duration::from_secs(10));
        assert!((seen.dip - 0.25).abs() < 0.01, "{}", seen.dip);
    }
}
