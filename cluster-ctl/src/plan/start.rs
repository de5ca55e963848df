//! Bootstrap's members: each asked-for node exists once, its Pod runs, its server answers and is clean.
//!
//! A node that never answered is kept as evidence while its spec is current, and retried ever more slowly; it is
//! replaced at once when its spec is outdated, so that correcting the cause heals.

use std::collections::BTreeSet;

use shared::api::{JoinType, Lifecycle, ValkeyNodeSpec};

use super::outdated::is_outdated;
use super::picture::Picture;
use super::{shards, view};
use crate::action::{Action, Decision, NewNode, Pace, Wait};
use crate::model::{Container, Desired, Member, Observed, Shape};
use crate::plan::Verdict;
use crate::words::{Reason, counted};

/// Longest pause between two attempts at starting a node, seconds.
const MAX_RETRY_SECONDS: i64 = 30 * 60;

/// The step that brings the members nearer to `shape`; `None` when all are there and answer.
pub(super) fn plan(seen: &Picture<'_>, want: &Desired, shape: Shape) -> Option<Decision> {
    remove_unfit(seen, want, shape)
        .or_else(|| retry_start(seen, want))
        .or_else(|| create_missing(seen, want, shape))
        .or_else(|| await_members(seen))
}

/// Members that cannot become part of the cluster as it is wanted. None of them is known to any other.
fn remove_unfit(seen: &Picture<'_>, want: &Desired, shape: Shape) -> Option<Decision> {
    let removable = |member: &&Member| {
        let unused =
            |id| seen.unheard().is_none() && !seen.listed_by_others(id) && seen.slots_of(id).is_empty();
        member.id().is_none_or(unused) && !shards::lingers(seen, member)
    };
    let mut unfit: Vec<(&Member, String)> = Vec::new();
    for member in seen.staying().filter(removable) {
        if let Some(why) = why_unfit(seen, want, member) {
            unfit.push((member, why));
        }
    }
    let named: BTreeSet<&str> = unfit.iter().map(|(member, _)| member.name.as_str()).collect();
    let further = excess(seen, shape).into_iter().filter(|member| !named.contains(member.name.as_str()));
    let further: Vec<&Member> = further.filter(removable).collect();
    unfit.extend(further.into_iter().map(|member| (member, "is more than the size asks for".to_owned())));
    (!unfit.is_empty()).then(|| {
        let words: Vec<String> = unfit.iter().map(|(member, why)| format!("{} {why}", member.name)).collect();
        let nodes = unfit.iter().map(|(member, _)| view::node_ref(member)).collect();
        let action = Action::DeleteNodes { nodes, cluster_deleted: false };
        Decision::act(action, Reason::ReplacingNode, format!("replacing: {}", words.join("; ")))
    })
}

fn why_unfit(seen: &Picture<'_>, want: &Desired, member: &Member) -> Option<String> {
    if member.pod_vanished && !member.verified_dead() {
        // One that may have been given slots is the only one who shows them until it has been introduced.
        let may_own =
            member.recorded_id.is_some() && !matches!(member.join, Some(JoinType::Replica | JoinType::Shard));
        return (!may_own).then(|| "lost its Pod".to_owned());
    }
    if never_answered(member) {
        let outdated = want.template.as_ref().is_ok_and(|template| is_outdated(&member.spec, template));
        return outdated.then(|| "never started and its spec is outdated".to_owned());
    }
    if let Some(ending) = member.ending() {
        return Some(format!("ended ({}, exit code {})", ending.reason, ending.exit_code));
    }
    if member.verified_dead() {
        return Some("was confirmed dead".to_owned());
    }
    if member.pod.as_ref().is_some_and(|pod| pod.deleting) {
        return Some("has a Pod that is being deleted".to_owned());
    }
    let report = member.report()?;
    if member.recorded_id.is_some_and(|id| id != report.id) {
        return Some("answers with another node ID than the one recorded".to_owned());
    }
    if let Some(stranger) = view::stranger(seen, report) {
        return Some(format!("knows {stranger}, which is not of this cluster"));
    }
    // The copy of a sibling that clients have found already, before every member was Active.
    let primary = report.myself().and_then(|line| line.primary);
    let is_copy = primary.is_some_and(|primary| seen.member_by_id(primary).is_some());
    (report.info.keys > 0 && !is_copy)
        .then(|| format!("holds {} but should be empty", counted(report.info.keys, "key")))
}

