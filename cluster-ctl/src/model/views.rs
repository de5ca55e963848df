//! What the views of a tick say together, digested once: who says what of an ID, in counts and in the lines that differ.
//!
//! With n nodes there are n² lines, nearly all of which repeat each other; what follows from them all is derived here, so
//! that no rule walks them again. What one view says is asked of that view. Must not judge: that is the rules' part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId, NodeLine};

use super::{Member, Observed};

static NO_SLOTS: SlotSet = SlotSet::new();

/// What all views say.
#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    /// Every ID that some view lists, ordered; `said` is in the same order.
    ids: Vec<NodeId>,
    said: Vec<Said>,
    owners: BTreeMap<NodeId, SlotSet>,
    unowned: SlotSet,
    claimed: SlotSet,
    doubted: BTreeSet<NodeId>,
    /// Members by their ID; of several the first name.
    members: BTreeMap<NodeId, String>,
    /// Who answers under an ID; of several the first name.
    answering: BTreeMap<NodeId, String>,
    /// Names of the answering members that replicate an ID in their own view.
    followers: BTreeMap<NodeId, Vec<String>>,
    /// IDs that replicate an ID in some view.
    replicas: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Number of views.
    count: usize,
}

/// What all views say of one ID.
#[derive(Clone, Debug, Default)]
struct Said {
    /// The lines of it that differ from each other.
    lines: Vec<Arc<NodeLine>>,
    /// Slots that any view gives it.
    slots: SlotSet,
    /// Views that list it.
    listed: usize,
    /// Of these, views of who answers under this very ID.
    listed_by_itself: usize,
    /// Of these, views of nodes that own slots in their own view.
    listed_by_owners: usize,
    /// Views that flag it `fail`, of nodes that own slots in any view.
    failed_for: usize,
    /// For how long it has not answered those that doubt it, by the last that heard of it, milliseconds.
    unheard_millis: Option<u64>,
    /// Somebody answers under it.
    answers: bool,
    /// How many of the IDs that answer its own view lists.
    acquaintances: usize,
}

/// Reports whose views have all lines in common.
struct Group<'a> {
    lines: &'a [Arc<NodeLine>],
    reports: Vec<&'a NodeReport>,
}

impl Views {
    /// Of the reports of `members`.
    pub(super) fn of(members: &BTreeMap<String, Member>) -> Self {
        let mut views = Self::default();
        for member in members.values() {
            if let Some(id) = member.id() {
                views.members.entry(id).or_insert_with(|| member.name.clone());
            }
        }
        let reports: Vec<(&str, &NodeReport)> =
            members.values().filter_map(|member| Some((member.name.as_str(), member.report()?))).collect();
        views.hear_of_themselves(&reports);
        let groups = groups(reports.iter().map(|(_, report)| *report));
        views.collect_ids(&groups);
        views.collect_lines(&groups);
        views.derive_from_lines();
        for group in &groups {
            views.count(group);
        }
        for (_, report) in reports {
            views.hear_of_outages(report);
        }
        views
    }

    /// What each says of itself.
    fn hear_of_themselves(&mut self, reports: &[(&str, &NodeReport)]) {
        self.count = reports.len();
        for (name, report) in reports {
            self.answering.entry(report.id).or_insert_with(|| (*name).to_owned());
            if let Some(primary) = report.myself().and_then(|line| line.primary) {
                self.followers.entry(primary).or_default().push((*name).to_owned());
            }
        }
        let own = reports.iter().filter_map(|(_, report)| report.myself());
        self.claimed = own.flat_map(|line| line.slots.ranges().iter().copied()).collect();
    }

