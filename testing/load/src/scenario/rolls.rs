//! Rolling replacement under load, and an operator that dies in the middle of planned work.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use test_e2e::objects::text;
use test_e2e::{Kind, Scene, processes};

use super::Setting;
use super::order::Rules;
use super::planned::{LIMIT, options};
use super::stage::{Stage, config, roomy};
use crate::report::Row;

/// An operator that was killed is back within this.
const BACK_WITHIN: Duration = Duration::from_mins(1);

pub(super) fn one_at_a_time(stage: &Stage<'_>) -> Rules {
    Rules { replicas: stage.cluster.replicas, one_shard_of: Some(stage.cluster.replicas + 1) }
}

/// Changes the config of the menu, and waits until the cluster follows it.
///
/// # Errors
///
/// The API server refuses it, or nothing begins.
pub async fn roll(stage: &mut Stage<'_>, name: &str, spec: Value) -> Result<Row> {
    let operation = stage.begin(name, one_at_a_time(stage));
    let config_name = stage.scene.name.clone();
    stage.scene.menu(Kind::CONFIG, &config_name, spec).await?;
    stage.progressing().await?;
    stage.end(operation, LIMIT, "").await.cloned()
}

/// Settings, the name of the image, and placement of 4×1.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn rolls(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "rolls", 4, 1, &options(setting)).await?;
    let image = scene.name.clone();
    let settings = json!({ "valkey": { "maxmemory-policy": "noeviction", "hz": "20" } });
    roll(&mut stage, "a setting of 4×1 changed", config(&image, &settings)).await?;
    // The images of the local Kubernetes are there under their full version too.
    let (repository, _tag) = test_e2e::scene::valkey_image()?;
    let version = version(&stage).await?;
    let other = format!("{image}-same");
    let full = json!({ "repository": repository, "tag": version, "version": version });
    scene.menu(Kind::IMAGE, &other, full).await?;
    roll(&mut stage, "the image of 4×1 named otherwise", config(&other, &settings)).await?;
    let operation = stage.begin("placement of 4×1 changed", one_at_a_time(&stage));
    stage.cluster.edit(&json!({ "placement": { "zones": ["zone-a", "zone-b"] } })).await?;
    stage.end(operation, LIMIT, "").await?;
    stage.close(Some(&setting.folder)).await
}

/// The full version that the first member runs.
async fn version(stage: &Stage<'_>) -> Result<String> {
    let address = stage.load.nodes.known().into_iter().next().context("a member")?;
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let reply: String = redis::from_redis_value(stage.load.nodes.ask(&address, &info).await?)?;
    let line = reply.lines().find_map(|line| line.strip_prefix("valkey_version:"));
    Ok(line.context("no valkey_version in INFO")?.trim().to_owned())
}

/// 3×1 from Valkey 8.1 to 9.1.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn upgrade(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let image =
        std::env::var("VALKEY_OPERATOR_VALKEY_IMAGE_8_1").context("VALKEY_OPERATOR_VALKEY_IMAGE_8_1")?;
    let (repository, tag) = image.rsplit_once(':').context("an image with a tag")?;
    let old = format!("{}-8", scene.name);
    scene.menu(Kind::IMAGE, &old, json!({ "repository": repository, "tag": tag, "version": "8.1" })).await?;
    roomy(scene).await?;
    scene.menu(Kind::CONFIG, &scene.name, config(&old, &json!({}))).await?;
    let cluster = scene.blueprint("upgrade", 3, 1).create().await?;
    cluster.settled(Duration::from_mins(2)).await?;
    let mut stage = Stage::over(scene, "upgrade", cluster, None, &options(setting)).await?;
    roll(&mut stage, "3×1 from 8.1 to 9.1", config(&scene.name, &json!({}))).await?;
    stage.close(Some(&setting.folder)).await
}

/// The operator restarted and killed in the middle of each kind of planned work.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn operator(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "operator", 3, 1, &options(setting)).await?;
    for (to, action, kill) in
        [(4, "MigrateSlots", true), (3, "MigrateSlots", false), (4, "CreateNodes", true)]
    {
        let how = if kill { "killed" } else { "restarted" };
        let name = format!("shards {}→{to}, the operator {how} after {action}", stage.cluster.shards);
        let operation = stage.begin(&name, Rules { replicas: 1, one_shard_of: None });
        stage.cluster.edit(&json!({ "shards": to })).await?;
        stage.cluster.shards = to;
        stage.until_action(&operation, action, LIMIT).await?;
        strike(scene, kill).await?;
        stage.end(operation, LIMIT, "").await?;
    }
    let mut number = 0;
    for (action, kill) in [("Failover", true), ("Reset", true), ("Replicate", false)] {
        number += 1;
        let how = if kill { "killed" } else { "restarted" };
        let operation =
            stage.begin(&format!("a roll, the operator {how} after {action}"), one_at_a_time(&stage));
        let settings = json!({ "valkey": { "hz": (20 + number).to_string() } });
        scene.menu(Kind::CONFIG, &scene.name, config(&scene.name, &settings)).await?;
        stage.until_action(&operation, action, LIMIT).await?;
        strike(scene, kill).await?;
        stage.end(operation, LIMIT, "").await?;
    }
    stage.close(Some(&setting.folder)).await
}

/// Kills the process of cluster-ctl, or restarts the Deployment as a person does, and waits until it is ready again.
///
/// # Errors
///
/// It does not come back.
pub async fn strike(scene: &Scene, kill: bool) -> Result<()> {
    if kill {
        for pod in scene.operator.pods().await? {
            let all = processes::of_pod(text(&pod, "/metadata/uid"))?;
            for process in all.iter().filter(|process| process.program == "cluster-ctl") {
                process.signal("KILL")?;
            }
        }
        return Ok(());
    }
    let arguments = ["-n", test_e2e::operator::NAMESPACE, "rollout", "restart", "deployment/valkey-operator"];
    scene.kubectl().run(&arguments).await?.success()?;
    tokio::time::timeout(BACK_WITHIN, scene.operator.await_ready())
        .await
        .context("the operator is not back")?
}
