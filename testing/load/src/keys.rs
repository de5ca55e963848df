//! Keys over all slots: which there are, of which type, how large.
//!
//! Pure and deterministic: the same number of keys gives the same keys.

use shared::slots::SLOT_COUNT;

/// Bytes of an ordinary value.
const ORDINARY: usize = 100;
/// Bytes of a large value.
const LARGE: usize = 64 * 1024;
/// One in so many strings is large.
const LARGE_EVERY: usize = 131;

/// What kind of value a key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A string.
    Text,
    /// A string that expires in a day.
    Lasting,
    /// A string that expires within [`crate::data::FLEETING`].
    Fleeting,
    /// A hash of two fields.
    Hash,
    /// A list of the latest numbers.
    List,
    /// A set of the latest numbers.
    Set,
    /// A sorted set of the latest numbers.
    Sorted,
    /// A stream of the latest numbers.
    Stream,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Text,
        Self::Hash,
        Self::List,
        Self::Set,
        Self::Sorted,
        Self::Stream,
        Self::Lasting,
        Self::Fleeting,
    ];

    /// Whether the key holds the latest number only, not the latest few.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Text | Self::Lasting | Self::Fleeting | Self::Hash)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Lasting => "lasting",
            Self::Fleeting => "fleeting",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::Sorted => "sorted",
            Self::Stream => "stream",
        }
    }
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Its slot.
    pub slot: u16,
    /// What is in it.
    pub kind: Kind,
    /// Bytes of padding in a value.
    pub size: usize,
}

/// `count` keys, evenly over the slots, the kinds in turn.
pub fn entries(count: usize) -> Vec<Entry> {
    let tags = tags();
    (0..count)
        .filter_map(|index| {
            let slot = spread(index, count);
            // Each round over the slots starts with another kind, so that every slot comes to hold every kind.
            let turn = index + index / usize::from(SLOT_COUNT);
            let kind = *Kind::ALL.get(turn % Kind::ALL.len())?;
            let large = kind == Kind::Text && (index / Kind::ALL.len()).is_multiple_of(LARGE_EVERY);
            let tag = tags.get(usize::from(slot))?;
            Some(Entry {
                key: format!("{{{tag}}}:{}:{index}", kind.word()),
                slot,
                kind,
                size: if large { LARGE } else { ORDINARY },
            })
        })
        .collect()
}

/// A key of the slot, for a purpose of its own.
pub fn key_in(tags: &[String], slot: u16, purpose: &str) -> Option<String> {
    Some(format!("{{{}}}:{purpose}", tags.get(usize::from(slot))?))
}

/// A hash tag for each slot.
pub fn tags() -> Vec<String> {
    let mut tags = vec![String::new(); usize::from(SLOT_COUNT)];
    let mut missing = tags.len();
    let mut number = 0_u64;
    while missing > 0 {
        let tag = number.to_string();
        number += 1;
        if let Some(place) = tags.get_mut(usize::from(slot_of_tag(&tag)))
            && place.is_empty()
        {
            *place = tag;
            missing -= 1;
        }
    }
    tags
}

/// The slot of a hash tag: CRC16 (XMODEM) modulo 16384.
pub fn slot_of_tag(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOT_COUNT
}

fn spread(index: usize, count: usize) -> u16 {
    let slots = usize::from(SLOT_COUNT);
    let slot = if count < slots { index * slots / count.max(1) } else { index % slots };
    u16::try_from(slot).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn slots_are_those_of_the_engine() {
        // CLUSTER KEYSLOT of Valkey 9.1.
        assert_eq!(slot_of_tag("123456789"), 12739);
        assert_eq!(slot_of_tag("foo"), 12182);
    }

    #[test]
    fn every_slot_has_a_key_of_its_own_tag() {
        for (slot, tag) in tags().iter().enumerate() {
            assert_eq!(usize::from(slot_of_tag(tag)), slot, "{tag}");
        }
    }

    #[test]
    fn keys_meet_all_slots_all_kinds_and_both_sizes() {
        let entries = entries(40_000);
        assert_eq!(entries.len(), 40_000);
        let slots: BTreeSet<u16> = entries.iter().map(|it| it.slot).collect();
        assert_eq!(slots.len(), usize::from(SLOT_COUNT));
        let kinds: BTreeSet<Kind> = entries.iter().map(|it| it.kind).collect();
        assert_eq!(kinds, BTreeSet::from(Kind::ALL));
        assert!(entries.iter().any(|it| it.size == LARGE));
        let names: BTreeSet<&str> = entries.iter().map(|it| it.key.as_str()).collect();
        assert_eq!(names.len(), entries.len());
    }

    #[test]
    fn few_keys_are_spread_over_the_whole_range() {
        let slots: Vec<u16> = entries(4).iter().map(|it| it.slot).collect();
        assert_eq!(slots, [0, 4096, 8192, 12288]);
    }
}
