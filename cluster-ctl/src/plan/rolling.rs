//! Replacing live members: nodes whose spec is outdated, and nodes that Kubernetes gave up although they still run.
//! One shard at a time, new before old, one hand-over per shard.

use shared::api::{JoinType, Lifecycle};
use shared::valkey::commands::FailoverKind;
use shared::valkey::info::Role;

use super::outdated::is_outdated;
use super::picture::Picture;
use super::shards::{Shard, is_itself};
use super::view::Crowd;
use super::{Verdict, retire, stability, start, view};
use crate::action::{Action, Decision, Wait};
use crate::model::{Desired, Member};
use crate::words::Reason;

/// Nodes with an outdated spec.
pub(super) fn roll(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let Ok(template) = &want.template else { return Verdict::Pass };
    let goes = |member: &Member| is_outdated(&member.spec, template);
    Replacement { seen, want, goes: &goes, reason: Reason::Rolling, why: "its spec is outdated" }.step()
}

/// Members that Kubernetes gave up although they still run: a Pod that should have ended by now (a dead kubelet), or a
/// Leaving member that was promoted after it was marked. A Pod that is only being deleted goes by itself; while its
/// server still answers, the role and the data of a primary go to a replica first.
pub(super) fn evacuate(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let goes = |member: &Member| {
        let promoted = member.spec.lifecycle == Lifecycle::Leaving
            && member.recorded_id.is_some_and(|id| !seen.slots_of(id).is_empty());
        promoted || member.pod.as_ref().is_some_and(|pod| pod.overdue)
    };
    let replacement =
        Replacement { seen, want, goes: &goes, reason: Reason::Evacuating, why: "Kubernetes gave it up" };
    match replacement.step() {
        Verdict::Pass => let_go(seen, want),
        verdict => verdict,
    }
}

