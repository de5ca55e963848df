//! Hash slots: ranges, sets of them, and even spreads.
//!
//! Pure arithmetic. A set is kept as sorted, disjoint, non-adjacent ranges: every node reports every other node's
//! slots, so with n nodes n² sets are alive in one observation and must be small.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of hash slots of a Valkey cluster (fixed by the engine).
pub const SLOT_COUNT: u16 = 16384;

/// Slots `start..=end`; `start <= end < 16384`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRange {
    /// First slot.
    pub start: u16,
    /// Last slot, included.
    pub end: u16,
}

impl SlotRange {
    /// The range `start..=end`, or `None` when it is empty or reaches past the last slot.
    pub fn new(start: u16, end: u16) -> Option<Self> {
        (start <= end && end < SLOT_COUNT).then_some(Self { start, end })
    }

    /// Number of slots, at least 1.
    pub fn count(self) -> u16 {
        self.end - self.start + 1
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.start == self.end {
            write!(f, "{}", self.start)
        } else {
            write!(f, "{}-{}", self.start, self.end)
        }
    }
}

impl fmt::Debug for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of slots.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotSet(Vec<SlotRange>);

impl SlotSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// All 16384 slots.
    pub fn all() -> Self {
        Self(vec![SlotRange { start: 0, end: SLOT_COUNT - 1 }])
    }

    /// The union of `ranges`, in any order, overlapping or not.
    pub fn from_ranges(ranges: impl IntoIterator<Item = SlotRange>) -> Self {
        let mut sorted: Vec<SlotRange> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<SlotRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.start <= last.end.saturating_add(1) => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    /// The ranges, ascending, disjoint and not adjacent.
    pub fn ranges(&self) -> &[SlotRange] {
        &self.0
    }

    /// Every slot, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|range| range.start..=range.end)
    }

    /// Number of slots, 0 to 16384.
    pub fn len(&self) -> u16 {
        self.0.iter().map(|range| range.count()).sum()
    }

    /// No slot at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: u16) -> bool {
        let after = self.0.partition_point(|range| range.start <= slot);
        after.checked_sub(1).and_then(|index| self.0.get(index)).is_some_and(|range| slot <= range.end)
    }

    /// Adds a range.
    pub fn insert_range(&mut self, range: SlotRange) {
        *self = Self::from_ranges(self.0.iter().copied().chain([range]));
    }

    /// Slots in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from_ranges(self.0.iter().chain(&other.0).copied())
    }

    /// Slots in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            if let Some(range) = SlotRange::new(a.start.max(b.start), a.end.min(b.end)) {
                common.push(range);
            }
            if a.end < b.end {
                left.next()
            } else {
                right.next()
            };
        }
        Self(common)
    }

    /// Slots of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        for range in &self.0 {
            let mut next = Some(range.start);
            for cut in other.0.iter().filter(|cut| cut.end >= range.start && cut.start <= range.end) {
                if let (Some(start), Some(end)) = (next, cut.start.checked_sub(1))
                    && start <= end
                {
                    rest.push(SlotRange { start, end });
                }
                next = (cut.end < range.end).then_some(cut.end + 1);
            }
            if let Some(start) = next {
                rest.push(SlotRange { start, end: range.end });
            }
        }
        Self(rest)
    }

    /// Whether the sets share a slot.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The first `count` slots, ascending (all of them when there are fewer).
    #[must_use]
    pub fn take(&self, count: u16) -> Self {
        let mut left = count;
        let mut taken = Vec::new();
        for range in &self.0 {
            if left == 0 {
                break;
            }
            let count = range.count().min(left);
            taken.push(SlotRange { start: range.start, end: range.start + count - 1 });
            left -= count;
        }
        Self(taken)
    }
}

