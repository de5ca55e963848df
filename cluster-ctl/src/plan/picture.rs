//! What was seen, and what several rules derive from it, each derived at most once in a plan.
//!
//! Owns no judgement: what is derived here is defined where its rule is.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use shared::api::Lifecycle;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::failover::{self, Voters};
use super::shards::{self, Shard};
use super::{join, stability, view};
use crate::model::{Desired, Member, Observed};

/// An observation as the rules look at it.
pub(crate) struct Picture<'a> {
    seen: &'a Observed,
    want: &'a Desired,
    sorted: OnceCell<Sorted<'a>>,
    by_shard: OnceCell<BTreeMap<u16, Vec<&'a Member>>>,
    shards: OnceCell<BTreeMap<u16, Shard<'a>>>,
    recorded: OnceCell<BTreeSet<u16>>,
    kept: OnceCell<BTreeSet<u16>>,
    dead_owners: OnceCell<Vec<(NodeId, &'a Member)>>,
    dead_ids: OnceCell<BTreeSet<NodeId>>,
    strangers: OnceCell<Vec<NodeId>>,
    electorate: OnceCell<usize>,
    voters: RefCell<BTreeMap<usize, Voters>>,
}

impl<'a> Picture<'a> {
    /// Nothing is derived yet.
    pub(crate) fn new(seen: &'a Observed, want: &'a Desired) -> Self {
        Self {
            seen,
            want,
            sorted: OnceCell::new(),
            by_shard: OnceCell::new(),
            shards: OnceCell::new(),
            recorded: OnceCell::new(),
            kept: OnceCell::new(),
            dead_owners: OnceCell::new(),
            dead_ids: OnceCell::new(),
            strangers: OnceCell::new(),
            electorate: OnceCell::new(),
            voters: RefCell::default(),
        }
    }

    /// Members of which nobody will hear again: proved dead, or reset. By name, as all that follow.
    pub(crate) fn gone(&self) -> &[&'a Member] {
        &self.sorted().gone
    }

    /// Members that another may take over from.
    pub(crate) fn dead(&self) -> impl Iterator<Item = &'a Member> {
        self.gone().iter().copied().filter(|member| member.may_be_succeeded())
    }

    /// Members that did not answer and are not proved dead.
    pub(crate) fn silent(&self) -> &[&'a Member] {
        &self.sorted().silent
    }

    /// Members whose deletion was asked for.
    pub(crate) fn deleting(&self) -> &[&'a Member] {
        &self.sorted().deleting
    }

    /// Members that stay and are `Joining`.
    pub(crate) fn joining(&self) -> &[&'a Member] {
        &self.sorted().joining
    }

    /// Members that stay and are `Leaving`.
    pub(crate) fn leaving(&self) -> &[&'a Member] {
        &self.sorted().leaving
    }

    /// Members that stay and whose Pods are being deleted.
    pub(crate) fn terminating(&self) -> &[&'a Member] {
        &self.sorted().terminating
    }

    /// [`Observed::unheard`].
    pub(crate) fn unheard(&self) -> Option<&'a Member> {
        self.silent().iter().copied().find(|member| !member.deleting && member.is_unheard())
    }

    /// [`Observed::unknown`].
    pub(crate) fn unknown(&self) -> Option<&'a Member> {
        self.silent().iter().copied().find(|member| member.is_unknown())
    }

    fn sorted(&self) -> &Sorted<'a> {
        self.sorted.get_or_init(|| Sorted::new(self.seen))
    }

    /// Members by the scheduling index of their shard, each shard's by name.
    pub(crate) fn by_shard(&self) -> &BTreeMap<u16, Vec<&'a Member>> {
        self.by_shard.get_or_init(|| {
            let mut shards: BTreeMap<u16, Vec<&Member>> = BTreeMap::new();
            for member in self.seen.members.values() {
                shards.entry(member.shard_index()).or_default().push(member);
            }
            shards
        })
    }

    /// The members of the shard `index`, by name.
    pub(crate) fn of_shard(&self, index: u16) -> impl Iterator<Item = &'a Member> {
        self.by_shard().get(&index).into_iter().flatten().copied()
    }

    /// The members of the shard `index` whose deletion was not asked for, by name.
    pub(crate) fn staying_of(&self, index: u16) -> impl Iterator<Item = &'a Member> {
        self.of_shard(index).filter(|member| !member.deleting)
    }

    /// What the answering members of the shard `index` said whose deletion was not asked for.
    pub(crate) fn reports_of(&self, index: u16) -> impl Iterator<Item = (&'a Member, &'a NodeReport)> {
        self.staying_of(index).filter_map(|member| Some((member, member.report()?)))
    }

    /// [`shards::shards`].
    pub(crate) fn shards(&self) -> &BTreeMap<u16, Shard<'a>> {
        self.shards.get_or_init(|| shards::shards(self.seen))
    }

    /// [`shards::recorded_indices`].
    pub(crate) fn recorded(&self) -> &BTreeSet<u16> {
        self.recorded.get_or_init(|| shards::recorded_indices(self))
    }

    /// [`shards::kept`].
    pub(crate) fn kept(&self) -> &BTreeSet<u16> {
        self.kept.get_or_init(|| shards::kept(self, self.want))
    }

    /// [`stability::dead_owners`].
    pub(crate) fn dead_owners(&self) -> &[(NodeId, &'a Member)] {
        self.dead_owners.get_or_init(|| stability::dead_owners(self))
    }

    /// [`failover::dead_ids`].
    pub(crate) fn dead_ids(&self) -> &BTreeSet<NodeId> {
        self.dead_ids.get_or_init(|| failover::dead_ids(self.seen))
    }

    /// [`view::strangers`].
    pub(crate) fn strangers(&self) -> &[NodeId] {
        self.strangers.get_or_init(|| view::strangers(self.seen))
    }

    /// [`join::electorate`].
    pub(crate) fn electorate(&self) -> usize {
        *self.electorate.get_or_init(|| join::electorate(self.seen))
    }

    /// [`failover::voters`] of a view, which all that agree with it share.
    pub(crate) fn voters(&self, report: &NodeReport) -> Voters {
        let view = report.nodes.common().as_ptr().addr();
        *self.voters.borrow_mut().entry(view).or_insert_with(|| failover::voters(self.dead_ids(), report))
    }
}

/// The members that some rule looks for, found in one pass over all.
#[derive(Default)]
struct Sorted<'a> {
    gone: Vec<&'a Member>,
    silent: Vec<&'a Member>,
    deleting: Vec<&'a Member>,
    joining: Vec<&'a Member>,
    leaving: Vec<&'a Member>,
    terminating: Vec<&'a Member>,
}

impl<'a> Sorted<'a> {
    fn new(seen: &'a Observed) -> Self {
        let mut sorted = Self::default();
        for member in seen.members.values() {
            if member.verified_dead() || member.was_reset() {
                sorted.gone.push(member);
            } else if member.report().is_none() {
                sorted.silent.push(member);
            }
            if member.deleting {
                sorted.deleting.push(member);
                continue;
            }
            match member.spec.lifecycle {
                Lifecycle::Joining => sorted.joining.push(member),
                Lifecycle::Leaving => sorted.leaving.push(member),
                Lifecycle::Active => {}
            }
            if member.pod.as_ref().is_some_and(|pod| pod.deleting) {
                sorted.terminating.push(member);
            }
        }
        sorted
    }
}

impl Deref for Picture<'_> {
    type Target = Observed;

    fn deref(&self) -> &Observed {
        self.seen
    }
}
