//! Members that lost sight of each other: a part of the cluster that the rest does not know is introduced again.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::Lifecycle;
use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::picture::Picture;
use super::shards::is_itself;
use super::{Verdict, view};
use crate::action::{Action, Decision};
use crate::model::{Desired, Member, Observed};
use crate::words::Reason;

/// One listing the other is enough to belong together: the engine does the rest.
type Island<'a> = Vec<(&'a Member, &'a NodeReport)>;

/// A joined member of an island is introduced to an owner on the mainland: who missed its introductions finds nobody by
/// itself. Never two islands that claim the same slots: whose data would go is not ours to choose.
pub(super) fn introduce(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    let islands = islands(seen);
    if islands.len() < 2 {
        return Verdict::Pass;
    }
    let largest = islands.iter().enumerate().max_by_key(|(_, island)| (claims(island).len(), island.len()));
    let Some((main, mainland)) = largest else { return Verdict::Pass };
    let owned = claims(mainland);
    let mut waits = Vec::new();
    for (_, island) in islands.iter().enumerate().filter(|(number, _)| *number != main) {
        let joined = |(member, _): &&(&Member, &NodeReport)| member.spec.lifecycle == Lifecycle::Active;
        let Some((member, _)) = island.iter().find(joined) else { continue };
        if claims(island).intersects(&owned) {
            let message =
                format!("{} does not know the others, and both own {}", member.name, claims(island));
            return Verdict::wait(Reason::SlotConflict, message);
        }
        if let Some(wait) = view::ban_wait(seen, member) {
            waits.push(wait);
            continue;
        }
        let seed = mainland.iter().find(|(_, report)| report.myself().is_some_and(|it| !it.slots.is_empty()));
        let Some((seed, report)) = seed else { continue };
        if report.nodes.handshakes() > 0 {
            return Verdict::wait(
                Reason::NodesMeeting,
                format!("{} is introduced to the others again", member.name),
            );
        }
        let (Some(seed), Some(other)) = (view::target(seed), view::target(member)) else { continue };
        let message = format!("introducing {} to {} again: nobody knows it", member.name, seed.node.name);
        let action = Action::Meet { seed, others: vec![other] };
        return Verdict::act(Decision::act(action, Reason::MeetingNodes, message).with_waits(waits));
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// The answering members that stay, by who knows whom: the island with the highest name first, in each the highest name
/// before the others in their order.
fn islands(seen: &Observed) -> Vec<Island<'_>> {
    let mut members: Island<'_> = seen
        .reports()
        .filter(|(member, report)| !member.deleting && is_itself(member, report))
        .filter(|(member, _)| member.spec.lifecycle != Lifecycle::Leaving)
        .collect();
    members.reverse();
    let groups = acquainted(&members);
    let mut islands: BTreeMap<usize, Island<'_>> = BTreeMap::new();
    for (group, member) in groups.into_iter().zip(members) {
        islands.entry(group).or_default().push(member);
    }
    let mut islands: Vec<Island<'_>> = islands.into_values().collect();
    for others in islands.iter_mut().filter_map(|island| island.get_mut(1..)) {
        others.reverse();
    }
    islands
}

/// For each of `members` the first one that it is acquainted with, over others too. A view that all share is looked at
/// once, and none any more when all are acquainted.
fn acquainted(members: &Island<'_>) -> Vec<usize> {
    let mut by_id: Vec<(NodeId, usize)> =
        members.iter().enumerate().map(|(place, (_, report))| (report.id, place)).collect();
    by_id.sort_unstable();
    let mut groups = Groups { parents: (0..members.len()).collect(), left: members.len() };
    let mut looked_at = BTreeSet::new();
    for (place, (_, report)) in members.iter().enumerate() {
        if groups.left <= 1 {
            break;
        }
        let lines = report.nodes.common();
        let lists_itself = report.myself().is_some_and(|line| !line.flags.handshake);
        if !looked_at.insert(lines.as_ptr()) && lists_itself {
            continue;
        }
        let mut known = by_id.iter().peekable();
        for line in lines.iter().filter(|line| !line.flags.handshake) {
            while known.next_if(|(id, _)| *id < line.id).is_some() {}
            while let Some((_, other)) = known.next_if(|(id, _)| *id == line.id) {
                groups.unite(place, *other);
            }
        }
    }
    (0..members.len()).map(|place| groups.first(place)).collect()
}

/// Disjoint groups of places, each named by its lowest.
struct Groups {
    parents: Vec<usize>,
    /// Number of groups.
    left: usize,
}

impl Groups {
    fn first(&mut self, place: usize) -> usize {
        let mut first = place;
        while let Some(parent) = self.parents.get(first).copied().filter(|parent| *parent != first) {
            first = parent;
        }
        let mut next = place;
        while let Some(parent) = self.parents.get_mut(next).filter(|parent| **parent != first) {
            next = std::mem::replace(parent, first);
        }
        first
    }

    fn unite(&mut self, left: usize, right: usize) {
        let (left, right) = (self.first(left), self.first(right));
        if left != right
            && let Some(parent) = self.parents.get_mut(left.max(right))
        {
            *parent = left.min(right);
            self.left -= 1;
        }
    }
}

fn claims(island: &Island<'_>) -> SlotSet {
    let own = island.iter().filter_map(|(_, report)| report.myself());
    own.flat_map(|line| line.slots.ranges().iter().copied()).collect()
}
