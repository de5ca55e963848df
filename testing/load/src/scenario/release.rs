//! An operator release applied over an older one, and rolled back, in the middle of a bootstrap and of a roll.
//!
//! The older one is another commit's, built by `cargo xtask load release --older COMMIT`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use test_e2e::objects::Propagation;
use test_e2e::{Kind, Scene};

use super::Setting;
use super::planned::{LIMIT, options};
use super::rolls::one_at_a_time;
use super::stage::{Stage, config, roomy};
use crate::report::Row;

/// A bootstrap under two operators ends within this.
const FORMED_WITHIN: Duration = Duration::from_mins(2);

/// The two releases.
struct Releases<'a> {
    scene: &'a Scene,
    image: String,
    deploy: PathBuf,
}

impl Releases<'_> {
    /// Applies one over the other and does not wait: neither does a person's `kubectl apply`.
    async fn apply(&self, older: bool) -> Result<()> {
        if older {
            self.scene.operator.apply_other_release(&self.deploy, &self.image).await
        } else {
            self.scene.operator.apply_release().await
        }
    }

    async fn settle(&self, older: bool) -> Result<()> {
        self.apply(older).await?;
        self.scene.operator.await_ready().await
    }
}

/// Bootstrap begun by the older and ended by this one and the other way round; then rolls, likewise, under load.
///
/// # Errors
///
/// The scenario cannot be played, or a bootstrap does not end.
pub async fn release(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let variable = |name: &str| {
        std::env::var(name)
            .with_context(|| format!("{name} is unset: cargo xtask load release --older COMMIT"))
    };
    let image = variable("VALKEY_OPERATOR_OLDER_IMAGE")?;
    let releases = Releases { scene, image, deploy: variable("VALKEY_OPERATOR_OLDER_DEPLOY")?.into() };
    let outcome = play(&releases, setting).await;
    // Whatever came of it: what follows finds this release.
    releases.settle(false).await?;
    outcome
}

async fn play(releases: &Releases<'_>, setting: &Setting) -> Result<Vec<Row>> {
    let scene = releases.scene;
    roomy(scene).await?;
    for (number, older) in [true, false].into_iter().enumerate() {
        releases.settle(older).await?;
        let cluster = scene.blueprint(&format!("formed-{number}"), 3, 1).create().await?;
        let begun =
            |object: &Value| object.pointer("/status/state").is_some_and(|state| *state == "Creating");
        cluster.until("to have begun", FORMED_WITHIN, begun).await?;
        let asked = Instant::now();
        releases.apply(!older).await?;
        let state = cluster.object().await?.pointer("/status/state").cloned();
        ensure!(state != Some(json!("Active")), "the bootstrap was over before the other operator came");
        scene.operator.await_ready().await?;
        cluster.settled(FORMED_WITHIN).await?;
        let way = if older { "upgraded" } else { "rolled back" };
        test_e2e::say(&format!(
            "operator {way} in a bootstrap: settled {:.1} s later",
            asked.elapsed().as_secs_f64()
        ));
        cluster.delete(Propagation::Background).await?;
        cluster.gone(FORMED_WITHIN).await?;
    }
    releases.settle(true).await?;
    let mut stage = Stage::open(scene, "release", 3, 1, &options(setting)).await?;
    let steps =
        [("upgraded", "Failover", false), ("rolled back", "Reset", true), ("upgraded", "Replicate", false)];
    for (number, (way, action, older)) in steps.into_iter().enumerate() {
        let name = format!("a roll, the operator {way} after {action}");
        let operation = stage.begin(&name, one_at_a_time(&stage));
        let settings = json!({ "valkey": { "hz": (20 + number).to_string() } });
        scene.menu(Kind::CONFIG, &scene.name, config(&scene.name, &settings)).await?;
        stage.until_action(&operation, action, LIMIT).await?;
        releases.settle(older).await?;
        stage.end(operation, LIMIT, "").await?;
    }
    stage.close(Some(&setting.folder)).await
}
