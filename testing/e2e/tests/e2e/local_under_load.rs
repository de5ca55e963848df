//! Planned work and a death under load: what clients see, what is left of the data, in which order it was done.
//!
//! A small part of what `cargo xtask load` and `cargo xtask faults` play; those also measure. Here nothing depends on
//! how fast the machine is.

use std::time::Duration;

use load::Options;
use load::report::{Row, Settled};
use load::scenario::faults;
use load::scenario::planned::reshard;
use load::scenario::stage::Stage;
use test_e2e::Scene;

/// A load that leaves the machine time for the rest.
fn light() -> Options {
    Options { keys: 8000, clients: 4, tasks: 16, rate: 800, ..Options::default() }
}

fn nothing_missed(row: &Row) {
    assert!(row.window.writes > 100, "hardly a load: {:?}", row.window);
    assert_eq!(row.faults_of_a_plan(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_loses_no_write_fails_no_command_and_keeps_the_order() {
    let scene = Scene::alone("planned").await.unwrap();
    let mut stage = Stage::open(&scene, "planned", 3, 1, &light()).await.unwrap();
    nothing_missed(&reshard(&mut stage, 4).await.unwrap());
    nothing_missed(&reshard(&mut stage, 3).await.unwrap());
    stage.close(None).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_primary_dies_takes_writes_again_and_the_cluster_becomes_whole() {
    let scene = Scene::alone("death").await.unwrap();
    let mut stage = Stage::open(&scene, "death", 3, 1, &light()).await.unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let row = faults::kill(&mut stage, "a primary killed", 1, &mut random).await.unwrap();
    assert_eq!(row.faults_of_a_recovery(), Vec::<String>::new());
    assert!(matches!(row.settled, Settled::After(_)));
    // The process died, not its machine: at most what it acknowledged in the turn in which it died has not arrived.
    assert!(row.verdict.lost < 20, "{:?}", row.verdict);
    // An election by the engine alone takes six seconds and more.
    let writable = row.writable_s.unwrap_or(0.0);
    assert!(Duration::from_secs_f64(writable) < Duration::from_secs(5), "writable after {writable} s");
    stage.close(None).await.unwrap();
    scene.finish().unwrap();
}