/// Members beyond the size: of an index past the last shard, or more than a shard has. Those that never answered go
/// first, older attempts before newer.
fn excess<'a>(seen: &Picture<'a>, shape: Shape) -> Vec<&'a Member> {
    let mut excess = Vec::new();
    for index in seen.by_shard().keys() {
        let keep = if *index < shape.shards { shape.per_shard() } else { 0 };
        let mut members: Vec<&Member> = seen.staying_of(*index).filter(|member| is_present(member)).collect();
        members.sort_by_key(|member| {
            (never_answered(member), std::cmp::Reverse(member.start_attempt), member.name.clone())
        });
        excess.extend(members.into_iter().skip(keep));
    }
    excess
}

/// A further attempt at a node that failed to start although its spec is current, once its pause is over. The failed
/// one goes in the next tick, as excess: so that the number of the attempt is never lost.
fn retry_start(seen: &Observed, want: &Desired) -> Option<Decision> {
    let template = want.template.as_ref().ok()?;
    let due = seen.staying().filter(|member| failed_to_start(member)).find(|member| {
        let pause = retry_pause(want.patience.start_retry_seconds, member.start_attempt);
        seen.now.seconds_since(member.created) >= pause
    })?;
    let name = want.names.first()?.clone();
    let message = format!("{} did not start, trying again as {name}", due.name);
    let node = new_node(name, template, due.shard_index(), due.start_attempt.saturating_add(1));
    Some(create(seen, vec![node], Reason::ReplacingNode, message))
}

/// Seconds between attempt `attempt` and the next: `first`, doubling up to [`MAX_RETRY_SECONDS`].
fn retry_pause(first: i64, attempt: u32) -> i64 {
    1i64.checked_shl(attempt.min(32))
        .and_then(|factor| first.checked_mul(factor))
        .unwrap_or(i64::MAX)
        .min(MAX_RETRY_SECONDS)
}

fn create_missing(seen: &Picture<'_>, want: &Desired, shape: Shape) -> Option<Decision> {
    let present = |index: u16| seen.staying_of(index).filter(|member| is_present(member)).count();
    let missing: Vec<u16> = (0..shape.shards)
        .flat_map(|index| std::iter::repeat_n(index, shape.per_shard().saturating_sub(present(index))))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let template = match &want.template {
        Ok(template) => template,
        Err(words) => {
            return Some(Decision::wait(Reason::ReferencesUnresolved, words.clone(), Pace::Heartbeat));
        }
    };
    let nodes: Vec<NewNode> = missing
        .iter()
        .zip(&want.names)
        .map(|(index, name)| new_node(name.clone(), template, *index, 0))
        .collect();
    let message = format!("creating {} of {}", nodes.len(), counted(shape.members(), "node"));
    Some(create(seen, nodes, Reason::CreatingNodes, message))
}

fn create(seen: &Observed, nodes: Vec<NewNode>, reason: Reason, message: String) -> Decision {
    let known = seen.members.values().map(|member| member.uid.clone()).collect();
    Decision::act(Action::CreateNodes { nodes, known }, reason, message)
}

fn new_node(name: String, template: &ValkeyNodeSpec, index: u16, start_attempt: u32) -> NewNode {
    let spec =
        ValkeyNodeSpec { shard_index: i32::from(index), lifecycle: Lifecycle::Joining, ..template.clone() };
    NewNode { name, spec, join: None, start_attempt }
}

/// One new node for shard `index` of a formed cluster.
pub(super) fn replacement_for(
    seen: &Observed,
    want: &Desired,
    index: u16,
    join: JoinType,
    reason: Reason,
) -> Verdict {
    let template = match &want.template {
        Ok(template) => template,
        Err(words) => return Verdict::wait(Reason::ReferencesUnresolved, words.clone()),
    };
    if let Some(hold) = &want.hold {
        return Verdict::Wait(vec![hold.clone()]);
    }
    let Some(name) = want.names.first() else { return Verdict::Pass };
    let message = format!("creating {name} for shard {index}");
    let node = NewNode { join: Some(join), ..new_node(name.clone(), template, index, 0) };
    Verdict::act(create(seen, vec![node], reason, message))
}

/// What keeps a `Joining` member of a formed cluster from being introduced: it does not run or answer yet, or it must
/// be replaced. `None` when it is fit.
pub(super) fn joiner(seen: &Picture<'_>, want: &Desired, member: &Member) -> Option<Verdict> {
    // One that owns slots may hold keys: it was given the slots of a lost shard, and clients have found it.
    let unknown = |id| seen.unheard().is_none() && !seen.listed_by_others(id) && seen.slots_of(id).is_empty();
    if member.id().is_none_or(unknown)
        && !shards::lingers(seen, member)
        && let Some(why) = why_unfit(seen, want, member)
    {
        let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
        let message = format!("replacing {} that {why}", member.name);
        return Some(Verdict::act(Decision::act(action, Reason::ReplacingNode, message)));
    }
    if let Some(verdict) = retry_joiner(seen, want, member) {
        return Some(verdict);
    }
    let wait = start_failure(member)
        .or_else(|| view::pod_wait(seen, member))
        .or_else(|| view::answer_wait(member))?;
    Some(Verdict::Wait(vec![wait]))
}

