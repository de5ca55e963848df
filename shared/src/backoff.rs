//! Exponential back-off with a cap and full jitter, and a keyed count of failures in a row.
//!
//! Owns the arithmetic only: randomness is passed in, nothing here sleeps or reads a clock. Counts live in memory and
//! may be lost at any time: that lengthens or shortens a wait, it never permits an action.

use std::collections::BTreeMap;
use std::time::Duration;

/// Doubling waits from `first`, never above `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
}

impl Backoff {
    /// Waits start at `first` and double with each failure up to `cap`. `first` above `cap` counts as `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap }
    }

    /// The longest wait after `failures` failures in a row: `first × 2^(failures - 1)`, at most the cap; zero
    /// failures wait nothing.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        2_u32
            .checked_pow(doublings)
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.cap, |wait| wait.min(self.cap))
    }

    /// The wait after `failures` failures in a row with full jitter: evenly spread over (0, ceiling] by `random`,
    /// which should be uniform over all of `u32`. Never shorter than a hundredth of the ceiling, so that no draw
    /// makes a hot loop.
    pub fn jittered(&self, failures: u32, random: u32) -> Duration {
        let ceiling = self.ceiling(failures);
        let share = f64::from(random) / f64::from(u32::MAX);
        ceiling.mul_f64(share.clamp(0.01, 1.0))
    }
}

/// Failures in a row per key, bounded in size.
#[derive(Debug, Clone)]
pub struct Failures<K: Ord> {
    counts: BTreeMap<K, u32>,
    limit: usize,
}

impl<K: Ord + Clone> Failures<K> {
    /// Remembers at most `limit` keys (at least one). When it is full, the key with the fewest failures makes room:
    /// it loses the least.
    pub const fn new(limit: usize) -> Self {
        Self { counts: BTreeMap::new(), limit: if limit == 0 { 1 } else { limit } }
    }

    /// Counts one more failure of `key` and returns how many there were in a row, this one included.
    pub fn failed(&mut self, key: &K) -> u32 {
        if !self.counts.contains_key(key) && self.counts.len() >= self.limit {
            let least = self.counts.iter().min_by_key(|(_, count)| **count).map(|(key, _)| key.clone());
            if let Some(least) = least {
                self.counts.remove(&least);
            }
        }
        let count = self.counts.entry(key.clone()).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    /// Forgets the failures of `key`: it succeeded, or it is gone.
    pub fn reset(&mut self, key: &K) {
        self.counts.remove(key);
    }

    /// Failures of `key` in a row so far.
    pub fn count(&self, key: &K) -> u32 {
        self.counts.get(key).copied().unwrap_or(0)
    }
}

/// A uniform random number for [`Backoff::jittered`]; the middle of the range if the system has none to give, since a
/// wait without jitter is still a wait.
pub fn random() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

    #[test]
    fn waits_double_from_the_first_up_to_the_cap() {
        let waits: Vec<u64> = (0..9).map(|failures| BACKOFF.ceiling(failures).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(BACKOFF.ceiling(u32::MAX), Duration::from_mins(1));
    }

    #[test]
    fn success_starts_the_count_over() {
        let mut failures = Failures::new(8);
        assert_eq!(failures.failed(&"a"), 1);
        assert_eq!(failures.failed(&"a"), 2);
        assert_eq!(failures.failed(&"b"), 1);
        failures.reset(&"a");
        assert_eq!(failures.count(&"a"), 0);
        assert_eq!(failures.failed(&"a"), 1);
        assert_eq!(failures.count(&"b"), 1);
    }

    #[test]
    fn a_full_tracker_drops_the_key_with_the_fewest_failures() {
        let mut failures = Failures::new(2);
        failures.failed(&"often");
        failures.failed(&"often");
        failures.failed(&"once");
        failures.failed(&"new");
        assert_eq!((failures.count(&"often"), failures.count(&"once"), failures.count(&"new")), (2, 0, 1));
    }

    proptest! {
        #[test]
        fn a_jittered_wait_is_never_zero_and_never_above_its_ceiling(failures in 1_u32.., random: u32) {
            let wait = BACKOFF.jittered(failures, random);
            prop_assert!(wait > Duration::ZERO);
            prop_assert!(wait <= BACKOFF.ceiling(failures));
        }
    }
}
