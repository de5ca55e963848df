//! What the views say together is what a walk over each of them finds, also when they do not agree.

use std::collections::{BTreeMap, BTreeSet};

use cluster_ctl::model::{Answer, Member, Observed};
use cluster_ctl::plan::plan;
use proptest::prelude::*;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::types::{Epoch, NodeFlags, NodeId, NodeLine};
use shared::valkey::view::{Sharing, View};

use crate::properties::worlds;
use crate::world::{World, id, line, world};

/// IDs of which views speak; the first ones answer.
const IDS: u8 = 7;
/// A clock that is ahead of every pong.
const NOW_MILLIS: u64 = 60_000;

/// A view's differences from what is agreed on: another line of an ID, or none.
type Changes = Vec<(u8, Option<NodeLine>)>;
/// What the members say: for each its lines, unordered, as a parser gives them.
type Said = Vec<Vec<NodeLine>>;

fn a_line(number: u8) -> impl Strategy<Value = NodeLine> {
    let flags = (0u8..12, any::<bool>());
    let numbers = (0u64..4, 0..NOW_MILLIS, 0..NOW_MILLIS);
    let primary = prop::option::of(1..=IDS);
    (flags, numbers, primary, prop::option::of((0u16..6, 0u16..3)), any::<bool>()).prop_map(
        move |((flag, noaddr), (epoch, ping_sent, pong_recv), primary, slots, link_connected)| NodeLine {
            flags: NodeFlags {
                primary: primary.is_none(),
                replica: primary.is_some(),
                fail: flag == 0,
                pfail: flag == 1,
                handshake: flag == 2,
                noaddr: flag == 3 && noaddr,
                ..NodeFlags::default()
            },
            primary: primary.map(id),
            epoch: Epoch(epoch),
            ping_sent,
            pong_recv,
            link_connected,
            slots: slots
                .and_then(|(start, more)| SlotRange::new(start * 10, start * 10 + more * 10))
                .into_iter()
                .collect(),
            ..line(id(number), NodeFlags::default())
        },
    )
}

/// Views of up to five members: they agree, but for a few lines that each has changed or lacks, and for times.
fn said() -> impl Strategy<Value = Said> {
    let agreed: Vec<_> = (1..=IDS).map(a_line).collect();
    let change =
        (1..=IDS).prop_flat_map(|number| prop::option::of(a_line(number)).prop_map(move |it| (number, it)));
    let view = (prop::collection::vec(change, 0..4), 0..NOW_MILLIS);
    (agreed, prop::collection::vec(view, 1..6)).prop_map(|(agreed, views)| {
        let view = |(own, (changes, time)): (u8, (Changes, u64))| {
            let mut lines: BTreeMap<NodeId, NodeLine> = agreed.iter().map(|it| (it.id, it.clone())).collect();
            for line in lines.values_mut() {
                line.pong_recv = line.pong_recv.saturating_sub(time);
            }
            for (number, change) in changes.into_iter().filter(|(number, _)| *number != own) {
                lines.remove(&id(number));
                lines.extend(change.map(|line| (line.id, line)));
            }
            if let Some(line) = lines.get_mut(&id(own)) {
                let role =
                    NodeFlags { fail: false, pfail: false, handshake: false, noaddr: false, ..line.flags };
                line.flags = NodeFlags { myself: true, ..role };
                (line.ping_sent, line.pong_recv) = (0, 0);
            }
            // CLUSTER NODES has no order.
            lines.into_values().rev().collect()
        };
        (1..).zip(views).map(view).collect()
    })
}

fn members(world: &World, said: &Said, mut sharing: Option<Sharing>) -> Vec<Member> {
    let members = world.members().zip(said).map(|(mut member, lines)| {
        if let Answer::Said(report) = &mut member.answer {
            report.nodes = View::from(lines.clone());
            report.info.server_time_usec = NOW_MILLIS * 1_000;
            if let Some(sharing) = &mut sharing {
                sharing.share(&mut report.nodes);
            }
        }
        member
    });
    members.collect()
}

/// As a view keeps it.
fn timeless(line: &NodeLine) -> NodeLine {
    NodeLine { ping_sent: 0, pong_recv: 0, ..line.clone() }
}

/// As all views together keep it.
fn neutral(line: &NodeLine) -> NodeLine {
    NodeLine { flags: NodeFlags { myself: false, ..line.flags }, ..timeless(line) }
}

/// The walk over every line of every view.
struct Walk<'a>(&'a Said);

impl Walk<'_> {
    fn own(&self) -> impl Iterator<Item = &NodeLine> {
        self.0.iter().map(|lines| lines.iter().find(|line| line.flags.myself).unwrap())
    }

    fn all(&self) -> impl Iterator<Item = &NodeLine> {
        self.0.iter().flatten()
    }

    fn of(&self, id: NodeId) -> impl Iterator<Item = &NodeLine> {
        self.all().filter(move |line| line.id == id)
    }

    fn slots_of(&self, id: NodeId) -> SlotSet {
        self.of(id).flat_map(|line| line.slots.ranges().iter().copied()).collect()
    }

    fn owners(&self) -> BTreeMap<NodeId, SlotSet> {
        let ids = self.all().filter(|line| !line.slots.is_empty()).map(|line| line.id);
        ids.map(|id| (id, self.slots_of(id))).collect()
    }

    /// Views in which `holds` is true of the line of `id`, with the own lines of those whose views they are.
    fn views(&self, id: NodeId, holds: impl Fn(&NodeLine) -> bool) -> Vec<&NodeLine> {
        let views = self.0.iter().zip(self.own());
        views
            .filter(|(lines, _)| lines.iter().any(|line| line.id == id && holds(line)))
            .map(|(_, own)| own)
            .collect()
    }
}

