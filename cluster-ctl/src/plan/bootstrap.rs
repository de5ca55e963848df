//! Bootstrap of a cluster that is not formed: from nothing to every member Active, one step a tick.
//!
//! Order (slots before MEET is measured two to three times faster than after, and as safe): snapshot of the size,
//! nodes, Pods, answers, config epochs, slots, introductions, replicas, Active. Every prefix of it can be resumed
//! from what is visible. Must not assign a slot that any view shows as owned, nor meet a node that is not ours.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::Lifecycle;
use shared::slots::{SLOT_COUNT, SlotSet, contiguous_spread};
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId};

use super::picture::Picture;
use super::spread::{Candidates, Primaries};
use super::view::Crowd;
use super::{failover, lost, spread, stability, start, view};
use crate::action::{Action, Decision, Pace, Target, Wait};
use crate::model::{Desired, Member, Observed, Shape, Sync, sync_state};
use crate::plan::Verdict;
use crate::words::{Reason, counted};

/// The steps of a cluster of which no member has left `Joining`.
pub(super) fn plan(seen: &Picture<'_>, want: &Desired) -> Decision {
    // While the TLS Secret is invalid repair goes on, as far as no node is made.
    let invalid = match prepare(seen, want) {
        Some(wait) if wait.reason == Reason::TlsInvalid => Some(wait),
        Some(decision) => return decision,
        None => None,
    };
    // Once anybody knows a peer, a death is handled as in a formed cluster.
    if seen.any_peer_known() {
        for rule in
            [stability::forget_dead, failover::promote_replica, lost::replace_lost_primary, lost::reset_again]
        {
            if let Verdict::Act(decision) = rule(seen, want) {
                return *decision;
            }
        }
    }
    if let Some(wait) = invalid {
        return wait;
    }
    let shape = seen.cluster.snapshot.unwrap_or(want.shape);
    if let Some(decision) = start::plan(seen, want, shape) {
        return decision;
    }
    match Plan::new(seen, shape) {
        Ok(plan) => plan.next_step(),
        Err(wait) => Decision::wait(wait.reason, wait.message, Pace::Wait),
    }
}

/// What must be there before the first node: valid TLS, our objects, the snapshot.
fn prepare(seen: &Picture<'_>, want: &Desired) -> Option<Decision> {
    if let Err(words) = &want.tls {
        return Some(Decision::wait(Reason::TlsInvalid, words.clone(), Pace::Heartbeat));
    }
    if let Some(wait) = want.certificate.as_ref().and_then(|certificate| certificate.unusable.clone()) {
        return Some(Decision::wait(wait.reason, wait.message, Pace::Heartbeat));
    }
    if let Some(words) = seen.objects.foreign() {
        return Some(Decision::wait(Reason::ObjectNotOwned, words, Pace::Heartbeat));
    }
    // Until the first slot is assigned an edit of the size is followed, so that a cluster too large for its machines
    // can be corrected.
    let slots_assigned = seen.reports().any(|(_, report)| report.cluster.slots_assigned > 0);
    // Before the introductions an owner's slots are in its own view only: silence is no answer.
    let may_change = !slots_assigned && seen.unheard().is_none();
    let outdated = seen.cluster.snapshot.is_some_and(|shape| shape != want.shape && may_change);
    if seen.cluster.snapshot.is_none() || outdated {
        let Shape { shards, replicas } = want.shape;
        let message = format!("bootstrapping {shards} shards with {replicas} replicas each");
        return Some(Decision::act(
            Action::TakeSnapshot { shape: want.shape },
            Reason::SpecSnapshot,
            message,
        ));
    }
    // Before a cluster is formed nothing is made of what does not resolve.
    let unresolved = want.template.as_ref().err().or(want.acl.as_ref().err());
    if let Some(words) = unresolved.filter(|_| !seen.objects.ready() || seen.members.is_empty()) {
        return Some(Decision::wait(Reason::ReferencesUnresolved, words.clone(), Pace::Heartbeat));
    }
    if !seen.objects.ready() || !seen.cluster.finalizer {
        return Some(Decision::wait(
            Reason::PreparingObjects,
            "Service, Secret and ConfigMap are being made",
            Pace::Quick,
        ));
    }
    None
}

