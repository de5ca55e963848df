//! Killing a process of the operator between any two calls changes nothing but time: each call in turn is where it
//! crashes, before the call and after it.

use sim::ports::Crash;
use sim::scenario::{Scenario, Victim};
use sim::simulation::Simulation;

fn assert_crashes_change_nothing_but_time(mut scenario: Scenario) {
    scenario.quiet_ticks = 3;
    let whole = Simulation::new(scenario.clone(), false).run().unwrap_or_else(|failure| panic!("{failure}"));
    let cluster = (whole.calls.0 + 1..=whole.calls.1).map(|at| (at, true));
    let node = (whole.node_calls.0 + 1..=whole.node_calls.1).map(|at| (at, false));
    let mut crashes = 0;
    for (at, of_cluster) in cluster.chain(node) {
        for after in [false, true] {
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
    }
    assert!(crashes > 20, "only {crashes} places to crash at: the story is too short to prove anything");
    println!("{crashes} crashes survived");
}

#[test]
fn bootstrap_survives_a_crash_at_every_call() {
    assert_crashes_change_nothing_but_time(Scenario::bootstrap(1, 3, 1));
}

#[test]
fn the_death_of_a_replica_survives_a_crash_at_every_call() {
    assert_crashes_change_nothing_but_time(Scenario::one_death(1, 3, 1, Victim::Replica));
}

#[test]
fn the_death_of_a_primary_survives_a_crash_at_every_call() {
    assert_crashes_change_nothing_but_time(Scenario::one_death(1, 3, 1, Victim::Primary));
}
