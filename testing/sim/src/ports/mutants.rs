//! Deliberate errors of the operator, made at its ports: a simulation that does not catch them proves nothing.

use std::sync::Arc;

use cluster_ctl::ports::Command;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod};
use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;

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
}

impl Mutant {
    /// What a node said, as the mutant reads it.
    pub fn read(self, report: &mut NodeReport) {
        match self {
            Self::OwnerOverlooked => {
                let mut lines = report.nodes.to_vec();
                for line in lines.iter_mut().filter(|line| !line.link_connected) {
                    line.slots = SlotSet::new();
                }
                report.nodes = lines.into();
            }
            Self::CopylessIsCopy => {
                if let Some(link) = &mut report.info.link {
                    link.offset.0 += 2;
                    link.down_since_seconds = (!link.up).then_some(0);
                    link.sync_in_progress = false;
                }
            }
            Self::StaleList | Self::SlotsTwice | Self::SilenceIsDeath | Self::NoLock => {}
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
        let frozen = world.valkey.in_pod(uid).is_some_and(|node| node.frozen);
        if self != Self::SilenceIsDeath || !frozen {
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
