//! A load: started, looked at, verified, stopped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::{join_all, try_join_all};
use shared::slots::{SLOT_COUNT, SlotRange, SlotSet};
use tokio::task::JoinHandle;

use crate::keys;
use crate::ledger::Verdict;
use crate::newcomer;
use crate::probe::{self, Nodes};
use crate::record::{Record, Recorder};
use crate::resolve::Seeds;
use crate::store::Cluster;
use crate::writer::{self, Shelf};

/// How long the first client is tried to be connected.
const CONNECTED_WITHIN: Duration = Duration::from_secs(20);

/// How much.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys, all of which are written once before the start.
    pub keys: usize,
    /// Clients of the application; each has a connection to every node.
    pub clients: usize,
    /// Commands under way at once, over all clients.
    pub tasks: usize,
    /// Commands a second, over all tasks.
    pub rate: u32,
    /// Slots that are probed, evenly spread.
    pub probes: u16,
    /// Pause between two writes of a probe: how exactly a stall is measured.
    pub probe_pause: Duration,
    /// Pause between two newcomers.
    pub newcomer_pause: Duration,
    /// Seed of the order of keys.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: 20_000,
            clients: 8,
            tasks: 32,
            rate: 2000,
            probes: 16,
            probe_pause: Duration::from_millis(10),
            newcomer_pause: Duration::from_millis(200),
            seed: 1,
        }
    }
}

/// A load under way.
pub struct Load {
    /// The clock and what was recorded.
    pub recorder: Recorder,
    /// Single nodes, for questions that are not about keys.
    pub nodes: Nodes,
    stores: Vec<Cluster>,
    shelves: Vec<Shelf>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Connects, writes every key once, and starts all clients.
    ///
    /// # Errors
    ///
    /// The cluster cannot be reached, or does not take the first writes.
    pub async fn start(seeds: &Seeds, options: &Options) -> Result<Self> {
        let clients = try_join_all((0..options.clients.max(1)).map(|_| connect(seeds))).await?;
        let shelves = writer::shelves(keys::entries(options.keys), options.tasks);
        let stores: Vec<Cluster> = clients.iter().cycle().take(shelves.len()).cloned().collect();
        let filled = stores.iter().zip(&shelves).map(|(store, shelf)| writer::fill(store, shelf));
        for outcome in join_all(filled).await {
            outcome.map_err(anyhow::Error::msg).context("the first writes")?;
        }
        let mut load = Self {
            recorder: Recorder::default(),
            nodes: Nodes::of(seeds),
            stores,
            shelves,
            stop: Arc::default(),
            tasks: Vec::new(),
        };
        load.nodes.learn(seeds.resolve().await?);
        load.start_tasks(seeds, options);
        Ok(load)
    }

    fn start_tasks(&mut self, seeds: &Seeds, options: &Options) {
        let tasks = u32::try_from(self.shelves.len()).unwrap_or(u32::MAX);
        let pause = Duration::from_secs(1) * tasks / options.rate.max(1);
        let stop = || Arc::clone(&self.stop);
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut started = Vec::new();
        for (store, shelf) in self.stores.iter().zip(&self.shelves) {
            let (store, shelf) = (store.clone(), Arc::clone(shelf));
            let work = writer::work(store, shelf, self.recorder.clone(), pause, random.fork(), stop());
            started.push(tokio::spawn(work));
        }
        started.push(tokio::spawn(probe::keep_looking(seeds.clone(), self.nodes.clone(), stop())));
        let tags = keys::tags();
        let step = SLOT_COUNT / options.probes.max(1);
        // Offset by half a step: not the first slot of a shard, and not all on the edges of batches.
        for slot in (0..options.probes).map(|index| index * step + step / 2) {
            if let Some(key) = keys::key_in(&tags, slot, "probe") {
                let (nodes, recorder) = (self.nodes.clone(), self.recorder.clone());
                let probing = probe::keep_probing(nodes, slot, key, recorder, options.probe_pause, stop());
                started.push(tokio::spawn(probing));
            }
        }
        let mut entries = keys::entries(64);
        for entry in &mut entries {
            entry.key.push_str(":newcomer");
        }
        // They write numbers of their own, and single ones only.
        entries.retain(|entry| entry.kind.is_single() && entry.size < 1000);
        let coming = newcomer::keep_coming(
            seeds.clone(),
            entries,
            self.recorder.clone(),
            options.newcomer_pause,
            stop(),
        );
        started.push(tokio::spawn(coming));
        self.tasks = started;
    }

    /// Reads every key while nobody writes any, and goes on. A loss is counted by one verdict only.
    pub async fn verify(&self) -> Verdict {
        let looks = self.stores.iter().zip(&self.shelves).map(|(store, shelf)| writer::verify(store, shelf));
        let mut sum = Verdict::default();
        let mut slots = BTreeSet::new();
        for (verdict, lost_slots) in join_all(looks).await {
            sum.keys += verdict.keys;
            sum.acknowledged += verdict.acknowledged;
            sum.lost += verdict.lost;
            sum.keys_with_loss += verdict.keys_with_loss;
            sum.wrong += verdict.wrong;
            sum.unreadable += verdict.unreadable;
            sum.examples.extend(verdict.examples);
            slots.extend(lost_slots);
        }
        sum.examples.truncate(20);
        let ranges = slots.into_iter().filter_map(|slot| SlotRange::new(slot, slot));
        sum.slots_with_loss = SlotSet::from_ranges(ranges).ranges().iter().map(ToString::to_string).collect();
        sum
    }

    /// Stops all clients; what they recorded is returned.
    ///
    /// # Errors
    ///
    /// A client ended in a way that it must not.
    pub async fn stop(mut self) -> Result<Record> {
        self.stop.store(true, Ordering::Relaxed);
        for task in std::mem::take(&mut self.tasks) {
            task.await.context("a client of the load")?;
        }
        Ok(self.recorder.snapshot())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The Service's name appears a moment after the cluster is ready.
async fn connect(seeds: &Seeds) -> Result<Cluster> {
    let deadline = tokio::time::Instant::now() + CONNECTED_WITHIN;
    loop {
        match Cluster::connect(seeds).await {
            Ok(cluster) => return Ok(cluster),
            Err(error) if tokio::time::Instant::now() > deadline => bail!("cannot connect: {error:#}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