    fn collect_ids(&mut self, groups: &[Group<'_>]) {
        let mut new = BTreeSet::new();
        for group in groups {
            let placed =
                placed(&self.ids, group.lines).filter(|(place, line)| self.ids.get(*place) != Some(&line.id));
            new.extend(placed.map(|(_, line)| line.id));
            // Not each time: views of which each knows but itself would each move all the others.
            if new.len() > self.ids.len() {
                self.ids.extend(std::mem::take(&mut new));
                self.ids.sort();
            }
        }
        self.ids.extend(new);
        self.ids.sort();
        self.said.resize_with(self.ids.len(), Said::default);
    }

    fn collect_lines(&mut self, groups: &[Group<'_>]) {
        for group in groups {
            for (place, line) in placed(&self.ids, group.lines) {
                let Some(said) = self.said.get_mut(place) else { continue };
                if !said.lines.contains(line) {
                    said.lines.push(Arc::clone(line));
                }
            }
        }
    }

    fn derive_from_lines(&mut self) {
        for (id, said) in self.ids.iter().zip(&mut self.said) {
            for line in &said.lines {
                if said.slots != line.slots {
                    said.slots = said.slots.union(&line.slots);
                }
                if is_doubted(line) && !line.flags.handshake {
                    self.doubted.insert(*id);
                }
                if let Some(primary) = line.primary {
                    self.replicas.entry(primary).or_default().insert(*id);
                }
            }
            if !said.slots.is_empty() {
                self.owners.insert(*id, said.slots.clone());
            }
        }
        for (id, said) in self.ids.iter().zip(&mut self.said) {
            said.answers = self.answering.contains_key(id);
        }
        let owned: SlotSet = self.owners.values().flat_map(|slots| slots.ranges().iter().copied()).collect();
        self.unowned = SlotSet::all().difference(&owned);
    }

    /// Who lists whom.
    fn count(&mut self, group: &Group<'_>) {
        let own = |report: &NodeReport| report.myself().is_some_and(|line| !line.slots.is_empty());
        let views = group.reports.len();
        let owners = group.reports.iter().filter(|report| own(report)).count();
        let owners_for_any =
            group.reports.iter().filter(|report| self.owners.contains_key(&report.id)).count();
        let (mut acquaintances, mut before) = (0, None);
        for (place, line) in placed(&self.ids, group.lines) {
            let Some(said) = self.said.get_mut(place).filter(|_| before != Some(place)) else { continue };
            before = Some(place);
            said.listed += views;
            said.listed_by_owners += owners;
            if line.flags.fail {
                said.failed_for += owners_for_any;
            }
            acquaintances += usize::from(said.answers);
        }
        for report in &group.reports {
            if report.line(report.id).is_some()
                && let Some(said) = self.said_mut(report.id)
            {
                said.listed_by_itself += 1;
                said.acquaintances = acquaintances;
            }
        }
    }

    fn hear_of_outages(&mut self, report: &NodeReport) {
        for (id, pong) in report.nodes.last_pongs() {
            let millis = (report.info.server_time_usec / 1000).saturating_sub(pong);
            if let Some(said) = self.said_mut(id) {
                said.unheard_millis = Some(said.unheard_millis.map_or(millis, |least| least.min(millis)));
            }
        }
    }

    fn said(&self, id: NodeId) -> Option<&Said> {
        self.said.get(self.ids.binary_search(&id).ok()?)
    }

    fn said_mut(&mut self, id: NodeId) -> Option<&mut Said> {
        self.said.get_mut(self.ids.binary_search(&id).ok()?)
    }
}

/// The reports by views that are the very same.
fn groups<'a>(reports: impl Iterator<Item = &'a NodeReport>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut by_view = BTreeMap::new();
    for report in reports {
        let lines = report.nodes.common();
        let place = *by_view.entry(lines.as_ptr()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.reports.push(report),
            None => groups.push(Group { lines, reports: vec![report] }),
        }
    }
    groups
}

/// Each of `lines` with its place among the ordered `ids`, or where it would be.
fn placed<'a>(
    ids: &[NodeId],
    lines: &'a [Arc<NodeLine>],
) -> impl Iterator<Item = (usize, &'a Arc<NodeLine>)> {
    let mut place = 0;
    lines.iter().map(move |line| {
        let is_before = |id: &NodeId| *id < line.id;
        // Most often it is the next one.
        if ids.get(place).is_some_and(is_before) {
            place += 1;
        }
        if ids.get(place).is_some_and(is_before) {
            place += ids.get(place..).map_or(0, |rest| rest.partition_point(is_before));
        }
        (place, line)
    })
}

fn is_doubted(line: &NodeLine) -> bool {
    line.flags.fail || line.flags.pfail || line.flags.noaddr
}