/// Members whose Pods are on their way out and whose servers answer until the Pod's preStop hook is over. A coordinated
/// hand-over stalls writes for a tenth of what the engine's own at SIGTERM does, and works with one and two shards,
/// where that fails for want of votes (facts §8, §9).
fn let_go(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let ends = |member: &Member| member.pod.as_ref().is_some_and(|pod| pod.deleting && !pod.overdue);
    let ending = seen.terminating().iter().filter(|member| member.report().is_some() && ends(member));
    let why = "its Pod was told to stop";
    let leaving = Replacement { seen, want, goes: &ends, reason: Reason::Evacuating, why };
    // A shard in the middle of a slot migration is left to the engine.
    let shards = seen.shards().values().filter(|shard| ends(shard.primary.0) && !shard.slots.is_empty());
    for shard in shards.filter(|shard| shard.open_jobs().next().is_none()) {
        let verdict = leaving.hand_over(shard, |what| Verdict::wait(leaving.reason, what));
        if matches!(verdict, Verdict::Act(_)) {
            return verdict;
        }
    }
    let waits: Vec<Wait> = ending
        .map(|member| Wait { reason: Reason::PodTerminating, message: view::terminating_words(member) })
        .collect();
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// The replacement of the members that `goes` names.
struct Replacement<'a, 'o> {
    seen: &'a Picture<'o>,
    want: &'a Desired,
    goes: &'a dyn Fn(&Member) -> bool,
    reason: Reason,
    why: &'a str,
}

impl Replacement<'_, '_> {
    /// The next step of the lowest shard that has a member to go.
    ///
    /// A new node joins as a replica and syncs; only above the target is a replica retired; when only the primary is to
    /// go it hands over to a replica that stays and is retired as one. So the shard is never below its target, and
    /// clients see one hand-over.
    fn step(&self) -> Verdict {
        let (keep, all) = (self.seen.kept(), self.seen.shards());
        let mut kept_shards = all.values().filter(|shard| keep.contains(&shard.index));
        let is_due = |shard: &&Shard<'_>| {
            shard.members().any(|(member, _)| (self.goes)(member)) || self.between_roles(shard).is_some()
        };
        let Some(shard) = kept_shards.find(is_due) else {
            return Verdict::Pass;
        };
        let wait = |what: &str| Verdict::wait(self.reason, format!("shard {} {what}", shard.index));
        if let Some(member) = self.between_roles(shard) {
            return wait(&format!("waits until {} has become its replica", member.name));
        }
        if shard.open_jobs().next().is_some() {
            return wait("waits for its slot migrations");
        }
        let serving = shard.synced().filter(|(member, _)| self.serves(member)).count();
        let needed = self.replicas_needed(shard);
        if serving < needed {
            // Whoever is on the way to sync counts: a second successor would be one too many.
            if self.present(shard) > needed {
                return wait("waits until its replicas are in sync");
            }
            return start::replacement_for(self.seen, self.want, shard.index, JoinType::Replica, self.reason);
        }
        let replicas = shard.replicas.iter().map(|(member, _)| *member);
        let mut going = replicas.filter(|member| (self.goes)(member)).collect::<Vec<_>>();
        going.sort_by_key(|member| (member.spec.lifecycle == Lifecycle::Active, &member.name));
        match going.last() {
            Some(member) if member.spec.lifecycle == Lifecycle::Active => {
                let why = format!("{} and its successor is in sync", self.why);
                return retire::begin(member, self.reason, &why);
            }
            Some(member) if !(self.goes)(shard.primary.0) => {
                return wait(&format!("waits until {} has joined or left", member.name));
            }
            Some(_) | None => {}
        }
        self.hand_over(shard, wait)
    }

    /// A member to go that answers and is neither the shard's primary nor its replica: in the moment of a hand-over what it
    /// says of its role and what it says of the cluster may be from before and after. The shard is not done without it.
    fn between_roles(&self, shard: &Shard<'_>) -> Option<&Member> {
        let idle = second_primary(self.seen, shard).map(|member| &member.name);
        let itself = self.seen.reports_of(shard.index).filter(|(member, report)| is_itself(member, report));
        let answering = itself.map(|(member, _)| member);
        let mut going = answering.filter(|member| {
            member.spec.lifecycle == Lifecycle::Active && (self.goes)(member) && Some(&member.name) != idle
        });
        going.find(|member| shard.members().all(|(other, _)| other.name != member.name))
    }

    /// Replicas that must serve before anybody goes: one above the target where one of them goes itself or takes over.
    fn replicas_needed(&self, shard: &Shard<'_>) -> usize {
        let all_stay = self.reason == Reason::Evacuating && !(self.goes)(shard.primary.0);
        usize::from(self.want.shape.replicas) + usize::from(!all_stay)
    }

    /// A Pod past its end may go at any moment: it does not count as a copy.
    fn serves(&self, member: &Member) -> bool {
        self.reason != Reason::Evacuating || !(self.goes)(member)
    }

    /// Members of the shard that live and stay.
    fn present(&self, shard: &Shard<'_>) -> usize {
        self.seen
            .staying_of(shard.index)
            .filter(|member| member.spec.lifecycle != Lifecycle::Leaving)
            .filter(|member| !stability::is_missing(self.seen, self.want, member))
            .filter(|member| member.name == shard.primary.0.name || self.serves(member))
            .count()
    }

    /// The coordinated hand-over of the primary to a replica that stays, is in sync and published.
    fn hand_over(&self, shard: &Shard<'_>, wait: impl Fn(&str) -> Verdict) -> Verdict {
        let (primary, report) = shard.primary;
        let fit: Vec<&Member> = shard
            .synced()
            .map(|(member, _)| member)
            .filter(|member| !(self.goes)(member))
            .filter(|member| member.pod.as_ref().is_some_and(|pod| pod.published && !pod.deleting))
            .collect();
        let others = self.seen.shards().values().filter(|other| other.index != shard.index);
        let crowd: Crowd<'_> = others.map(|other| other.primary.0).collect();
        let Some(on) = crowd.least(fit).and_then(view::target) else {
            return wait("waits until its new replica is published");
        };
        // A link is up for a replica up to a second before its primary has heard from it; only then is it known how far
        // it lags, which is what a hand-over waits for.
        let acknowledged = report.info.replicas.iter().filter(|link| link.online && link.lag <= 1).count();
        if acknowledged < shard.replicas.len() {
            return wait("waits until its primary hears from every replica");
        }
        // A node that counts the replica to another shard than its primary makes a circle of the two at a hand-over, and
        // one that follows the old primary then asks itself for ever who its primary is, and answers nobody (seen with 9.1.2).
        let parting = self.seen.reports().find(|(_, report)| report.parted.contains(&on.id));
        if let Some((observer, _)) = parting {
            return wait(&format!("waits until {} counts {} to the shard", observer.name, on.node.name));
        }
        if self.seen.handed_over_lately(report.id, self.want.patience.hand_over_millis) {
            return wait("is handing over");
        }
        let message = format!("{} hands over to {}", primary.name, on.node.name);
        let action = Action::Failover { kind: FailoverKind::Planned, on, from: report.id };
        Verdict::act(Decision::act(action, self.reason, message))
    }
}

/// A member that came back as a primary of nothing while another serves its shard: it is no replica of it, and would be
/// counted as one.
fn second_primary<'a>(seen: &Picture<'a>, shard: &Shard<'_>) -> Option<&'a Member> {
    if shard.slots.is_empty() {
        return None;
    }
    let idle = seen.reports_of(shard.index).find(|(member, report)| {
        member.name != shard.primary.0.name
            && member.spec.lifecycle == Lifecycle::Active
            && report.info.role == Role::Primary
            && report.myself().is_some_and(|line| line.primary.is_none())
            && is_itself(member, report)
            && seen.slots_of(report.id).is_empty()
            && seen.followers(report.id).next().is_none()
    });
    idle.map(|(member, _)| member)
}

/// Replicas beyond the target in a shard that is not rolling. Never the only one in sync while one is wanted.
pub(super) fn remove_excess(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let target = usize::from(want.shape.replicas);
    let keep = seen.kept();
    for shard in seen.shards().values().filter(|shard| keep.contains(&shard.index)) {
        if let Some(member) = second_primary(seen, shard) {
            return retire::begin(member, Reason::Scaling, "another primary serves its shard");
        }
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
