//! Deliberate errors of the operator, made at its ports: a simulation that does not catch them proves nothing.

use std::sync::Arc;

use cluster_ctl::ports::Command;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod};
use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId, NodeLine};

use crate::world::World;

/// One error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The list of nodes before a create comes from the cache, not live.
    StaleList,
    /// Slots are assigned with one slot too many.
    SlotsTwice,
    /// A failed owner's slots are overlooked, so that it looks forgettable.
    OwnerOverlooked,
    /// Whoever is silent is taken for dead.
    SilenceIsDeath,
    /// The intent is written without looking at the resourceVersion.
    NoLock,
    /// A replica that never finished its first sync is taken for a copy.
    CopylessIsCopy,
    /// Neither the slots of a failed owner nor its replicas are looked at before it is forgotten.
    ForgetsEarly,
    /// Whoever follows a primary counts as in sync with it.
    RetiresEarly,
    /// Any replica is taken for one of the failed primary's.
    WrongShard,
    /// Whoever does not answer the operator is taken for dead.
    UnreachableIsDeath,
    /// FORCE is sent once more before anybody looks again.
    ForceTwice,
    /// A member that is to leave is deleted at once.
    DeletesUnreset,
    /// The heir of a lost shard keeps epoch 0, and is believed to have one above all.
    EpochZero,
    /// The views' `fail` is taken for a suspicion.
    FailOverlooked,
}

/// Bytes by which an offset is exaggerated: more than any story writes.
const FAR: i64 = 1 << 40;

fn edit(report: &mut NodeReport, change: impl FnMut(&mut NodeLine)) {
    let mut lines = report.nodes.to_vec();
    lines.iter_mut().for_each(change);
    report.nodes = lines.into();
}

/// A replica of a primary that is well looks like the best one of a slot owner that is not.
fn follow_the_failed(report: &mut NodeReport) {
    let own = report.myself().and_then(|line| line.primary);
    let lost = report.nodes.iter().find(|line| !line.link_connected && !line.slots.is_empty());
    let Some(lost) = lost.map(|line| line.id).filter(|lost| own.is_some() && own != Some(*lost)) else {
        return;
    };
    edit(report, |line| {
        if line.flags.myself {
            line.primary = Some(lost);
        }
    });
    if let Some(link) = &mut report.info.link {
        (link.up, link.down_since_seconds) = (false, Some(0));
        link.offset.0 += FAR;
    }
}

impl Mutant {
    /// What a node of a cluster said, as the mutant reads it.
    pub fn read(self, report: &mut NodeReport, formed: bool) {
        match self {
            Self::OwnerOverlooked => edit(report, |line| {
                if !line.link_connected {
                    line.slots = SlotSet::new();
                }
            }),
            Self::ForgetsEarly => {
                let out_of_sight = |line: &&NodeLine| !line.link_connected;
                let lost: Vec<NodeId> =
                    report.nodes.iter().filter(out_of_sight).map(|line| line.id).collect();
                edit(report, |line| {
                    if lost.contains(&line.id) {
                        line.slots = SlotSet::new();
                    }
                    line.primary = line.primary.filter(|primary| !lost.contains(primary));
                });
            }
            Self::RetiresEarly => {
                if let Some(link) = &mut report.info.link {
                    (link.up, link.sync_in_progress) = (true, false);
                    link.offset.0 += FAR;
                }
            }
            Self::WrongShard => follow_the_failed(report),
            Self::EpochZero => {
                if formed && report.nodes.len() == 1 {
                    edit(report, |line| line.epoch = Epoch(line.epoch.0.max(1_000)));
                }
            }
            Self::FailOverlooked => edit(report, |line| {
                line.flags.pfail |= line.flags.fail;
                line.flags.fail = false;
            }),
            Self::CopylessIsCopy => {
                if let Some(link) = &mut report.info.link {
                    link.offset.0 += 2;
                    link.down_since_seconds = (!link.up).then_some(0);
                    link.sync_in_progress = false;
                }
            }
            Self::StaleList
            | Self::SlotsTwice
            | Self::SilenceIsDeath
            | Self::NoLock
            | Self::UnreachableIsDeath
            | Self::ForceTwice
            | Self::DeletesUnreset => {}
        }
    }

    /// A command, as the mutant sends it.
    pub fn send(self, command: Command) -> Command {
        match (self, command) {
            (Self::SlotsTwice, Command::AddSlots(mut ranges)) => {
                if let Some(last) = ranges.pop() {
                    let end = (last.end + 1).min(shared::slots::SLOT_COUNT - 1);
                    ranges.extend(shared::slots::SlotRange::new(last.start, end));
                }
                Command::AddSlots(ranges)
            }
            (_, command) => command,
        }
    }

    /// A Pod of the cache, as the mutant sees it.
    pub fn see(self, world: &World, pod: Arc<Pod>) -> Arc<Pod> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let taken_for_dead = world.valkey.in_pod(uid).is_some_and(|node| match self {
            Self::SilenceIsDeath => node.frozen,
            Self::UnreachableIsDeath => world.valkey.network.cut_of(node.id).operator,
            _ => false,
        });
        if !taken_for_dead {
            return pod;
        }
        let mut dead = Pod::clone(&pod);
        let statuses = dead.status.as_mut().and_then(|status| status.container_statuses.as_mut());
        for status in statuses.into_iter().flatten() {
            let terminated =
                ContainerStateTerminated { exit_code: 137, ..ContainerStateTerminated::default() };
            status.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
        }
        Arc::new(dead)
    }
}
