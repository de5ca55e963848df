//! Operations and faults under load on a Kubernetes cluster, each a scenario with a name.
//!
//! A scenario makes a cluster of its own, plays, and leaves a table, a picture and all measurements. Those that break
//! something work on the local Kubernetes only.

pub mod actions;
pub mod breaking;
pub mod by_hand;
pub mod faults;
pub mod members;
pub mod order;
pub mod other_client;
pub mod planned;
pub mod release;
pub mod rolls;
pub mod security;
pub mod soak;
pub mod stage;
pub mod users;
pub mod wounds;

use std::path::PathBuf;

use anyhow::{Result, bail};
use test_e2e::Scene;

use crate::report::Row;

/// What all scenarios are given.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Where results go.
    pub folder: PathBuf,
    /// Seed of chance.
    pub seed: u64,
    /// Commands a second of the application.
    pub rate: u32,
}

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whether it breaks something.
    pub is_fault: bool,
}

const fn planned(name: &'static str, about: &'static str) -> Scenario {
    Scenario { name, about, is_fault: false }
}

const fn fault(name: &'static str, about: &'static str) -> Scenario {
    Scenario { name, about, is_fault: true }
}

/// All scenarios, in the order in which they are played.
pub const ALL: &[Scenario] = &[
    planned("scale", "shards 3→4→6→3→1→3"),
    planned("bulk", "shards 3→4 with 100 000 keys, beside one bulk migration of the same slots by hand"),
    planned("by-hand", "3×1: hand-overs and moves of slots without the operator, and then by it"),
    planned("replicas", "replicas 1→2→0→1"),
    planned("rolls", "settings, image name and placement of 4×1 changed"),
    planned("upgrade", "3×1 from Valkey 8.1 to 9.1"),
    planned("drain", "kubectl drain of each machine in turn"),
    planned("operator", "the operator restarted and killed in the middle of scaling and rolling"),
    planned("release", "the operator of --older COMMIT upgraded and rolled back in a bootstrap and in rolls"),
    planned("security", "certificates, authorities and passwords of 3×1 renewed; scaled and rolled by TLS"),
    planned("users", "users of 3×1 edited a dozen times; security has the same by TLS"),
    planned("other-client", "shards 3→4→3 and a roll, as valkey-py sees them"),
    fault("primary", "a primary of 3×1 killed, ten times"),
    fault("half", "two of four primaries killed at once, three times"),
    fault("two-of-three", "two of three primaries killed at once, three times"),
    fault("bare", "a primary without replica killed"),
    fault("kubelet", "a kubelet stopped for two minutes"),
    fault("machine", "a machine crashes and comes back"),
    fault("cut", "one zone cut off from the others, and healed"),
    fault("api", "the API server away for two minutes, a primary killed meanwhile"),
    fault("midway", "a primary killed in the middle of scaling and of a roll"),
    fault("no-operator", "a primary killed while the operator is at zero"),
    fault("frozen", "a primary of 3×0 frozen for two minutes"),
    fault("frozen-long", "a primary of 3×0, by TLS, frozen for ten minutes"),
    fault("small", "primaries of 1×1 and 2×1 killed and drained"),
];

/// Plays a scenario; what went wrong that must not is in the list.
///
/// # Errors
///
/// It could not be played to its end.
pub async fn play(name: &str, setting: &Setting) -> Result<Vec<String>> {
    let Some(scenario) = ALL.iter().find(|it| it.name == name) else {
        bail!("no scenario {name}");
    };
    test_e2e::say(&format!("\n== {name}: {} ==", scenario.about));
    let scene = Scene::alone(&format!("load-{name}")).await?;
    let rows = match name {
        "scale" => planned::scale(&scene, setting).await?,
        "bulk" => planned::bulk(&scene, setting).await?,
        "by-hand" => by_hand::by_hand(&scene, setting).await?,
        "replicas" => planned::replicas(&scene, setting).await?,
        "rolls" => rolls::rolls(&scene, setting).await?,
        "upgrade" => rolls::upgrade(&scene, setting).await?,
        "drain" => planned::drain(&scene, setting).await?,
        "security" => security::security(&scene, setting).await?,
        "users" => users::users(&scene, setting).await?,
        "release" => release::release(&scene, setting).await?,
        "operator" => rolls::operator(&scene, setting).await?,
        "other-client" => other_client::other_client(&scene, setting).await?,
        "primary" => faults::primary(&scene, setting).await?,
        "half" => faults::half(&scene, setting).await?,
        "two-of-three" => faults::two_of_three(&scene, setting).await?,
        "bare" => faults::bare(&scene, setting).await?,
        "kubelet" => wounds::kubelet(&scene, setting).await?,
        "machine" => wounds::machine(&scene, setting).await?,
        "cut" => wounds::cut(&scene, setting).await?,
        "api" => wounds::api(&scene, setting).await?,
        "midway" => faults::midway(&scene, setting).await?,
        "no-operator" => faults::no_operator(&scene, setting).await?,
        "frozen-long" => wounds::frozen_long(&scene, setting).await?,
        "frozen" => wounds::frozen(&scene, setting).await?,
        _ => faults::small(&scene, setting).await?,
    };
    scene.finish()?;
    Ok(judge(&rows, scenario.is_fault))
}

/// What in these rows must not be.
pub fn judge(rows: &[Row], faults: bool) -> Vec<String> {
    if rows.is_empty() {
        return vec!["nothing was played".to_owned()];
    }
    let of = |row: &Row| if faults { row.faults_of_a_recovery() } else { row.faults_of_a_plan() };
    rows.iter().flat_map(of).collect()
}
