//! What is done to a cluster: the commands that the operator sends, writes of clients, ends and pauses of processes.
//!
//! Owns the words for it. A sequence that failed is printed in them, and can be told again.

use shared::slots::SlotRange;
use shared::valkey::FailoverKind;

/// A node by the order in which the nodes came.
pub(crate) type Place = usize;

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// `CLUSTER SET-CONFIG-EPOCH` on a node.
    Epoch(Place, u64),
    /// `CLUSTER ADDSLOTSRANGE` on a node, first and last slot.
    Slots(Place, u16, u16),
    /// `CLUSTER MEET` on a node, of the address of another.
    Meet(Place, Place),
    /// `CLUSTER REPLICATE` on a node, of another as it is now.
    Replicate(Place, Place),
    /// `CLUSTER FORGET` on a node, of another in one of its lives: a reset or a restart begins a new one.
    Forget(Place, Place, usize),
    /// `CLUSTER FAILOVER` on a node.
    Failover(Place, FailoverKind),
    /// `CLUSTER RESET HARD` on a node.
    Reset(Place),
    /// `CLUSTER MIGRATESLOTS` on a node, first and last slot, to another.
    Migrate(Place, u16, u16, Place),
    /// A client writes a key of a slot to a node.
    Write(Place, u16),
    /// A process ends at once; its address refuses from then on.
    Kill(Place),
    /// A process stops: its address takes connections and says nothing.
    Freeze(Place),
    /// A stopped process goes on.
    Thaw(Place),
    /// A process ends, and an empty one starts at its address.
    Restart(Place),
    /// One more empty node starts.
    Start,
}

impl Op {
    /// The node that it is done to.
    pub(crate) fn on(self) -> Option<Place> {
        match self {
            Self::Epoch(on, _)
            | Self::Slots(on, ..)
            | Self::Meet(on, _)
            | Self::Replicate(on, _)
            | Self::Forget(on, ..)
            | Self::Failover(on, _)
            | Self::Reset(on)
            | Self::Migrate(on, ..)
            | Self::Write(on, _)
            | Self::Kill(on)
            | Self::Freeze(on)
            | Self::Thaw(on)
            | Self::Restart(on) => Some(on),
            Self::Start => None,
        }
    }

    /// Itself, if it `may` happen.
    pub(crate) fn filter(self, may: bool) -> Option<Self> {
        may.then_some(self)
    }

    /// Whether silence follows, of which others make something only after a node timeout.
    pub(crate) fn silences(self) -> bool {
        matches!(self, Self::Kill(_) | Self::Freeze(_) | Self::Thaw(_) | Self::Restart(_) | Self::Reset(_))
    }
}

/// Slots from the first to the last.
pub(crate) fn range(start: u16, end: u16) -> SlotRange {
    SlotRange { start, end }
}

/// A key of this slot.
pub(crate) fn key_of(slot: u16) -> String {
    let belongs = |tag: &String| {
        crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % shared::slots::SLOT_COUNT == slot
    };
    (0..=u32::MAX).map(|number| number.to_string()).find(belongs).unwrap_or_default()
}
