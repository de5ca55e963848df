//! Clients that start anew again and again from the name of the Service: what a restarted application meets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::keys::Entry;
use crate::record::{Recorder, Who};
use crate::resolve::Seeds;
use crate::store::{Cluster, PATIENCE, Store as _};

/// Starts a client each `pause`, which writes one key and reads it, until `stop`.
pub async fn keep_coming(
    seeds: Seeds,
    entries: Vec<Entry>,
    recorder: Recorder,
    pause: Duration,
    stop: Arc<AtomicBool>,
) {
    let mut pace = interval(pause);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    for entry in entries.iter().cycle() {
        pace.tick().await;
        if stop.load(Ordering::Relaxed) {
            return;
        }
        number += 1;
        let from = recorder.now();
        let outcome = timeout(PATIENCE, come(&seeds, entry, number)).await;
        let failure = outcome.unwrap_or_else(|_elapsed| Err("timeout".to_owned())).err();
        recorder.ended(Who::Newcomer, entry.slot, from, failure, true);
    }
}

async fn come(seeds: &Seeds, entry: &Entry, number: u64) -> Result<(), String> {
    let cluster = Cluster::connect(seeds).await.map_err(|failure| format!("connect: {failure}"))?;
    cluster.write(entry, number).await.map_err(|failure| format!("write: {failure}"))?;
    let seen = cluster.read(entry).await.map_err(|failure| format!("read: {failure}"))?;
    if seen.broken.is_none() && seen.numbers.contains(&number) {
        return Ok(());
    }
    Err(format!("read: wrote {number}, then saw {seen:?}"))
}
