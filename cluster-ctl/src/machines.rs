//! Proof of death by what becomes of a machine: the process of a Pod cannot run any more although nobody saw it end.
//!
//! Owns which facts prove it and how long each must last. A fact is remembered since it was first seen, by uptime: losing
//! that only lengthens the wait. Never of a member that answers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Member, Millis, Observed};
use crate::ports::Machine;

/// Grace period of a node's Pod, as node-ctl makes it.
const GRACE: Duration = Duration::from_secs(30);
/// A kubelet that has not renewed its lease is called not Ready after at most this time (Kubernetes 1.27 to 1.36:
/// `--node-monitor-grace-period` of 40 or 50 s, looked at every 5 s).
const NOT_READY_AFTER: Duration = Duration::from_secs(55);
/// Added to every other time.
const MARGIN: Duration = Duration::from_mins(1);

/// Something seen of the machine of a silent member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A person tainted it `node.kubernetes.io/out-of-service`: nothing runs on it.
    OutOfService,
    /// The cluster has no such machine any more.
    Absent,
    /// The Pod is gone from the API, and the machine works: its kubelet ends what is no Pod any more.
    PodGone {
        /// Since when the machine has been Ready: another moment is another fact.
        ready_since: Millis,
    },
}

impl Fact {
    /// How long it must last to prove that the process has ended.
    pub fn proves_after(self) -> Duration {
        match self {
            Self::OutOfService => Duration::ZERO,
            Self::Absent => MARGIN,
            // Ready all the time means that the lease was renewed until `NOT_READY_AFTER` ago.
            Self::PodGone { .. } => GRACE + MARGIN + NOT_READY_AFTER,
        }
    }
}

/// What the machines say of the members that do not answer, by the UID of the recorded Pod.
pub fn facts(seen: &Observed, machines: &BTreeMap<String, Machine>) -> BTreeMap<String, Fact> {
    let silent = seen.members.values().filter(|member| member.report().is_none() && !member.verified_dead());
    silent
        .filter_map(|member| {
            let record = member.recorded_pod.as_ref()?;
            Some((record.uid.clone(), fact(member, machines)?))
        })
        .collect()
}

fn fact(member: &Member, machines: &BTreeMap<String, Machine>) -> Option<Fact> {
    let Some(machine) = machines.get(member.machine.as_ref()?) else { return Some(Fact::Absent) };
    if machine.out_of_service {
        return Some(Fact::OutOfService);
    }
    let ready_since = machine.ready_since.filter(|_| member.pod_vanished)?;
    Some(Fact::PodGone { ready_since })
}

/// Marks the members whose end is proved by facts that have lasted.
pub fn prove(seen: &mut Observed, lasting: &BTreeMap<String, (Fact, Duration)>) {
    for member in seen.members.values_mut() {
        let of_pod = member.recorded_pod.as_ref().and_then(|record| lasting.get(&record.uid));
        member.ended_with_machine = of_pod.is_some_and(|(fact, age)| *age >= fact.proves_after());
    }
}
