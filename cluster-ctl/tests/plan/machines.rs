//! Proof of death by what becomes of a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster_ctl::machines::{Fact, facts, prove};
use cluster_ctl::model::Millis;
use cluster_ctl::ports::Machine;

use crate::world::{World, world};

/// A primary on machine `m0` that is silent, and that machine.
fn silent(machine: Option<Machine>, pod_gone: bool) -> (World, BTreeMap<String, Machine>) {
    let world = world(1, 1).formed().with(|world| {
        world.silence("c-00", None);
        world.node("c-00").pod_vanished = pod_gone;
    });
    (world, machine.into_iter().map(|it| ("m0".to_owned(), it)).collect())
}

fn ready(since: i64) -> Machine {
    Machine { ready_since: Some(Millis(since)), ..Machine::default() }
}

fn fact_of((world, machines): (World, BTreeMap<String, Machine>)) -> Option<Fact> {
    facts(&world.observed(), &machines).remove("pod-c-00")
}

#[test]
fn a_machine_that_is_gone_or_out_of_service_is_a_fact_and_one_that_is_only_unready_is_none() {
    assert_eq!(fact_of(silent(None, false)), Some(Fact::Absent));
    let tainted = Machine { out_of_service: true, ..Machine::default() };
    assert_eq!(fact_of(silent(Some(tainted), false)), Some(Fact::OutOfService));
    assert_eq!(fact_of(silent(Some(Machine::default()), true)), None, "nothing runs is not known");
    assert_eq!(fact_of(silent(Some(ready(5)), false)), None, "the Pod is there: the kubelet will say");
    assert_eq!(fact_of(silent(Some(ready(5)), true)), Some(Fact::PodGone { ready_since: Millis(5) }));
}

#[test]
fn what_answers_has_no_fact() {
    let world = world(1, 1).formed();
    assert!(facts(&world.observed(), &BTreeMap::new()).is_empty());
}

#[test]
fn a_fact_proves_death_only_after_it_has_lasted() {
    let minute = |fact: Fact| fact.proves_after() >= Duration::from_mins(1);
    assert!(minute(Fact::Absent) && minute(Fact::PodGone { ready_since: Millis(0) }));
    let gone = Fact::PodGone { ready_since: Millis(0) };
    assert!(gone.proves_after() >= Duration::from_secs(30 + 60 + 50), "grace, margin, and an unseen lease");
    for (age, dead) in [(Duration::from_secs(59), false), (Duration::from_mins(1), true)] {
        let (world, _) = silent(None, false);
        let mut seen = world.observed();
        prove(&mut seen, &BTreeMap::from([("pod-c-00".to_owned(), (Fact::Absent, age))]));
        assert_eq!(seen.members["c-00"].verified_dead(), dead, "{age:?}");
        assert!(!seen.members["c-01"].verified_dead());
    }
}