/// Every member answers; who becomes primary of what is settled.
struct Plan<'a, 'o> {
    seen: &'a Picture<'o>,
    shape: Shape,
    /// By shard index: the primary (to be) and its slots (to be).
    primaries: BTreeMap<u16, (&'a Member, SlotSet)>,
}

impl<'a, 'o> Plan<'a, 'o> {
    /// Settles the primaries: who owns slots already; else the member on the least crowded machine.
    fn new(seen: &'a Picture<'o>, shape: Shape) -> Result<Self, Wait> {
        let ranges = contiguous_spread(shape.shards);
        let (mut chosen, mut candidates) = (Primaries::new(), Candidates::new());
        let mut crowd = Crowd::default();
        for index in 0..shape.shards {
            let members: Vec<&Member> =
                seen.staying_of(index).filter(|member| !member.verified_dead()).collect();
            let owns = |member: &&Member| member.id().is_some_and(|id| !seen.slots_of(id).is_empty());
            let owners: Vec<&Member> = members.iter().copied().filter(owns).collect();
            let able = match owners.as_slice() {
                [] => members,
                [owner] => vec![*owner],
                more => {
                    let names: Vec<&str> = more.iter().map(|member| member.name.as_str()).collect();
                    return Err(conflict(format!("{} own slots of one shard", names.join(" and "))));
                }
            };
            if let Some(primary) = crowd.least(able.iter().copied()) {
                crowd.add(primary);
                chosen.insert(index, primary);
                candidates.insert(index, able);
            }
        }
        spread::even_out(&mut chosen, &candidates);
        let primaries = (0u16..).zip(&ranges).filter_map(|(index, range)| {
            Some((index, (*chosen.get(&index)?, SlotSet::from_ranges([*range]))))
        });
        let primaries = primaries.collect();
        Ok(Self { seen, shape, primaries })
    }

    fn next_step(&self) -> Decision {
        self.set_epochs()
            .or_else(|| self.assign_slots())
            .or_else(|| self.meet())
            .or_else(|| self.replicate())
            .or_else(|| self.announce_slots())
            .or_else(|| self.await_ok())
            .unwrap_or_else(|| self.activate())
    }

    fn reports(&self) -> impl Iterator<Item = (&'a Member, &'a NodeReport)> {
        self.seen
            .staying()
            .filter(|member| !member.verified_dead())
            .filter_map(|member| Some((member, member.report()?)))
    }

    /// A unique config epoch for each node that is alone and has none; without it all collide at 0.
    fn set_epochs(&self) -> Option<Decision> {
        let taken: BTreeSet<Epoch> = self.seen.lines().map(|line| line.epoch).collect();
        // Beside nodes that already know each other a newcomer must be above every epoch in use.
        let first = if self.seen.any_peer_known() { self.seen.highest_epoch().0 + 1 } else { 1 };
        let mut free = (first..).map(Epoch).filter(|epoch| !taken.contains(epoch));
        let epochs: Vec<(Target, Epoch)> = self
            .reports()
            .filter(|(_, report)| {
                report.nodes.len() == 1 && report.myself().is_some_and(|line| line.epoch == Epoch(0))
            })
            .filter_map(|(member, _)| view::target(member).zip(free.next()))
            .collect();
        (!epochs.is_empty()).then(|| {
            let message = format!("setting the config epoch of {}", counted(epochs.len(), "node"));
            Decision::act(Action::SetConfigEpochs { epochs }, Reason::SettingEpochs, message)
        })
    }