/// Questions about all views together.
impl Observed {
    /// The lines of all views that differ in more than times and the mark `myself`, by ID.
    pub fn lines(&self) -> impl Iterator<Item = &NodeLine> {
        self.views.said.iter().flat_map(|said| &said.lines).map(|line| &**line)
    }

    /// The lines of `id` in all views that differ in more than times and the mark `myself`.
    pub fn lines_of(&self, id: NodeId) -> impl Iterator<Item = &NodeLine> {
        self.views.said(id).into_iter().flat_map(|said| &said.lines).map(|line| &**line)
    }

    /// Slots that any view shows as owned by `id`.
    pub fn slots_of(&self, id: NodeId) -> &SlotSet {
        self.views.said(id).map_or(&NO_SLOTS, |said| &said.slots)
    }

    /// Every slot owner that any view shows, with all slots that any view gives it.
    pub fn owners(&self) -> &BTreeMap<NodeId, SlotSet> {
        &self.views.owners
    }

    /// Slots that no view shows as owned. They may be somebody's as long as a member is unknown.
    pub fn unowned(&self) -> &SlotSet {
        &self.views.unowned
    }

    /// Slots that answering nodes claim for themselves.
    pub fn claimed(&self) -> &SlotSet {
        &self.views.claimed
    }

    /// IDs that some view doubts: flagged `fail`, `fail?` or `noaddr`. Not those of handshakes.
    pub fn doubted(&self) -> &BTreeSet<NodeId> {
        &self.views.doubted
    }

    /// No view holds `id` for alive.
    pub fn doubted_by_all(&self, id: NodeId) -> bool {
        self.lines_of(id).all(is_doubted)
    }

    /// The member with this Valkey node ID.
    pub fn member_by_id(&self, id: NodeId) -> Option<&Member> {
        self.members.get(self.views.members.get(&id)?)
    }

    /// The member that answers under this ID, whatever its record says, and what it said.
    pub fn answering(&self, id: NodeId) -> Option<(&Member, &NodeReport)> {
        let member = self.members.get(self.views.answering.get(&id)?)?;
        Some((member, member.report()?))
    }

    /// Answering members that replicate `id` in their own view.
    pub fn followers(&self, id: NodeId) -> impl Iterator<Item = (&Member, &NodeReport)> {
        let names = self.views.followers.get(&id).into_iter().flatten();
        names.filter_map(|name| {
            let member = self.members.get(name)?;
            Some((member, member.report()?))
        })
    }

    /// IDs that replicate `id` in any view.
    pub fn replicas_of(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        self.views.replicas.get(&id).into_iter().flatten().copied()
    }

    /// Whether any answering member other than itself lists `id`.
    pub fn listed_by_others(&self, id: NodeId) -> bool {
        self.views.said(id).is_some_and(|said| said.listed > said.listed_by_itself)
    }

    /// Whether every answering member lists `id`.
    pub fn listed_by_all(&self, id: NodeId) -> bool {
        self.views.said(id).map_or(0, |said| said.listed) == self.views.count
    }

    /// Number of answering members that own slots in their own view and list `id`.
    pub fn listed_by_owners(&self, id: NodeId) -> usize {
        self.views.said(id).map_or(0, |said| said.listed_by_owners)
    }

    /// A majority of the slot-holding primaries flags `id` as failed, by vote (`fail`), not by suspicion (`fail?`).
    pub fn failed_for_majority(&self, id: NodeId) -> bool {
        self.views.said(id).is_some_and(|said| said.failed_for > self.views.owners.len() / 2)
    }

    /// How long `id` has not answered those that flag it `fail` or `fail?`, milliseconds, by the clock of the last that
    /// heard of it.
    pub fn outage(&self, id: NodeId) -> Option<i64> {
        i64::try_from(self.views.said(id)?.unheard_millis?).ok()
    }

    /// How many of the IDs that answer the view of `id` lists, itself among them; 0 when it did not answer.
    pub fn acquaintances(&self, id: NodeId) -> usize {
        self.views.said(id).map_or(0, |said| said.acquaintances)
    }

    /// The highest configuration epoch in any view.
    pub fn highest_epoch(&self) -> Epoch {
        self.lines().map(|line| line.epoch).max().unwrap_or_default()
    }
}
