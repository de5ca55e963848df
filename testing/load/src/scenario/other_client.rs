//! The same operations as another family of clients sees them: a program of its own, in another language.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use test_e2e::Scene;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::Setting;
use super::planned::{options, reshard};
use super::rolls::roll;
use super::stage::{Stage, config};
use crate::report::{Row, Settled};

/// It verifies a few thousand keys.
const VERIFIED_WITHIN: Duration = Duration::from_mins(1);

/// What it tells at its end.
#[derive(Debug, Deserialize)]
struct Told {
    acknowledged: u64,
    failures: BTreeMap<String, u64>,
    lost: u64,
    longest_ms: u64,
}

/// Shards 3→4→3 and a roll while another client writes, too.
///
/// # Errors
///
/// The scenario cannot be played, or the other client cannot be started.
pub async fn other_client(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "other-client", 3, 1, &options(setting)).await?;
    let operation = stage.fault("all of it, as another client saw it");
    let mut client = start(stage.load.nodes.known().into_iter().collect())?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    reshard(&mut stage, 4).await?;
    roll(&mut stage, "a roll of 4×1", config(&scene.name, &json!({ "valkey": { "hz": "20" } }))).await?;
    reshard(&mut stage, 3).await?;
    let told = end(&mut client).await?;
    ensure!(told.acknowledged > 1000, "the other client wrote too little: {told:?}");
    let note = format!("valkey-py: {} acknowledged, longest {} ms", told.acknowledged, told.longest_ms);
    stage.end_held(operation, &note).await?;
    let mut rows = stage.close(Some(&setting.folder)).await?;
    if let Some(row) = rows.last_mut() {
        row.settled = Settled::Held;
        row.window.failures = told.failures;
        row.verdict.lost = told.lost;
        test_e2e::say(&crate::report::table(std::slice::from_ref(row)));
    }
    Ok(rows)
}

fn start(addresses: Vec<String>) -> Result<Child> {
    let python = std::env::var_os("VALKEY_OPERATOR_OTHER_CLIENT").context(
        "VALKEY_OPERATOR_OTHER_CLIENT is unset: a Python with the packages of other-client/requirements.txt",
    )?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("other-client/numbers.py");
    Command::new(python)
        .arg(script)
        .args(addresses)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start the other client")
}

async fn end(client: &mut Child) -> Result<Told> {
    drop(client.stdin.take());
    let mut output = client.stdout.take().context("its output")?;
    let mut text = String::new();
    let read = tokio::io::AsyncReadExt::read_to_string(&mut output, &mut text);
    timeout(VERIFIED_WITHIN, read).await.context("the other client does not end")??;
    serde_json::from_str(&text).with_context(|| format!("what the other client told: {text:?}"))
}