    fn assign_slots(&self) -> Option<Decision> {
        let owned = SlotSet::all().difference(self.seen.unowned());
        let mut slots = Vec::new();
        for (primary, share) in self.primaries.values() {
            let own = primary.report()?.myself().map(|line| line.slots.clone()).unwrap_or_default();
            if !own.difference(share).is_empty() {
                let message =
                    format!("{} owns {} outside its share {share}", primary.name, own.difference(share));
                return Some(Decision::wait(Reason::SlotConflict, message, Pace::Wait));
            }
            let missing = share.difference(&own);
            if missing.is_empty() {
                continue;
            }
            if missing.intersects(&owned) {
                let message =
                    format!("{} of {} are owned by another", missing.intersection(&owned), primary.name);
                return Some(Decision::wait(Reason::SlotConflict, message, Pace::Wait));
            }
            slots.extend(view::target(primary).map(|target| (target, missing)));
        }
        (!slots.is_empty()).then(|| {
            let message = format!("assigning the slots of {}", counted(slots.len(), "shard"));
            Decision::act(Action::AssignSlots { slots }, Reason::AssigningSlots, message)
        })
    }

    /// Introduces everybody to one seed; gossip does the rest.
    fn meet(&self) -> Option<Decision> {
        let others = Others::new(self);
        // The seed is whoever knows most, so that a second pass goes on with the first one's work.
        let (_, (seed, seed_report)) = self
            .reports()
            .map(|(member, report)| (others.known_to(report), (member, report)))
            .max_by(|(a, (left, _)), (b, (right, _))| a.cmp(b).then_with(|| right.name.cmp(&left.name)))?;
        let unknown: Vec<Target> = self
            .reports()
            .filter(|(_, report)| seed_report.line(report.id).is_none())
            .filter_map(|(member, _)| view::target(member))
            .collect();
        if unknown.is_empty() {
            return self.introduce_further(&others);
        }
        if seed_report.nodes.handshakes() > 0 {
            return Some(learning());
        }
        let message = format!("introducing {} to {}", counted(unknown.len(), "node"), seed.name);
        let action = Action::Meet { seed: view::target(seed)?, others: unknown };
        Some(Decision::act(action, Reason::MeetingNodes, message))
    }

    /// Once the seed knows all, whoever still lacks acquaintances makes them itself, one member a tick: gossip from one
    /// seed alone takes seconds.
    fn introduce_further(&self, others: &Others<'_>) -> Option<Decision> {
        let lacks = |report: &NodeReport| others.known_to(report) < others.ids.len();
        let greets = |report: &NodeReport| report.nodes.handshakes() > 0;
        let behind: Vec<(&Member, &NodeReport)> =
            self.reports().filter(|(_, report)| lacks(report) || greets(report)).collect();
        if behind.is_empty() {
            return None;
        }
        let next = behind.iter().find(|(_, report)| lacks(report) && !greets(report));
        let step = next.and_then(|(member, report)| {
            let missing = self.reports().filter(|(_, other)| report.line(other.id).is_none());
            let others: Vec<Target> = missing.filter_map(|(other, _)| view::target(other)).collect();
            let message = format!("introducing {} to {}", counted(others.len(), "node"), member.name);
            Some(Decision::act(
                Action::Meet { seed: view::target(member)?, others },
                Reason::MeetingNodes,
                message,
            ))
        });
        Some(step.unwrap_or_else(learning))
    }

    /// Every member but the primaries with the ID of its primary.
    fn replicas(&self) -> impl Iterator<Item = (&'a Member, &'a NodeReport, &'a NodeReport)> {
        self.reports().filter_map(|(member, report)| {
            let (primary, _) = self.primaries.get(&member.shard_index())?;
            (primary.name != member.name).then_some((member, report, primary.report()?))
        })
    }

    fn replicate(&self) -> Option<Decision> {
        let links: Vec<(Target, NodeId)> = self
            .replicas()
            .filter(|(_, report, primary)| sync_state(report, primary) == Sync::Elsewhere)
            .filter_map(|(member, _, primary)| Some((view::target(member)?, primary.id)))
            .collect();
        (!links.is_empty()).then(|| {
            let message = format!("attaching {}", counted(links.len(), "replica"));
            Decision::act(Action::Replicate { links }, Reason::AttachingReplicas, message)
        })
    }