fn agrees(seen: &Observed, walk: &Walk<'_>) -> Result<(), TestCaseError> {
    let owners = walk.owners();
    prop_assert_eq!(seen.owners(), &owners);
    let owned: SlotSet = owners.values().flat_map(|slots| slots.ranges().iter().copied()).collect();
    prop_assert_eq!(seen.unowned(), &SlotSet::all().difference(&owned));
    let claimed: SlotSet = walk.own().flat_map(|line| line.slots.ranges().iter().copied()).collect();
    prop_assert_eq!(seen.claimed(), &claimed);
    prop_assert_eq!(Some(seen.highest_epoch()), walk.all().map(|line| line.epoch).max());
    let doubted = |line: &&NodeLine| line.flags.fail || line.flags.pfail || line.flags.noaddr;
    let in_doubt = walk.all().filter(doubted).filter(|line| !line.flags.handshake).map(|line| line.id);
    prop_assert_eq!(seen.doubted(), &in_doubt.collect::<BTreeSet<_>>());
    for number in 1..=IDS {
        agrees_of(seen, walk, &owners, id(number))?;
    }
    for ((_, report), lines) in seen.reports().zip(walk.0) {
        let answering = walk.own().filter(|own| lines.iter().any(|line| line.id == own.id));
        prop_assert_eq!(seen.acquaintances(report.id), answering.count());
        let mut ordered: Vec<NodeLine> = lines.iter().map(timeless).collect();
        ordered.sort_by_key(|line| line.id);
        prop_assert_eq!(report.nodes.iter().cloned().collect::<Vec<_>>(), ordered);
        let own = lines.iter().find(|line| line.flags.myself).map(timeless);
        prop_assert_eq!(report.myself(), own.as_ref());
        prop_assert_eq!(View::from(report.nodes.to_vec()), report.nodes.clone());
        let greetings = lines.iter().filter(|line| line.flags.handshake).count();
        prop_assert_eq!((report.nodes.len(), report.nodes.handshakes()), (lines.len(), greetings));
    }
    Ok(())
}

fn agrees_of(
    seen: &Observed,
    walk: &Walk<'_>,
    owners: &BTreeMap<NodeId, SlotSet>,
    id: NodeId,
) -> Result<(), TestCaseError> {
    let names = |members: Vec<&Member>| members.iter().map(|member| member.name.clone()).collect::<Vec<_>>();
    let mut lines: Vec<NodeLine> = Vec::new();
    for line in walk.of(id).map(neutral) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    prop_assert_eq!(seen.lines_of(id).cloned().collect::<Vec<_>>(), lines);
    prop_assert_eq!(seen.slots_of(id), &walk.slots_of(id));
    let doubted = |line: &NodeLine| line.flags.fail || line.flags.pfail || line.flags.noaddr;
    prop_assert_eq!(seen.doubted_by_all(id), walk.of(id).all(doubted));
    let listing = walk.views(id, |_| true);
    prop_assert_eq!(seen.listed_by_others(id), listing.iter().any(|own| own.id != id));
    prop_assert_eq!(seen.listed_by_all(id), listing.len() == walk.0.len());
    prop_assert_eq!(seen.listed_by_owners(id), listing.iter().filter(|own| !own.slots.is_empty()).count());
    let failing = walk.views(id, |line| line.flags.fail);
    let votes = failing.iter().filter(|own| owners.contains_key(&own.id)).count();
    prop_assert_eq!(seen.failed_for_majority(id), votes > owners.len() / 2);
    let flagged = walk.of(id).filter(|line| (line.flags.fail || line.flags.pfail) && line.pong_recv > 0);
    let outage = flagged.map(|line| NOW_MILLIS - line.pong_recv).min();
    prop_assert_eq!(seen.outage(id), outage.map(|millis| i64::try_from(millis).unwrap()));
    let replicas: BTreeSet<NodeId> =
        walk.all().filter(|line| line.primary == Some(id)).map(|line| line.id).collect();
    prop_assert_eq!(seen.replicas_of(id).collect::<BTreeSet<_>>(), replicas);
    let follows = |member: &&Member| {
        member.report().is_some_and(|report| report.myself().and_then(|line| line.primary) == Some(id))
    };
    let followers: Vec<&Member> = seen.members.values().filter(follows).collect();
    prop_assert_eq!(names(seen.followers(id).map(|(member, _)| member).collect()), names(followers));
    let answering = seen.reports().find(|(_, report)| report.id == id).map(|(member, _)| &member.name);
    prop_assert_eq!(seen.answering(id).map(|(member, _)| &member.name), answering);
    let member = seen.members.values().find(|member| member.id() == Some(id)).map(|member| &member.name);
    prop_assert_eq!(seen.member_by_id(id).map(|member| &member.name), member);
    Ok(())
}

proptest! {
    #[test]
    fn all_views_together_say_what_a_walk_over_each_finds(said in said()) {
        let shards = u16::try_from(said.len()).unwrap();
        let world = world(shards, 0).with_slots();
        for sharing in [None, Some(Sharing::default())] {
            let seen = world.seen(members(&world, &said, sharing).into_iter());
            agrees(&seen, &Walk(&said))?;
        }
    }

    #[test]
    fn a_decision_is_the_same_whether_or_not_views_share_what_they_agree_on(world in worlds()) {
        let alone = world.seen(world.members());
        prop_assert_eq!(plan(&alone, &world.want), world.plan());
    }
}
