//! The primary of a shard is dead or silent and a replica holds its data: who takes over, when, and by which command.
//!
//! A dead primary is succeeded at once. A silent one is left to the engine's own failover; when that does not come, it is
//! succeeded by force where a majority agrees that it failed, or its Pod is ended so that its death is proved.

use std::collections::BTreeSet;

use shared::valkey::commands::FailoverKind;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{NodeId, NodeLine, Offset};

use super::picture::Picture;
use super::{Verdict, lost, view};
use crate::action::{Action, Decision, Wait};
use crate::model::{Container, Desired, Member, Observed};
use crate::words::Reason;

/// A copy whose link broke this much before its primary's end lacks what was written since, seconds. Less is what
/// clocks and the engine's own detection differ by.
const STALE_SECONDS: i64 = 15;
/// The link of a copy may break this much before the views miss the primary, milliseconds: one node timeout.
const LINK_MILLIS: i64 = 5_000;

/// A dead primary of a shard that has a copy: the best copy is promoted at once, by vote where a vote is possible.
pub(super) fn promote_replica(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for (id, dead) in seen.dead_owners().iter().copied() {
        let Some(best) = last_copy(seen, id) else { continue };
        let whole = best_copy(seen, id).is_some();
        let unknown = || lost::unknown_of_shard(seen, id, dead).filter(|_| !whole);
        let refused = promotion_refused(seen, id).or_else(|| {
            unknown().map(|member| {
                format!(
                    "{} of its shard, which may hold newer data, does not answer; it comes back, or its death is confirmed with the annotation {}",
                    member.name,
                    shared::names::ANNOTATION_CONFIRMED_DEAD
                )
            })
        });
        if let Some(why) = refused {
            let message = format!("{} is dead; {why}", dead.name);
            waits.push(Wait { reason: Reason::AwaitingFailover, message });
            continue;
        }
        let (Some(on), Some(report)) = (view::target(best), best.report()) else { continue };
        if seen.handed_over_lately(id, want.patience.promotion_millis) {
            let message = format!("{} is being promoted in the place of {}", best.name, dead.name);
            waits.push(Wait { reason: Reason::PromotingReplica, message });
            continue;
        }
        let (kind, what) = if can_vote(seen, report, id) {
            (FailoverKind::Force, format!("{} is dead, promoting {}", dead.name, best.name))
        } else {
            (FailoverKind::Takeover, format!("no quorum — issued TAKEOVER on replica {}", best.name))
        };
        let message = format!("{what}{}", what_is_lost(seen, dead, report, whole));
        let action = Action::Failover { kind, on, from: id };
        return Verdict::act(Decision::act(action, Reason::PromotingReplica, message).with_waits(waits));
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// Slot owners that are silent and not proved dead: the engine's own failover is awaited, then helped; or their death is
/// made certain; or a person is asked.
pub(super) fn end_silence(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.silent() {
        let Some(id) = member.id() else { continue };
        if seen.slots_of(id).is_empty() || !suspected(seen, id) {
            continue;
        }
        match silent_owner(seen, want, member, id) {
            Verdict::Act(decision) => return Verdict::Act(Box::new(decision.with_waits(waits))),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

fn silent_owner(seen: &Picture<'_>, want: &Desired, member: &Member, id: NodeId) -> Verdict {
    let name = &member.name;
    let machine = member.machine.as_deref().unwrap_or("an unknown machine");
    let confirm = format!(
        "it comes back, its machine proves its death, or a person confirms it with the annotation {}",
        shared::names::ANNOTATION_CONFIRMED_DEAD
    );
    let Some((best, copy)) = best_copy(seen, id).and_then(|best| Some((best, best.report()?))) else {
        let message = format!("{name} on {machine} does not answer and has no copy; {confirm}");
        return Verdict::wait(Reason::PrimaryUnreachable, message);
    };
    let long = seen.outage(id).filter(|millis| *millis > want.patience.failover_millis);
    let going = member.pod.as_ref().is_some_and(|pod| pod.deleting);
    if can_vote(seen, copy, id) {
        let waiting = format!("primary unhealthy but replicas exist, waiting for auto-failover: {name}");
        let wait = Verdict::wait(Reason::AwaitingFailover, waiting);
        let Some(outage) = long.filter(|_| !going && seen.failed_for_majority(id)) else { return wait };
        let whole = copy_was_linked_until(copy, outage) && promotion_refused(seen, id).is_none();
        if !whole || seen.handed_over_lately(id, want.patience.failover_millis) {
            return wait;
        }
        let Some(on) = view::target(best) else { return wait };
        let message = format!(
            "{name} has been silent for {} s and the engine promoted nobody, promoting {}",
            outage / 1000,
            best.name
        );
        let action = Action::Failover { kind: FailoverKind::Force, on, from: id };
        return Verdict::act(Decision::act(action, Reason::PromotingReplica, message));
    }
    if let Some(pod) = member.pod.as_ref().filter(|pod| pod.container == Container::Running) {
        let all = seen.lines_of(id).all(is_suspected);
        if all && long.is_some() && !going {
            let message = format!(
                "{name} on {machine} answers nobody and too few primaries are left to vote: ending its Pod, so that {} can take over",
                best.name
            );
            let action = Action::EndPod { node: view::node_ref(member), pod_uid: pod.uid.clone(), id };
            return Verdict::act(Decision::act(action, Reason::PrimaryUnreachable, message));
        }
    }
    let what = if going { "its Pod is being ended" } else { confirm.as_str() };
    let message =
        format!("{name} on {machine} does not answer and too few primaries are left to vote; {what}");
    Verdict::wait(Reason::PrimaryUnreachable, message)
}

/// The link of the copy was up until the primary fell silent: it has what the primary acknowledged, but for what was
/// under way.
fn copy_was_linked_until(copy: &NodeReport, outage: i64) -> bool {
    copy.info.link.as_ref().is_some_and(|link| {
        link.up || link.down_since_seconds.is_some_and(|down| down * 1000 <= outage + LINK_MILLIS)
    })
}

/// What a promotion costs, in the words for a person; empty when the copy had what its primary acknowledged.
fn what_is_lost(seen: &Observed, dead: &Member, copy: &NodeReport, whole: bool) -> String {
    if !whole {
        return format!(
            "; it holds the only data left, from before {} took over: what was written since is lost",
            dead.name
        );
    }
    behind_death(seen, dead, copy).map_or_else(String::new, |seconds| {
        format!(
            "; its copy is {seconds} s older than the death of {}: what was written since is lost",
            dead.name
        )
    })
}

/// How many seconds before the end of `dead` the link of this copy broke, if that is long.
fn behind_death(seen: &Observed, dead: &Member, copy: &NodeReport) -> Option<i64> {
    let since_death = seen.now.seconds_since(dead.ending()?.at?);
    let link = copy.info.link.as_ref().filter(|link| !link.up)?;
    Some(link.down_since_seconds? - since_death).filter(|behind| *behind > STALE_SECONDS)
}

/// Whether a replica of a dead primary holds a copy of its data: it finished its first sync and does nothing else.
fn is_copy(report: &NodeReport) -> bool {
    let linked = report
        .info
        .link
        .as_ref()
        .is_some_and(|link| link.up || link.down_since_seconds.is_some_and(|down| down >= 0));
    linked && holds_data(report)
}

/// The copy with the highest offset in its replication history, then the lowest name. Offsets of different histories do
/// not compare: the history is that of the copy whose link was up last.
pub(super) fn best_copy(seen: &Observed, dead: NodeId) -> Option<&Member> {
    let copies: Vec<(&Member, &NodeReport)> =
        seen.followers(dead).filter(|(_, report)| is_copy(report)).collect();
    let down = |report: &NodeReport| {
        let link = report.info.link.as_ref().filter(|link| !link.up);
        link.and_then(|link| link.down_since_seconds).unwrap_or(0)
    };
    let offset = |report: &NodeReport| report.info.link.as_ref().map(|link| link.offset);
    let (_, latest) = copies
        .iter()
        .min_by(|(_, a), (_, b)| down(a).cmp(&down(b)).then_with(|| offset(b).cmp(&offset(a))))?;
    let of_history = copies.iter().filter(|(_, it)| it.info.replication_id == latest.info.replication_id);
    of_history
        .max_by(|(left, a), (right, b)| offset(a).cmp(&offset(b)).then_with(|| right.name.cmp(&left.name)))
        .map(|(member, _)| *member)
}

/// The best copy of a dead primary, or, where there is none, the replica that holds older data: it was primary before the
/// dead one, came back when that one was gone, and could copy nothing from it. It is the only copy left.
pub(super) fn last_copy(seen: &Observed, dead: NodeId) -> Option<&Member> {
    best_copy(seen, dead).or_else(|| {
        let offset = |report: &NodeReport| report.info.link.as_ref().map(|link| link.offset);
        let holders = seen.followers(dead).filter(|(_, report)| holds_data(report));
        let best = holders.max_by(|(left, a), (right, b)| {
            offset(a).cmp(&offset(b)).then_with(|| right.name.cmp(&left.name))
        });
        best.map(|(member, _)| member)
    })
}

/// Whether a replica holds a data set, of whatever age, that nothing is replacing: it has counted bytes of a stream or has
/// keys. A newcomer before its first sync has neither: offset 1 and no key (8.1, 9.1).
fn holds_data(report: &NodeReport) -> bool {
    !report.info.loading
        && report
            .info
            .link
            .as_ref()
            .is_some_and(|link| !link.sync_in_progress && (link.offset > Offset(1) || report.info.keys > 0))
}

/// Why no replica of `id` may be promoted now: another replica of it is unknown, or some view has moved on.
fn promotion_refused(seen: &Observed, id: NodeId) -> Option<String> {
    // A view without slots of the dead one alone says nothing: whoever learned of it after its death never heard them.
    let slots = seen.slots_of(id);
    let others = seen.owners().iter().filter(|(owner, owned)| **owner != id && owned.intersects(slots));
    if others.map(|(owner, _)| *owner).any(|owner| !is_outlived(seen, owner, id)) {
        return Some("a successor has been elected and is becoming known".to_owned());
    }
    for member in seen.replicas_of(id).filter_map(|replica| seen.member_by_id(replica)) {
        if member.report().is_none() && !member.verified_dead() {
            return Some(format!("its replica {} does not answer", member.name));
        }
    }
    None
}

/// Whether `owner` is dead and had its slots before `id` had them: it gave them away, and a view that has not heard of that
/// never will from either. By the epoch, which rises with each claim.
fn is_outlived(seen: &Observed, owner: NodeId, id: NodeId) -> bool {
    let claim = |of: NodeId| (seen.lines_of(of).map(|line| line.epoch).max(), of);
    seen.member_by_id(owner).is_some_and(Member::may_be_succeeded) && claim(owner) < claim(id)
}

/// Whether an election can succeed in the candidate's own view: a majority of the slot-holding primaries, the dead
/// one included in the count, is alive there.
pub(crate) fn vote_possible(seen: &Observed, candidate: &NodeReport, dead: NodeId) -> bool {
    let dead_ids = dead_ids(seen);
    voters(&dead_ids, candidate).suffice_without(dead, candidate, &dead_ids)
}

/// [`vote_possible`] at a candidate that was seen.
fn can_vote(seen: &Picture<'_>, candidate: &NodeReport, dead: NodeId) -> bool {
    seen.voters(candidate).suffice_without(dead, candidate, seen.dead_ids())
}

/// IDs of the members under which nobody will ever vote again.
pub(super) fn dead_ids(seen: &Observed) -> BTreeSet<NodeId> {
    let dead = seen.members.values().filter(|member| member.may_be_succeeded()).filter_map(Member::id);
    dead.filter(|id| seen.member_by_id(*id).is_some_and(Member::may_be_succeeded)).collect()
}

/// The slot-holding primaries of a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voters {
    all: usize,
    /// Neither doubted in the view nor proved dead.
    alive: usize,
}

/// The slot-holding primaries in the candidate's own view.
pub(super) fn voters(dead_ids: &BTreeSet<NodeId>, candidate: &NodeReport) -> Voters {
    let mut voters = Voters { all: 0, alive: 0 };
    for line in candidate.nodes.common().iter().filter(|line| votes(line)) {
        voters.all += 1;
        voters.alive += usize::from(!is_suspected(line) && !dead_ids.contains(&line.id));
    }
    voters
}

impl Voters {
    /// Whether those alive but `dead` are a majority.
    fn suffice_without(self, dead: NodeId, candidate: &NodeReport, dead_ids: &BTreeSet<NodeId>) -> bool {
        let line = candidate.line(dead).filter(|line| votes(line) && !is_suspected(line));
        let counted = line.is_some() && !dead_ids.contains(&dead);
        self.alive - usize::from(counted) > self.all / 2
    }
}

fn votes(line: &NodeLine) -> bool {
    line.flags.primary && !line.slots.is_empty()
}

fn is_suspected(line: &NodeLine) -> bool {
    line.flags.fail || line.flags.pfail
}

/// Some view doubts that `id` is alive.
fn suspected(seen: &Observed, id: NodeId) -> bool {
    seen.lines_of(id).any(is_suspected)
}