    /// A greeting from a node that is already known carries its slots, one in the course of an acquaintance does not
    /// (measured on 8.1 and 9.1), and gossip brings them a second or two later. So each primary greets once more
    /// whoever does not see its slots yet, one primary a tick.
    fn announce_slots(&self) -> Option<Decision> {
        self.primaries.values().find_map(|(primary, _)| {
            let report = primary.report()?;
            // Its last greeting is still under way; or nobody can be behind.
            if report.nodes.handshakes() > 0
                || !self.seen.lines_of(report.id).any(|line| line.slots.is_empty())
            {
                return None;
            }
            let behind = self.reports().filter(|(_, other)| {
                other.id != report.id && other.line(report.id).is_some_and(|line| line.slots.is_empty())
            });
            let others: Vec<Target> = behind.filter_map(|(member, _)| view::target(member)).collect();
            if others.is_empty() {
                return None;
            }
            let message =
                format!("announcing the slots of {} to {}", primary.name, counted(others.len(), "node"));
            let seed = view::target(primary)?;
            Some(Decision::act(Action::Meet { seed, others }, Reason::MeetingNodes, message))
        })
    }

    /// Waits until every node says ok, all slots are served, and every replica is synced.
    fn await_ok(&self) -> Option<Decision> {
        if let Some(member) = self.seen.terminating().first() {
            return Some(Decision::wait(Reason::PodTerminating, view::terminating_words(member), Pace::Wait));
        }
        let copying: Vec<&str> = self
            .replicas()
            .filter(|(_, report, primary)| !sync_state(report, primary).is_synced())
            .map(|(member, _, _)| member.name.as_str())
            .collect();
        if !copying.is_empty() {
            return Some(Decision::wait(Reason::ReplicasSyncing, "the replicas are syncing", Pace::Quick));
        }
        let not_ok = |report: &NodeReport| {
            let cluster = &report.cluster;
            !cluster.ok || cluster.slots_ok != SLOT_COUNT || cluster.size != u32::from(self.shape.shards)
        };
        let forming = self.reports().filter(|(_, report)| not_ok(report)).count();
        (forming > 0).then(|| {
            Decision::wait(Reason::ClusterForming, "not every node reports cluster_state:ok yet", Pace::Quick)
        })
    }

    fn activate(&self) -> Decision {
        let nodes = self
            .seen
            .staying()
            .filter(|member| member.spec.lifecycle == Lifecycle::Joining)
            .map(view::node_ref)
            .collect();
        let message = "cluster formed, transitioning to Active";
        Decision::act(
            Action::Activate { nodes, forms_cluster: true, clear_join_type: false },
            Reason::CompletingJoin,
            message,
        )
    }
}

/// The members that are to meet.
struct Others<'a> {
    seen: &'a Observed,
    ids: BTreeSet<NodeId>,
    /// IDs of members that answer and are not to meet anybody.
    left_out: Vec<NodeId>,
}

impl<'a> Others<'a> {
    fn new(plan: &Plan<'a, '_>) -> Self {
        let ids: BTreeSet<NodeId> = plan.reports().map(|(_, report)| report.id).collect();
        let answering: BTreeSet<NodeId> = plan.seen.reports().map(|(_, report)| report.id).collect();
        let left_out = answering.difference(&ids).copied().collect();
        Self { seen: plan.seen, ids, left_out }
    }

    /// How many of them a view lists.
    fn known_to(&self, report: &NodeReport) -> usize {
        let left_out = self.left_out.iter().filter(|id| report.line(**id).is_some());
        self.seen.acquaintances(report.id) - left_out.count()
    }
}

fn learning() -> Decision {
    Decision::wait(Reason::NodesMeeting, "the nodes are learning of each other", Pace::Quick)
}

fn conflict(message: String) -> Wait {
    Wait { reason: Reason::SlotConflict, message }
}
