//! What many clusters cost the operator: time to form them, memory, requests at rest, and the way of one edit.
//!
//! The API server, its controllers and the operator are real; the machine and the servers on it only pretend, since a
//! thousand real ones do not fit on a developer's machine. Runs on the local Kubernetes only: `cargo xtask bench scale`.

mod machine;
mod measure;
mod server;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use serde_json::{Value, json};
use support::{Cluster, Probe, TestNamespace, eventually};
use test_e2e::objects::{Propagation, condition_is, name};
use test_e2e::{Kind, Objects, Operator, say};

use crate::machine::{LABEL, Machine, NAME};
use crate::measure::Programs;

/// Clusters asked for at a time.
const FAN_OUT: usize = 16;
/// Longest wait for one batch of clusters to be ready, or gone.
const PATIENCE: Duration = Duration::from_mins(15);
/// Edits measured at each count of clusters.
const EDITS: usize = 20;

#[derive(Parser)]
#[command(about = "Measures the operator with growing numbers of clusters")]
struct Arguments {
    /// Numbers of clusters to measure at, growing
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1000])]
    clusters: Vec<usize>,
    /// Seconds to watch the operator at rest
    #[arg(long, default_value_t = 120)]
    rest: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let cluster = Cluster::connect().await?;
    test_e2e::audit::required()?;
    let operator = Operator::ready(&cluster).await?;
    let namespace = TestNamespace::create(&cluster, "scale").await?;
    let objects = Objects::new(cluster.client.clone(), &namespace.name);
    server::listen().await?;
    let machine = Machine::start(&cluster.client).await?;
    let result = grow(&cluster.client, &operator, &objects, &arguments).await;
    let removed = remove(&objects).await;
    machine.end().await?;
    result.and(removed)
}

async fn grow(client: &Client, operator: &Operator, objects: &Objects, arguments: &Arguments) -> Result<()> {
    let menu = objects.namespace();
    let image = json!({ "spec": { "repository": "pretended", "tag": "9.1", "version": "9.1" } });
    objects.apply(Kind::IMAGE, menu, image).await?;
    objects.apply(Kind::CONFIG, menu, json!({ "spec": { "imageRef": menu } })).await?;
    let mut clusters: Vec<String> = Vec::new();
    let mut edits = 0;
    for count in &arguments.clusters {
        let more: Vec<String> = (clusters.len()..*count).map(|number| format!("c{number}")).collect();
        let start = Instant::now();
        stream::iter(&more).map(Ok).try_for_each_concurrent(FAN_OUT, |name| create(objects, name)).await?;
        let asked = start.elapsed();
        clusters.extend(more);
        eventually("every cluster to be ready", PATIENCE, || async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ready = objects.list(Kind::CLUSTER, "").await?;
            let ready = ready.iter().filter(|object| settled(object)).count();
            Ok(Probe::of(ready == *count, format!("{ready} of {count}")))
        })
        .await?;
        say(&format!(
            "\n{count} clusters: asked for within {:.1} s, all ready after {:.1} s",
            asked.as_secs_f64(),
            start.elapsed().as_secs_f64()
        ));
        let programs = Programs::find(operator).await?;
        // The first pass of the ACL tick comes within 30 s of a start; it belongs to no rest.
        tokio::time::sleep(Duration::from_secs(35)).await;
        programs.say_memory()?;
        measure::rest(&programs, Duration::from_secs(arguments.rest)).await?;
        let step = (clusters.len() / EDITS).max(1);
        let edited: Vec<String> = clusters.iter().step_by(step).take(EDITS).cloned().collect();
        measure::edits(client, objects, &edited, edits).await?;
        edits += edited.len();
    }
    Ok(())
}

async fn create(objects: &Objects, name: &str) -> Result<()> {
    let spec = json!({ "configRef": objects.namespace(), "shards": 1, "replicasPerShard": 0,
        "placement": { "nodeSelector": { LABEL: NAME } } });
    objects.apply(Kind::CLUSTER, name, json!({ "spec": spec })).await.map(drop)
}

fn settled(object: &Value) -> bool {
    condition_is(object, "Ready", "True") && condition_is(object, "Progressing", "False")
}

/// Deletes every cluster and the menu.
async fn remove(objects: &Objects) -> Result<()> {
    let start = Instant::now();
    let clusters = objects.list(Kind::CLUSTER, "").await?;
    let names: Vec<&str> = clusters.iter().map(name).collect();
    stream::iter(&names)
        .map(Ok)
        .try_for_each_concurrent(FAN_OUT, |name| objects.delete(Kind::CLUSTER, name, Propagation::Background))
        .await?;
    eventually("every Pod and every node to be gone", PATIENCE, || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (pods, nodes) = (objects.list(Kind::POD, "").await?, objects.list(Kind::NODE, "").await?);
        let gone = pods.is_empty() && nodes.is_empty();
        Ok(Probe::of(gone, format!("{} Pods, {} nodes", pods.len(), nodes.len())))
    })
    .await
    .context("deletion")?;
    say(&format!("\n{} clusters deleted, gone after {:.1} s", names.len(), start.elapsed().as_secs_f64()));
    objects.delete(Kind::CONFIG, objects.namespace(), Propagation::Background).await?;
    objects.delete(Kind::IMAGE, objects.namespace(), Propagation::Background).await
}
