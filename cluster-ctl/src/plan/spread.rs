//! Which member of each shard becomes primary, so that no machine carries more primaries than it must.
//!
//! Data in, data out. Not chosen here: who may become primary at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::view::machine;
use crate::model::Member;

/// By shard index: the members of which one becomes primary.
pub(super) type Candidates<'a> = BTreeMap<u16, Vec<&'a Member>>;
/// By shard index: its primary.
pub(super) type Primaries<'a> = BTreeMap<u16, &'a Member>;

/// Moves primaries within their shards until no machine carries two more than one that could take over. Choices that
/// looked alike one by one may end on one machine together; a move may take others along from machine to machine. So
/// the number of primaries on the fullest machine becomes the lowest that is possible.
pub(super) fn even_out<'a>(chosen: &mut Primaries<'a>, candidates: &Candidates<'a>) {
    while let Some(path) = improvement(chosen, candidates) {
        chosen.extend(path);
    }
}

/// Changes that take one primary from a full machine and bring one to a machine with at least two fewer.
fn improvement<'a>(chosen: &Primaries<'a>, candidates: &Candidates<'a>) -> Option<Primaries<'a>> {
    let mut on: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for (index, primary) in chosen {
        if let Some(machine) = machine(primary) {
            on.entry(machine).or_default().push(*index);
        }
    }
    let load = |machine: &str| on.get(machine).map_or(0, Vec::len);
    let mut starts: Vec<&str> = on.keys().copied().collect();
    starts.sort_by_key(|machine| (std::cmp::Reverse(load(machine)), *machine));
    // What a fuller machine did not reach, or reached in vain, is of no use to one that is less full.
    let mut visited: BTreeSet<&str> = BTreeSet::new();
    for start in starts {
        if !visited.insert(start) {
            continue;
        }
        // By machine: whence it was reached, and by which change.
        let mut reached: BTreeMap<&str, (&str, u16, &'a Member)> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(from) = next.pop_front() {
            for index in on.get(from).into_iter().flatten() {
                for member in candidates.get(index).into_iter().flatten() {
                    let Some(to) = machine(member).filter(|to| visited.insert(to)) else { continue };
                    reached.insert(to, (from, *index, member));
                    if load(to) + 2 <= load(start) {
                        return Some(path(&reached, to));
                    }
                    next.push_back(to);
                }
            }
        }
    }
    None
}

fn path<'a>(reached: &BTreeMap<&str, (&str, u16, &'a Member)>, end: &str) -> Primaries<'a> {
    let mut changes = Primaries::new();
    let mut at = end;
    while let Some((from, index, member)) = reached.get(at) {
        changes.insert(*index, member);
        at = from;
    }
    changes
}
