//! Virtual time and what is due at which moment. Nothing in the simulation knows any other clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::world::World;

/// Virtual milliseconds since the Unix epoch.
pub type Ms = i64;

/// When every simulation starts: some moment, the same for all.
pub const START: Ms = 1_800_000_000_000;

/// Something that happens in the world.
pub type Effect = Box<dyn FnOnce(&mut World) + Send>;

/// What is due, in order of time; of two at one moment the one that was planned first comes first.
#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    planned: u64,
}

struct Entry {
    at: Ms,
    number: u64,
    effect: Effect,
}

impl Queue {
    /// Plans `effect` for the moment `at`.
    pub fn plan(&mut self, at: Ms, effect: impl FnOnce(&mut World) + Send + 'static) {
        self.planned += 1;
        self.heap.push(Entry { at, number: self.planned, effect: Box::new(effect) });
    }

    /// When the next thing is due.
    pub fn next(&self) -> Option<Ms> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes what is due at `now`.
    pub fn due(&mut self, now: Ms) -> Option<Effect> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.effect)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives its greatest first.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