impl FromIterator<SlotRange> for SlotSet {
    fn from_iter<I: IntoIterator<Item = SlotRange>>(ranges: I) -> Self {
        Self::from_ranges(ranges)
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            fmt::Display::fmt(range, f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// How many slots shard `index` of `shards` holds in an even spread: 16384/shards rounded down, the first
/// 16384 mod shards shards one more. 0 for an index past the last shard or no shards at all.
pub fn even_share(index: u16, shards: u16) -> u16 {
    if index >= shards {
        return 0;
    }
    SLOT_COUNT / shards + u16::from(index < SLOT_COUNT % shards)
}

/// The contiguous ranges of a fresh cluster of `shards` shards (1 to 16384), in shard order: together all slots, each
/// exactly once. Empty when `shards` is out of range.
pub fn contiguous_spread(shards: u16) -> Vec<SlotRange> {
    if shards > SLOT_COUNT {
        return Vec::new();
    }
    let mut start = 0;
    (0..shards)
        .map(|index| {
            let range = SlotRange { start, end: start + even_share(index, shards) - 1 };
            start = range.end + 1;
            range
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = SlotRange> {
        (0..SLOT_COUNT, 0..200u16)
            .prop_map(|(start, more)| SlotRange { start, end: (start + more).min(SLOT_COUNT - 1) })
    }

    fn set() -> impl Strategy<Value = SlotSet> {
        prop::collection::vec(range(), 0..12).prop_map(SlotSet::from_ranges)
    }

    fn plain(set: &SlotSet) -> BTreeSet<u16> {
        set.iter().collect()
    }

    fn is_normal(set: &SlotSet) -> bool {
        set.ranges().windows(2).all(|pair| pair[0].end + 1 < pair[1].start)
            && set.ranges().iter().all(|range| range.start <= range.end && range.end < SLOT_COUNT)
    }

    proptest! {
        #[test]
        fn set_operations_agree_with_a_plain_set(a in set(), b in set()) {
            let (left, right) = (plain(&a), plain(&b));
            for (ours, theirs) in [
                (a.union(&b), left.union(&right).copied().collect::<BTreeSet<_>>()),
                (a.intersection(&b), left.intersection(&right).copied().collect()),
                (a.difference(&b), left.difference(&right).copied().collect()),
            ] {
                prop_assert!(is_normal(&ours), "{ours:?}");
                prop_assert_eq!(plain(&ours), theirs);
            }
            prop_assert_eq!(usize::from(a.len()), left.len());
            prop_assert_eq!(a.intersects(&b), !left.is_disjoint(&right));
        }

        #[test]
        fn membership_agrees_with_a_plain_set(a in set(), slot in 0..SLOT_COUNT) {
            prop_assert_eq!(a.contains(slot), plain(&a).contains(&slot));
        }

        #[test]
        fn taking_yields_the_lowest_slots(a in set(), count in 0..600u16) {
            let taken = a.take(count);
            prop_assert!(is_normal(&taken));
            prop_assert_eq!(plain(&taken), plain(&a).into_iter().take(usize::from(count)).collect::<BTreeSet<_>>());
        }

        #[test]
        fn an_even_spread_covers_every_slot_once_and_differs_by_at_most_one(shards in 1..=SLOT_COUNT) {
            let ranges = contiguous_spread(shards);
            prop_assert_eq!(ranges.len(), usize::from(shards));
            prop_assert_eq!(SlotSet::from_ranges(ranges.iter().copied()), SlotSet::all());
            prop_assert_eq!(ranges.iter().map(|range| u32::from(range.count())).sum::<u32>(), u32::from(SLOT_COUNT));
            let (least, most) = (SLOT_COUNT / shards, SLOT_COUNT.div_ceil(shards));
            prop_assert!(ranges.iter().all(|range| (least..=most).contains(&range.count())));
        }
    }

    #[test]
    fn sets_read_as_ranges() {
        let set = SlotSet::from_ranges([
            SlotRange { start: 30, end: 39 },
            SlotRange { start: 5, end: 5 },
            SlotRange { start: 6, end: 9 },
        ]);
        assert_eq!(set.to_string(), "5-9 30-39");
        assert_eq!(SlotSet::all().len(), 16384);
    }
}
