//! A soak: under load something breaks at random every 20 to 60 s; in the end everything must be whole.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use test_e2e::objects::text;
use test_e2e::{Kind, Scene, processes};

use super::Setting;
use super::breaking::{Broken, Cut, require_local};
use super::members::Member;
use super::planned::options;
use super::rolls;
use super::stage::{Stage, config};
use crate::report::{Row, Settled};

/// Pause between faults, seconds.
const PAUSE: std::ops::Range<u64> = 20..60;
/// After the last fault everything is whole within this.
const CONVERGED_WITHIN: Duration = Duration::from_mins(4);
/// The operator's memory may grow by this between the first and the last quarter.
const FLAT: f64 = 1.25;

/// What can happen.
const EVENTS: [&str; 10] = [
    "primary killed",
    "replica killed",
    "pod deleted",
    "operator killed",
    "operator restarted",
    "shards changed",
    "replicas changed",
    "roll",
    "zone cut",
    "machine crashed",
];
/// Events in which a primary may acknowledge what no replica ever gets, or all copies may end at once.
const LOSSY: [&str; 2] = ["zone cut", "machine crashed"];

/// Plays for `minutes`; what must not be is in the list.
///
/// # Errors
///
/// It could not be played to its end.
pub async fn soak(setting: &Setting, minutes: u64) -> Result<Vec<String>> {
    require_local()?;
    let scene = Scene::alone("load-soak").await?;
    let mut random = fastrand::Rng::with_seed(setting.seed);
    let mut stage = Stage::open(&scene, "soak", 3, 1, &options(setting)).await?;
    let mut memory = Vec::new();
    let mut lossy = 0;
    let operation = stage.fault(&format!("soak of {minutes} minutes, seed {}", setting.seed));
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    while Instant::now() < end {
        memory.push(anonymous_memory(&scene).await.unwrap_or(0));
        let event = *random.choice(EVENTS.iter()).context("an event")?;
        stage.load.recorder.mark(event);
        test_e2e::say(&format!("{:.0} s: {event}", stage.load.recorder.now().as_secs_f64()));
        lossy += u32::from(LOSSY.contains(&event));
        if let Err(error) = happen(&mut stage, event, &mut random).await {
            test_e2e::say(&format!("    {error:#}"));
        }
        tokio::time::sleep(Duration::from_secs(random.u64(PAUSE))).await;
    }
    let note = format!(
        "{lossy} events that may lose writes; anonymous memory of cluster-ctl, MiB: {}",
        mebibytes(&memory)
    );
    stage.end(operation, CONVERGED_WITHIN, &note).await?;
    let rows = stage.close(Some(&setting.folder)).await?;
    scene.finish()?;
    Ok(judge(&rows, lossy, &memory))
}

async fn happen(stage: &mut Stage<'_>, event: &str, random: &mut fastrand::Rng) -> Result<()> {
    let members = stage.members().await?;
    let any = |random: &mut fastrand::Rng, primary: bool| -> Result<Member> {
        // Only where another copy is in sync: with the last one gone a loss would be no finding.
        let safe: Vec<u64> = members
            .iter()
            .filter(|it| {
                it.owns_slots() && it.server.as_ref().is_some_and(|server| server.synced_replicas > 0)
            })
            .map(|it| it.shard)
            .collect();
        let fits: Vec<&Member> = members
            .iter()
            .filter(|it| safe.contains(&it.shard) && it.server.is_some() && it.owns_slots() == primary)
            .collect();
        random.choice(fits).cloned().context("no member whose end would lose nothing")
    };
    match event {
        "primary killed" => any(random, true)?.signal("KILL"),
        "replica killed" => any(random, false)?.signal("KILL"),
        "pod deleted" => {
            let primary = random.bool();
            let member = any(random, primary)?;
            let background = test_e2e::objects::Propagation::Background;
            stage.scene.objects.delete(Kind::POD, &member.name, background).await
        }
        "operator killed" => rolls::strike(stage.scene, true).await,
        "operator restarted" => rolls::strike(stage.scene, false).await,
        "shards changed" => {
            stage.cluster.shards = random.usize(3..=5);
            stage.cluster.edit(&json!({ "shards": stage.cluster.shards })).await
        }
        "replicas changed" => {
            stage.cluster.replicas = random.usize(1..=2);
            stage.cluster.edit(&json!({ "replicasPerShard": stage.cluster.replicas })).await
        }
        "roll" => {
            let settings = json!({ "valkey": { "hz": random.u32(11..100).to_string() } });
            let scene = stage.scene;
            scene.menu(Kind::CONFIG, &scene.name, config(&scene.name, &settings)).await
        }
        "machine crashed" => {
            let broken =
                Broken::by("crash", &beside_the_operator(stage.scene, &members, random).await?).await?;
            tokio::time::sleep(Duration::from_secs(random.u64(10..40))).await;
            broken.mend().await
        }
        _ => {
            let machine = random.choice(&members).context("no member")?.machine.clone();
            let cut = Cut::off(&machine)?;
            tokio::time::sleep(Duration::from_secs(random.u64(3..15))).await;
            drop(cut);
            Ok(())
        }
    }
}

