//! Probes of single slots: from when to when a slot took no write.
//!
//! A client library pauses between its attempts, which would be measured along. A probe has connections of its own,
//! follows a redirection at once, and when that does not help asks every node that is known, all at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Value, cmd};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::record::{Recorder, Who};
use crate::resolve::{Names, Seeds};

/// A node on the same network answers a connect within this, or not at all.
const CONNECT: Duration = Duration::from_millis(100);
/// Longer than any pause that an engine makes on purpose short of a failover gone wrong.
const ANSWER: Duration = Duration::from_millis(400);
/// Pause before everybody is asked again.
const AGAIN: Duration = Duration::from_millis(15);
/// How often the name of the Service is asked for new members.
const LOOK: Duration = Duration::from_millis(500);

/// Connections to single nodes, one each, shared by all who ask.
#[derive(Clone, Default)]
pub struct Nodes {
    connections: Arc<Mutex<BTreeMap<String, MultiplexedConnection>>>,
    known: Arc<Mutex<BTreeSet<String>>>,
    names: Option<Names>,
    tls: bool,
    login: String,
}

impl Nodes {
    /// Nodes that are reached as the clients of `seeds` reach them, but that whoever answers by TLS is believed: the
    /// clients prove who it is.
    pub fn of(seeds: &Seeds) -> Self {
        let tls = seeds.authorities().is_some();
        Self { names: seeds.names(), tls, login: seeds.login(), ..Self::default() }
    }

    /// All addresses that were ever known to be members' and were not found dead since.
    pub fn known(&self) -> BTreeSet<String> {
        lock(&self.known).clone()
    }

    /// Makes addresses known.
    pub fn learn(&self, addresses: impl IntoIterator<Item = String>) {
        lock(&self.known).extend(addresses);
    }

    /// Sends a command to one node, over the connection that there is or a new one.
    ///
    /// # Errors
    ///
    /// No connection, no answer in time, or an answer that is an error.
    pub async fn ask(&self, address: &str, command: &redis::Cmd) -> Result<Value, RedisError> {
        let kept = lock(&self.connections).get(address).cloned();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect(address).await?,
        };
        let answer: Result<Value, RedisError> = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(|error| error.code().is_none()) {
            lock(&self.connections).remove(address);
        }
        answer
    }

    async fn connect(&self, address: &str) -> Result<MultiplexedConnection, RedisError> {
        let login = &self.login;
        let url = if self.tls {
            format!("rediss://{login}{address}/#insecure")
        } else {
            format!("redis://{login}{address}/")
        };
        let client = Client::open(url)?;
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        if let Some(names) = &self.names {
            config = config.set_dns_resolver(names.clone());
        }
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        lock(&self.connections).insert(address.to_owned(), connection.clone());
        Ok(connection)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps `nodes` up to what the Service's name gives, until `stop`.
pub async fn keep_looking(seeds: Seeds, nodes: Nodes, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(found) = seeds.resolve().await {
            *lock(&nodes.known) = found.into_iter().collect();
        }
        sleep(LOOK).await;
    }
}

/// Writes `key` of `slot` each `pause` until `stop`, and records how long each write took to be taken.
pub async fn keep_probing(
    nodes: Nodes,
    slot: u16,
    key: String,
    recorder: Recorder,
    pause: Duration,
    stop: Arc<AtomicBool>,
) {
    let mut pace = interval(pause);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut owner = None;
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        number += 1;
        let from = recorder.now();
        let mut command = cmd("SET");
        command.arg(&key).arg(number);
        loop {
            match attempt(&nodes, owner.take(), &command).await {
                Some(address) => {
                    owner = Some(address);
                    recorder.ended(Who::Slot, slot, from, None, true);
                    break;
                }
                None if stop.load(Ordering::Relaxed) => {
                    recorder.ended(Who::Slot, slot, from, Some("not served at the end".to_owned()), true);
                    return;
                }
                None => sleep(AGAIN).await,
            }
        }
    }
}

/// The node that took the write: the one believed to be the owner, any that is known, or one that they name.
async fn attempt(nodes: &Nodes, owner: Option<String>, command: &redis::Cmd) -> Option<String> {
    if let Some(owner) = owner
        && let Some(taker) = follow(nodes, owner, command).await
    {
        return Some(taker);
    }
    let known = nodes.known().into_iter();
    let mut asked: FuturesUnordered<_> = known.map(|address| follow(nodes, address, command)).collect();
    while let Some(taker) = asked.next().await {
        if taker.is_some() {
            return taker;
        }
    }
    None
}

/// Asks a node, and then the one that it names: a new member may be named before its name is published.
async fn follow(nodes: &Nodes, address: String, command: &redis::Cmd) -> Option<String> {
    match nodes.ask(&address, command).await {
        Ok(_) => Some(address),
        Err(error) => {
            let (named, _slot) = error.redirect_node()?;
            nodes.ask(named, command).await.is_ok().then(|| named.to_owned())
        }
    }
}
