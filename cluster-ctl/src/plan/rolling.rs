//! Rolling: nodes whose spec is outdated are replaced, one shard at a time, new before old, one hand-over per shard.

use shared::api::{JoinType, Lifecycle};

use super::outdated::is_outdated;
use super::shards::{Shard, kept, shards};
use super::{Verdict, retire, start, view};
use crate::action::{Action, Decision};
use crate::model::{Desired, Member, Observed};
use crate::words::Reason;

/// The next step of the lowest shard that has an outdated member.
///
/// A new node joins as a replica and syncs; only above the target is an outdated replica retired; when only the
/// primary is outdated it hands over to an up-to-date replica and is retired as one. So the shard is never below its
/// target, and clients see one hand-over.
pub(super) fn roll(seen: &Observed, want: &Desired) -> Verdict {
    let Ok(template) = &want.template else { return Verdict::Pass };
    let keep = kept(seen, want);
    let all = shards(seen);
    // A Leaving member that still owns slots was promoted after it was marked.
    let outdated =
        |member: &Member| is_outdated(&member.spec, template) || member.spec.lifecycle == Lifecycle::Leaving;
    let Some(shard) = all
        .values()
        .filter(|shard| keep.contains(&shard.index))
        .find(|shard| shard.members().any(|(member, _)| outdated(member)))
    else {
        return Verdict::Pass;
    };
    if shard.open_jobs().next().is_some() {
        return Verdict::wait(
            Reason::Rolling,
            format!("shard {} waits for its slot migrations", shard.index),
        );
    }
    let serving = shard.synced().count();
    let target = usize::from(want.shape.replicas);
    if serving <= target {
        return start::replacement_for(seen, want, shard.index, JoinType::Replica, Reason::Rolling);
    }
    let replica =
        shard.synced().filter(|(member, _)| outdated(member)).max_by_key(|(member, _)| member.name.clone());
    if let Some((member, _)) = replica {
        return retire::begin(member, Reason::Rolling, "its spec is outdated and its successor is in sync");
    }
    hand_over(seen, want, shard, template)
}

/// The coordinated hand-over of an outdated primary to an up-to-date, synced, published replica.
fn hand_over(
    seen: &Observed,
    want: &Desired,
    shard: &Shard<'_>,
    template: &shared::api::ValkeyNodeSpec,
) -> Verdict {
    let (primary, report) = shard.primary;
    let fit: Vec<&Member> = shard
        .synced()
        .map(|(member, _)| member)
        .filter(|member| !is_outdated(&member.spec, template))
        .filter(|member| member.pod.as_ref().is_some_and(|pod| pod.joined && !pod.deleting))
        .collect();
    let others: Vec<&Member> = shards(seen)
        .values()
        .filter(|other| other.index != shard.index)
        .map(|other| other.primary.0)
        .collect();
    let Some(on) = view::least_crowded(&fit, &others).and_then(view::target) else {
        return Verdict::wait(
            Reason::Rolling,
            format!("shard {} waits until its new replica is published", shard.index),
        );
    };
    if seen.handed_over_lately(report.id, want.patience.hand_over_millis) {
        return Verdict::wait(Reason::Rolling, format!("shard {} is handing over", shard.index));
    }
    let message = format!("{} hands over to {}", primary.name, on.node.name);
    let action =
        Action::Failover { kind: shared::valkey::commands::FailoverKind::Planned, on, from: report.id };
    Verdict::act(Decision::act(action, Reason::Rolling, message))
}

/// Replicas beyond the target in a shard that is not rolling. Never the only one in sync while one is wanted.
pub(super) fn remove_excess(seen: &Observed, want: &Desired) -> Verdict {
    let target = usize::from(want.shape.replicas);
    let keep = kept(seen, want);
    for shard in shards(seen).values().filter(|shard| keep.contains(&shard.index)) {
        let rolling = want
            .template
            .as_ref()
            .is_ok_and(|template| shard.members().any(|(member, _)| is_outdated(&member.spec, template)));
        let replicas: Vec<&Member> = shard
            .replicas
            .iter()
            .map(|(member, _)| *member)
            .filter(|member| member.spec.lifecycle == Lifecycle::Active)
            .collect();
        if rolling || replicas.len() <= target {
            continue;
        }
        let synced: Vec<&str> = shard.synced().map(|(member, _)| member.name.as_str()).collect();
        // Those out of sync first; of equals the highest name, so that every tick chooses the same.
        let choice = replicas
            .iter()
            .max_by_key(|member| (!synced.contains(&member.name.as_str()), member.name.clone()));
        let spares_last = |member: &Member| target == 0 || synced.iter().any(|name| *name != member.name);
        if let Some(member) = choice.filter(|member| spares_last(member)) {
            return retire::begin(member, Reason::Scaling, "its shard has more replicas than asked for");
        }
    }
    Verdict::Pass
}