/// A machine with members and without the operator: Kubernetes would leave it there for minutes.
async fn beside_the_operator(
    scene: &Scene,
    members: &[Member],
    random: &mut fastrand::Rng,
) -> Result<String> {
    let pods = scene.operator.pods().await?;
    let taken: Vec<&str> = pods.iter().map(|pod| text(pod, "/spec/nodeName")).collect();
    let free: Vec<&Member> = members.iter().filter(|it| !taken.contains(&it.machine.as_str())).collect();
    Ok(random.choice(free).context("no machine beside the operator")?.machine.clone())
}

/// Of cluster-ctl, in bytes.
async fn anonymous_memory(scene: &Scene) -> Result<u64> {
    let mut sum = 0;
    for pod in scene.operator.pods().await? {
        for process in processes::of_pod(text(&pod, "/metadata/uid"))? {
            if process.program == "cluster-ctl" {
                sum += process.anonymous_memory()?;
            }
        }
    }
    Ok(sum)
}

fn mebibytes(memory: &[u64]) -> String {
    let words: Vec<String> = memory.iter().map(|bytes| (bytes / 1024 / 1024).to_string()).collect();
    words.join(" ")
}

fn judge(rows: &[Row], lossy: u32, memory: &[u64]) -> Vec<String> {
    let mut faults: Vec<String> = rows.iter().flat_map(Row::faults_of_a_recovery).collect();
    for row in rows {
        if row.verdict.lost > 0 && lossy == 0 {
            faults
                .push(format!("{} acknowledged writes are lost, and nothing explains it", row.verdict.lost));
        }
        if row.settled == Settled::Held {
            faults.push("held".to_owned());
        }
    }
    if let Some(growth) = growth(memory)
        && growth > FLAT
    {
        faults.push(format!("memory of cluster-ctl grew by the factor {growth:.2}"));
    }
    faults
}

/// The last quarter's median beside the first one's.
fn growth(memory: &[u64]) -> Option<f64> {
    let quarter = memory.len() / 4;
    let median = |part: &[u64]| {
        let mut sorted: Vec<u64> = part.iter().copied().filter(|bytes| *bytes > 0).collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|bytes| u32::try_from(bytes / 1024).unwrap_or(u32::MAX))
    };
    let (first, last) = (median(memory.get(..quarter)?)?, median(memory.get(memory.len() - quarter..)?)?);
    (first > 0).then(|| f64::from(last) / f64::from(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_quarter_over_the_first() {
        let flat = vec![10 << 20; 16];
        assert!((growth(&flat).unwrap() - 1.0).abs() < 0.01);
        let mut grown = flat;
        for bytes in &mut grown[12..] {
            *bytes = 20 << 20;
        }
        assert!((growth(&grown).unwrap() - 2.0).abs() < 0.01);
        assert_eq!(growth(&[]), None);
    }
}
