//! The account of a key: which numbers were tried, which were acknowledged, and what of them must be there.
//!
//! Pure. Decides what a loss is; knows no server and no clock.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::data::Seen;
use crate::keys::Kind;

/// Of the keys that hold several numbers, so many of the latest acknowledged ones must be there. Small against what is
/// trimmed, because a repeated attempt may add a number twice.
const KEPT: usize = 4;

/// What was written to one key. Numbers are 1, 2, 3, …
#[derive(Debug, Clone, Default)]
pub struct Account {
    tried: u64,
    acknowledged: u64,
    unacknowledged: BTreeSet<u64>,
}

/// What is wrong with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// So many acknowledged writes are gone; for kinds that hold several numbers, at least.
    Lost(u64),
    /// It holds what nobody wrote.
    Wrong(String),
}

/// What is left of everything that was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Keys that were read.
    pub keys: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Acknowledged writes that are gone.
    pub lost: u64,
    /// Keys that lost any.
    pub keys_with_loss: u64,
    /// Slots of those keys, as ranges.
    pub slots_with_loss: Vec<String>,
    /// Keys with wrong values.
    pub wrong: u64,
    /// Keys that could not be read.
    pub unreadable: u64,
    /// The first few findings, in words.
    pub examples: Vec<String>,
}

impl Verdict {
    /// Whether everything that was acknowledged is there and right.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.wrong == 0 && self.unreadable == 0 && self.keys > 0
    }
}

impl Account {
    /// The number of the next write.
    pub fn next_number(&mut self) -> u64 {
        self.tried += 1;
        self.unacknowledged.insert(self.tried);
        self.tried
    }

    /// The write of `number` was acknowledged.
    pub fn acknowledge(&mut self, number: u64) {
        self.unacknowledged.remove(&number);
        self.acknowledged = self.acknowledged.max(number);
    }

    /// How many writes were acknowledged.
    pub fn count(&self) -> u64 {
        let later = self.unacknowledged.range(..=self.acknowledged).count();
        self.acknowledged - u64::try_from(later).unwrap_or(0)
    }

    /// Takes what is there for what was written: after a loss that was counted, so that it is not counted again.
    pub fn accept_loss(&mut self) {
        let tried = self.tried;
        self.acknowledged = 0;
        self.unacknowledged = (1..=tried).collect();
    }

    /// Judges what was read while nobody wrote.
    pub fn judge(&self, kind: Kind, seen: &Seen) -> Option<Finding> {
        if let Some(broken) = &seen.broken {
            return Some(Finding::Wrong(broken.clone()));
        }
        if let Some(number) = seen.numbers.iter().find(|number| **number > self.tried) {
            return Some(Finding::Wrong(format!("holds {number}, but only {} were written", self.tried)));
        }
        let lost = match kind {
            // Whether it has expired is the reader's to say.
            Kind::Fleeting => 0,
            _ if kind.is_single() => self.missing_after(seen.numbers.iter().max().copied().unwrap_or(0)),
            _ => self.missing_latest(&seen.numbers),
        };
        (lost > 0).then_some(Finding::Lost(lost))
    }

    fn missing_after(&self, number: u64) -> u64 {
        let after = (number + 1)..=self.acknowledged;
        if after.is_empty() {
            return 0;
        }
        let failed = u64::try_from(self.unacknowledged.range(after).count()).unwrap_or(0);
        (self.acknowledged - number).saturating_sub(failed)
    }

    fn missing_latest(&self, numbers: &[u64]) -> u64 {
        let latest = (1..=self.acknowledged).rev().filter(|number| !self.unacknowledged.contains(number));
        let missing = latest.take(KEPT).filter(|number| !numbers.contains(number)).count();
        u64::try_from(missing).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(numbers: &[u64]) -> Seen {
        Seen { numbers: numbers.to_vec(), broken: None }
    }

    fn account(tried: u64, failed: &[u64]) -> Account {
        let mut account = Account::default();
        for _ in 0..tried {
            let number = account.next_number();
            if !failed.contains(&number) {
                account.acknowledge(number);
            }
        }
        account
    }

    #[test]
    fn what_was_acknowledged_last_must_be_there() {
        let account = account(5, &[]);
        assert_eq!(account.judge(Kind::Text, &seen(&[5])), None);
        assert_eq!(account.judge(Kind::Text, &seen(&[3])), Some(Finding::Lost(2)));
        assert_eq!(account.judge(Kind::Hash, &seen(&[])), Some(Finding::Lost(5)));
        assert_eq!(account.judge(Kind::List, &seen(&[1, 2, 3, 4, 5])), None);
        assert_eq!(account.judge(Kind::List, &seen(&[2, 3, 5])), Some(Finding::Lost(1)));
        assert_eq!(account.judge(Kind::Stream, &seen(&[])), Some(Finding::Lost(4)));
    }

    #[test]
    fn a_write_without_an_answer_may_be_there_or_not() {
        let account = account(5, &[4, 5]);
        assert_eq!(account.count(), 3);
        for number in [3, 4, 5] {
            assert_eq!(account.judge(Kind::Text, &seen(&[number])), None, "{number}");
        }
        assert_eq!(account.judge(Kind::Text, &seen(&[2])), Some(Finding::Lost(1)));
        assert_eq!(account.judge(Kind::Set, &seen(&[1, 2, 3])), None);
    }

    #[test]
    fn a_failed_write_between_acknowledged_ones_is_no_loss() {
        let account = account(5, &[4]);
        assert_eq!(account.judge(Kind::Text, &seen(&[3])), Some(Finding::Lost(1)));
        assert_eq!(account.judge(Kind::Sorted, &seen(&[1, 2, 3, 5])), None);
    }

    #[test]
    fn a_number_that_nobody_wrote_is_wrong() {
        assert!(matches!(account(5, &[]).judge(Kind::Text, &seen(&[6])), Some(Finding::Wrong(_))));
        let broken = Seen { numbers: vec![5], broken: Some("cut".to_owned()) };
        assert!(matches!(account(5, &[]).judge(Kind::Text, &broken), Some(Finding::Wrong(_))));
    }

    #[test]
    fn a_loss_that_was_counted_is_not_counted_again() {
        let mut account = account(5, &[]);
        account.accept_loss();
        assert_eq!(account.judge(Kind::Text, &seen(&[2])), None);
        let number = account.next_number();
        account.acknowledge(number);
        assert_eq!(account.judge(Kind::Text, &seen(&[5])), Some(Finding::Lost(1)));
    }

    #[test]
    fn a_verdict_on_nothing_is_not_clean() {
        assert!(!Verdict::default().is_clean());
        assert!(Verdict { keys: 1, ..Verdict::default() }.is_clean());
    }
}
