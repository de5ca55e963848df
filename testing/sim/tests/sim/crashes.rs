//! Killing a process of the operator between any two calls changes nothing but time: each call in turn is where it
//! crashes, before the call and after it. Of the longer list of stories below the first three it is every third place, and
//! each with `SIM_COMPLETE`.

use std::time::Instant;

use sim::ports::Crash;
use sim::scenario::{Event, Scenario, Victim};
use sim::simulation::Simulation;

/// Crashes at each `step`th place of the story.
fn assert_crashes_change_nothing_but_time(mut scenario: Scenario, step: usize) {
    let started = Instant::now();
    scenario.quiet_ticks = 3;
    let whole = Simulation::new(scenario.clone(), false).run().unwrap_or_else(|failure| panic!("{failure}"));
    let cluster = (whole.calls.0 + 1..=whole.calls.1).map(|at| (at, true));
    let node = (whole.node_calls.0 + 1..=whole.node_calls.1).map(|at| (at, false));
    let mut crashes = 0;
    let calls =
        cluster.chain(node).flat_map(|(at, of_cluster)| [(at, of_cluster, false), (at, of_cluster, true)]);
    for (at, of_cluster, after) in calls.step_by(step) {
        let crash = Some(Crash { at, after });
        let simulation = Simulation::new(scenario.clone(), false);
        let (cluster, node) = if of_cluster { (crash, None) } else { (None, crash) };
        simulation.plan_crashes(cluster, node);
        if let Err(failure) = simulation.run() {
            let who = if of_cluster { "cluster-ctl" } else { "node-ctl" };
            panic!("{who} crashes at call {at} (after it: {after}): {failure}");
        }
        crashes += 1;
    }
    assert!(crashes > 20, "only {crashes} places to crash at: the story is too short to prove anything");
    println!("{crashes} crashes survived in {} s", started.elapsed().as_secs());
}

#[test]
fn bootstrap_survives_a_crash_at_every_call() {
    assert_crashes_change_nothing_but_time(Scenario::bootstrap(1, 3, 1), 1);
}

fn assert_event_survives(shards: u16, replicas: u16, event: Event) {
    let step = if std::env::var_os("SIM_COMPLETE").is_some() { 1 } else { 3 };
    assert_crashes_change_nothing_but_time(Scenario::one_event(1, shards, replicas, event), step);
}

fn resize(shards: u16, replicas: u16) -> Event {
    Event::Resize("cart".to_owned(), shards, replicas)
}

#[test]
fn the_death_of_a_replica_survives_a_crash_at_every_call() {
    let death = Scenario::one_event(1, 3, 1, Event::Kill(Victim::Replica));
    assert_crashes_change_nothing_but_time(death, 1);
}

#[test]
fn the_death_of_a_primary_survives_a_crash_at_every_call() {
    let death = Scenario::one_event(1, 3, 1, Event::Kill(Victim::Primary));
    assert_crashes_change_nothing_but_time(death, 1);
}

#[test]
fn the_loss_of_a_shard_survives_crashes() {
    assert_event_survives(3, 0, Event::Kill(Victim::Primary));
}

#[test]
fn the_death_of_a_primary_without_a_majority_survives_crashes() {
    assert_event_survives(1, 1, Event::Kill(Victim::Primary));
}

#[test]
fn an_evicted_primary_survives_crashes() {
    assert_event_survives(2, 1, Event::DeletePod(Victim::Primary));
}

#[test]
fn a_primary_whose_pod_is_deleted_by_force_survives_crashes() {
    assert_event_survives(2, 1, Event::ForceDelete(Victim::Primary));
}

#[test]
fn scaling_out_survives_crashes() {
    assert_event_survives(2, 1, resize(3, 1));
}

#[test]
fn scaling_in_survives_crashes() {
    assert_event_survives(3, 1, resize(2, 1));
}

#[test]
fn more_replicas_survive_crashes() {
    assert_event_survives(2, 0, resize(2, 1));
}

#[test]
fn fewer_replicas_survive_crashes() {
    assert_event_survives(2, 1, resize(2, 0));
}

#[test]
fn a_roll_survives_crashes() {
    assert_event_survives(2, 1, Event::Image("9.1.3"));
}

#[test]
fn a_roll_without_replicas_survives_crashes() {
    assert_event_survives(2, 0, Event::Image("9.1.3"));
}

#[test]
fn a_deletion_survives_crashes() {
    assert_event_survives(2, 1, Event::Delete("cart".to_owned()));
}