/// A joiner that failed to start although its spec is current: tried again once its pause is over, and removed when its
/// successor is there.
fn retry_joiner(seen: &Picture<'_>, want: &Desired, member: &Member) -> Option<Verdict> {
    if !failed_to_start(member) {
        return None;
    }
    let (index, attempt) = (member.shard_index(), member.start_attempt);
    let remove = |why: &str| {
        let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
        let message = format!("removing {}, which did not start and {why}", member.name);
        Some(Verdict::act(Decision::act(action, Reason::ReplacingNode, message)))
    };
    if seen.staying_of(index).any(|other| other.start_attempt > attempt) {
        return remove("was tried again");
    }
    // The heir of a lost shard that another has succeeded meanwhile.
    if member.join == Some(JoinType::Primary)
        && seen.shards().get(&index).is_some_and(|shard| !shard.slots.is_empty())
    {
        return remove("whose shard has another primary");
    }
    let due =
        seen.now.seconds_since(member.created) >= retry_pause(want.patience.start_retry_seconds, attempt);
    let template = want.template.as_ref().ok().filter(|_| due && want.hold.is_none())?;
    let name = want.names.first()?;
    let message = format!("{} did not start, trying again as {name}", member.name);
    let node =
        NewNode { join: member.join, ..new_node(name.clone(), template, index, attempt.saturating_add(1)) };
    Some(Verdict::act(create(seen, vec![node], Reason::ReplacingNode, message)))
}

fn await_members(seen: &Observed) -> Option<Decision> {
    let mut waits: Vec<Wait> = seen
        .staying()
        .filter_map(|member| {
            start_failure(member)
                .or_else(|| view::pod_wait(seen, member))
                .or_else(|| view::answer_wait(member))
        })
        .collect();
    // The one that a person can do something about comes first.
    waits.sort_by_key(|wait| match wait.reason {
        Reason::AuthRejected => 0,
        Reason::PodNotStarting => 1,
        Reason::PodUnschedulable => 2,
        Reason::PodsStarting => 3,
        _ => 4,
    });
    let first = waits.first()?.clone();
    let pace = if first.reason == Reason::NodesStarting { Pace::Quick } else { Pace::Wait };
    Some(Decision { action: None, reason: first.reason, message: first.message, waits, pace })
}

fn start_failure(member: &Member) -> Option<Wait> {
    let ending = member.ending().filter(|_| never_answered(member))?;
    let words = last_words(&ending.message);
    let message =
        format!("{} did not start ({}, exit code {}): {words}", member.name, ending.reason, ending.exit_code);
    Some(Wait { reason: Reason::PodNotStarting, message })
}

/// The last lines of what a process printed, on one line: the cause comes last.
fn last_words(text: &str) -> String {
    const LINES: usize = 4;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let skip = lines.len().saturating_sub(LINES);
    lines.into_iter().skip(skip).collect::<Vec<_>>().join(" | ")
}

/// Whether a member fills a place of its shard. One that lived and died does not, although its object stays while others
/// list it; one that never started does: it is the evidence, and paces the next attempt.
fn is_present(member: &Member) -> bool {
    never_answered(member) || !member.verified_dead()
}

pub(super) fn never_answered(member: &Member) -> bool {
    member.recorded_id.is_none() && member.report().is_none()
}

/// It never answered and Kubernetes says that it will not start as it is.
fn failed_to_start(member: &Member) -> bool {
    let stuck = member.pod.as_ref().is_some_and(
        |pod| matches!(&pod.container, Container::Waiting { reason, .. } if view::is_start_failure(reason)),
    );
    never_answered(member) && (member.verified_dead() || stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_one_line_that_ends_with_the_cause() {
        let text = "\n*** FATAL CONFIG FILE ERROR ***\nReading the configuration file, at line 7\n\n>>> 'x'\nBad directive\n";
        let words = last_words(text);
        assert!(
            words.ends_with("Bad directive") && !words.contains('\n') && words.contains("at line 7"),
            "{words}"
        );
        assert_eq!(last_words(""), "");
    }

    #[test]
    fn pauses_between_attempts_double_up_to_half_an_hour() {
        let pauses: Vec<i64> = (0..9).map(|attempt| retry_pause(30, attempt)).collect();
        assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]);
        assert_eq!(retry_pause(30, u32::MAX), 1800);
    }
}
