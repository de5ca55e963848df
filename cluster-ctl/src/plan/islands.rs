//! Members that lost sight of each other: a part of the cluster that the rest does not know is introduced again.

use std::collections::BTreeSet;

use shared::api::Lifecycle;
use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::shards::is_itself;
use super::{Verdict, view};
use crate::action::{Action, Decision};
use crate::model::{Desired, Member, Observed};
use crate::words::Reason;

/// One listing the other is enough to belong together: the engine does the rest.
type Island<'a> = Vec<(&'a Member, &'a NodeReport)>;

/// A joined member of an island is introduced to an owner on the mainland: who missed its introductions finds nobody by
/// itself. Never two islands that claim the same slots: whose data would go is not ours to choose.
pub(super) fn introduce(seen: &Observed, _want: &Desired) -> Verdict {
    let islands = islands(seen);
    let Some(mainland) = islands.iter().max_by_key(|island| (claims(island).len(), island.len())) else {
        return Verdict::Pass;
    };
    let owned = claims(mainland);
    for island in &islands {
        let joined = |(member, report): &&(&Member, &NodeReport)| {
            member.spec.lifecycle == Lifecycle::Active && !is_of(mainland, report.id)
        };
        let Some((member, _)) = island.iter().find(joined) else { continue };
        if claims(island).intersects(&owned) {
            let message =
                format!("{} does not know the others, and both own {}", member.name, claims(island));
            return Verdict::wait(Reason::SlotConflict, message);
        }
        let seed = mainland.iter().find(|(_, report)| report.myself().is_some_and(|it| !it.slots.is_empty()));
        let Some((seed, report)) = seed else { continue };
        if report.nodes.iter().any(|line| line.flags.handshake) {
            return Verdict::wait(
                Reason::NodesMeeting,
                format!("{} is introduced to the others again", member.name),
            );
        }
        let (Some(seed), Some(other)) = (view::target(seed), view::target(member)) else { continue };
        let message = format!("introducing {} to {} again: nobody knows it", member.name, seed.node.name);
        let action = Action::Meet { seed, others: vec![other] };
        return Verdict::act(Decision::act(action, Reason::MeetingNodes, message));
    }
    Verdict::Pass
}

/// The answering members that stay, by who knows whom.
fn islands(seen: &Observed) -> Vec<Island<'_>> {
    let mut left: Island<'_> = seen
        .reports()
        .filter(|(member, report)| !member.deleting && is_itself(member, report))
        .filter(|(member, _)| member.spec.lifecycle != Lifecycle::Leaving)
        .collect();
    let mut islands = Vec::new();
    while let Some(first) = left.pop() {
        let mut island = vec![first];
        let mut known: BTreeSet<NodeId> = known_by(first.1).collect();
        loop {
            let (near, far): (Island<'_>, Island<'_>) = left.into_iter().partition(|(_, report)| {
                known.contains(&report.id) || known_by(report).any(|id| is_of(&island, id))
            });
            left = far;
            let last = near.is_empty() || left.is_empty();
            if !last {
                known.extend(near.iter().flat_map(|(_, report)| known_by(report)));
            }
            island.extend(near);
            if last {
                break;
            }
        }
        islands.push(island);
    }
    islands
}

fn known_by(report: &NodeReport) -> impl Iterator<Item = NodeId> + '_ {
    report.nodes.iter().filter(|line| !line.flags.handshake).map(|line| line.id)
}

fn is_of(island: &Island<'_>, id: NodeId) -> bool {
    island.iter().any(|(_, report)| report.id == id)
}

fn claims(island: &Island<'_>) -> SlotSet {
    let own = island.iter().filter_map(|(_, report)| report.myself());
    own.flat_map(|line| line.slots.ranges().iter().copied()).collect()
}
