//! What happened when: numbers of writes in short intervals, every slow or failed command, every mark.
//!
//! Owns the clock of a run: all times are since its start. Judges nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Serialize, Serializer};

/// Length of an interval in which writes are counted.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// What took less is no stall worth keeping.
pub const WORTH_KEEPING: Duration = Duration::from_millis(15);
/// Most stalls and failures that are kept, each; further ones are only counted.
const MOST: usize = 200_000;

/// Who waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// A command of the application, attempts of its client included.
    Application,
    /// A probe of one slot, which tries again at once.
    Slot,
    /// A client that started from the name of the Service: until it had written and read.
    Newcomer,
}

/// A command that took long, or failed.
#[derive(Debug, Clone, Serialize)]
pub struct Stall {
    /// Who waited.
    pub who: Who,
    /// Slot of the key.
    pub slot: u16,
    /// Start, since the start of the run.
    #[serde(serialize_with = "seconds")]
    pub from: Duration,
    /// End.
    #[serde(serialize_with = "seconds")]
    pub to: Duration,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Stall {
    /// How long it took.
    pub fn length(&self) -> Duration {
        self.to.saturating_sub(self.from)
    }
}

/// Counts of one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Acknowledged writes of the application.
    pub writes: u32,
    /// Its reads that were answered.
    pub reads: u32,
    /// Its commands that failed.
    pub failures: u32,
}

/// A moment with a name.
#[derive(Debug, Clone, Serialize)]
pub struct Mark {
    /// When.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    /// What.
    pub text: String,
}

/// All that was recorded.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Record {
    /// Counts per [`INTERVAL`].
    pub counts: Vec<Counts>,
    /// Slow and failed commands, by their ends.
    pub stalls: Vec<Stall>,
    /// Slow and failed commands that are not in the list.
    pub dropped: u64,
    /// Newcomers that succeeded.
    pub newcomers: u64,
    /// What was done to the cluster.
    pub marks: Vec<Mark>,
    /// Losses that a read noticed before the end, in words.
    pub noticed: Vec<Mark>,
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 10_000.0).round() / 10_000.0)
}

/// Shared by all that record.
#[derive(Clone)]
pub struct Recorder {
    start: Instant,
    wall: SystemTime,
    record: Arc<Mutex<Record>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { start: Instant::now(), wall: SystemTime::now(), record: Arc::default() }
    }
}

impl Recorder {
    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time since the start that a clock time is; zero for one before.
    pub fn since_start(&self, clock: SystemTime) -> Duration {
        clock.duration_since(self.wall).unwrap_or(Duration::ZERO)
    }

    /// The clock time of the start.
    pub fn clock_at_start(&self) -> SystemTime {
        self.wall
    }

    /// A command ended.
    pub fn ended(&self, who: Who, slot: u16, from: Duration, failure: Option<String>, write: bool) {
        let to = self.now();
        self.with(|record| {
            if who == Who::Newcomer && failure.is_none() {
                record.newcomers += 1;
            }
            if who == Who::Application {
                let counts = interval(&mut record.counts, to);
                match (&failure, write) {
                    (Some(_), _) => counts.failures += 1,
                    (None, true) => counts.writes += 1,
                    (None, false) => counts.reads += 1,
                }
            }
            if failure.is_none() && to.saturating_sub(from) < WORTH_KEEPING {
                return;
            }
            if record.stalls.len() < MOST {
                record.stalls.push(Stall { who, slot, from, to, failure });
            } else {
                record.dropped += 1;
            }
        });
    }

    /// Something was done.
    pub fn mark(&self, text: impl Into<String>) {
        self.mark_at(self.now(), text);
    }

    /// Something was done at that time.
    pub fn mark_at(&self, at: Duration, text: impl Into<String>) {
        let mark = Mark { at, text: text.into() };
        self.with(|record| record.marks.push(mark));
    }

    /// A read saw a loss.
    pub fn notice(&self, text: String) {
        let mark = Mark { at: self.now(), text };
        self.with(|record| record.noticed.push(mark));
    }

    /// A copy of everything so far.
    pub fn snapshot(&self) -> Record {
        self.with(|record| record.clone())
    }

    /// Something of what was recorded, without a copy of everything.
    pub fn with<T>(&self, look: impl FnOnce(&mut Record) -> T) -> T {
        look(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn interval(counts: &mut Vec<Counts>, at: Duration) -> &mut Counts {
    let index = usize::try_from(at.as_millis() / INTERVAL.as_millis()).unwrap_or(0);
    if counts.len() <= index {
        counts.resize(index + 1, Counts::default());
    }
    // It was just made long enough.
    #[expect(clippy::indexing_slicing, reason = "the length was made larger than the index above")]
    &mut counts[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_commands_are_counted_and_slow_or_failed_ones_kept() {
        let recorder = Recorder::default();
        let now = recorder.now();
        recorder.ended(Who::Application, 1, now, None, true);
        recorder.ended(Who::Application, 2, now, Some("timeout".to_owned()), true);
        std::thread::sleep(WORTH_KEEPING);
        recorder.ended(Who::Application, 3, now, None, false);
        recorder.ended(Who::Slot, 4, now, None, true);
        let record = recorder.snapshot();
        let total = record
            .counts
            .iter()
            .fold((0, 0, 0), |sum, it| (sum.0 + it.writes, sum.1 + it.reads, sum.2 + it.failures));
        assert_eq!(total, (1, 1, 1));
        assert_eq!(record.stalls.iter().map(|it| it.slot).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn clock_times_become_times_of_the_run() {
        let recorder = Recorder::default();
        let later = recorder.clock_at_start() + Duration::from_secs(3);
        assert_eq!(recorder.since_start(later), Duration::from_secs(3));
        assert_eq!(recorder.since_start(SystemTime::UNIX_EPOCH), Duration::ZERO);
    }
}
