//! Health and metrics of one binary over HTTP: `/livez`, `/readyz`, `/metrics`, and the wish to stop.
//!
//! Owns the listener and what live and ready mean. Must not know what the loops do: they report a turn, a flag.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// A loop that has not turned for this long is stuck: the process fails `/livez` and is restarted.
pub const MAX_HEARTBEAT_AGE: Duration = Duration::from_secs(90);

/// Liveness and readiness of one binary. Clones are handles to the same state.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    heartbeats: Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>,
    ready: Mutex<BTreeMap<&'static str, Arc<AtomicBool>>>,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// No loops and no flags yet: live and ready.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            heartbeats: Mutex::default(),
            ready: Mutex::default(),
        }))
    }

    /// Registers a loop that must turn at least every 90 seconds, as if it had just turned.
    pub fn heartbeat(&self, name: &'static str) -> Heartbeat {
        let heartbeat = Heartbeat { started: self.0.started, last: Arc::default() };
        heartbeat.beat();
        let mut all = self.0.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name, Arc::clone(&heartbeat.last));
        heartbeat
    }

    /// Registers something that must be so before the process is ready; not so yet.
    pub fn ready_flag(&self, name: &'static str) -> ReadyFlag {
        let flag = ReadyFlag(Arc::default());
        let mut all = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name, Arc::clone(&flag.0));
        flag
    }

    /// Loops that have not turned for [`MAX_HEARTBEAT_AGE`] or longer, as of `now`.
    fn stuck(&self, now: Instant) -> Vec<&'static str> {
        let uptime = now.saturating_duration_since(self.0.started);
        let all = self.0.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .filter(|(_, last)| {
                let last = Duration::from_millis(last.load(Ordering::Relaxed));
                uptime.saturating_sub(last) >= MAX_HEARTBEAT_AGE
            })
            .map(|(name, _)| *name)
            .collect()
    }

    /// What is not ready yet.
    fn unready(&self) -> Vec<&'static str> {
        let all = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, set)| !set.load(Ordering::Relaxed)).map(|(name, _)| *name).collect()
    }
}

/// One loop's proof of life.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    started: Instant,
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// The loop turned.
    pub fn beat(&self) {
        let uptime = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(uptime, Ordering::Relaxed);
    }
}

/// One condition of readiness.
#[derive(Debug, Clone)]
pub struct ReadyFlag(Arc<AtomicBool>);

impl ReadyFlag {
    /// Sets or takes back the flag.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }
}

/// Serves `/livez`, `/readyz` and `/metrics` until `shutdown` asks to stop and the requests under way are answered.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Metrics,
    shutdown: Shutdown,
) -> io::Result<()> {
    let app = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state((health, metrics));
    axum::serve(listener, app).with_graceful_shutdown(async move { shutdown.wait().await }).await
}

async fn livez(State((health, _)): State<(Health, Metrics)>) -> Response {
    verdict("stuck", &health.stuck(Instant::now()))
}

async fn readyz(State((health, _)): State<(Health, Metrics)>) -> Response {
    verdict("waiting for", &health.unready())
}

async fn scrape(State((_, metrics)): State<(Health, Metrics)>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn verdict(word: &str, failing: &[&str]) -> Response {
    if failing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{word}: {}\n", failing.join(", "))).into_response()
}

/// The wish to stop, shared by all loops of a process.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

/// Asks all holders of the matching [`Shutdown`] to stop.
#[derive(Debug, Clone)]
pub struct ShutdownTrigger(Arc<watch::Sender<bool>>);

impl ShutdownTrigger {
    /// Asks to stop; asking twice is the same.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// A pair of trigger and wish, not tied to any signal (tests; [`shutdown`] for a process).
    pub fn new() -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (ShutdownTrigger(Arc::new(sender)), Self(receiver))
    }

    /// True once stopping was asked for: no new action may start.
    pub fn requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until stopping is asked for, or until nobody is left who could ask.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        drop(receiver.wait_for(|stop| *stop).await);
    }
}

/// Listens for SIGTERM and SIGINT and turns the first into a [`Shutdown`]. A second one keeps its normal meaning to
/// the caller, who bounds the time to stop.
///
/// # Errors
/// The handlers could not be installed.
pub fn shutdown() -> io::Result<(ShutdownTrigger, Shutdown)> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (trigger, wish) = Shutdown::new();
    let on_signal = trigger.clone();
    tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.stop();
    });
    Ok((trigger, wish))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[test]
    fn a_loop_without_a_turn_for_90_seconds_is_stuck_until_it_turns() {
        let health = Health::new();
        let heartbeat = health.heartbeat("node controller");
        let now = Instant::now();
        assert!(health.stuck(now + Duration::from_secs(89)).is_empty());
        assert_eq!(health.stuck(now + Duration::from_secs(91)), ["node controller"]);
        heartbeat.beat();
        assert!(health.stuck(Instant::now()).is_empty());
    }

    #[test]
    fn readiness_names_what_is_missing() {
        let health = Health::new();
        let pods = health.ready_flag("pods");
        let nodes = health.ready_flag("nodes");
        assert_eq!(health.unready(), ["nodes", "pods"]);
        pods.set(true);
        nodes.set(true);
        assert!(health.unready().is_empty());
    }

    async fn request(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_listener_answers_probes_and_stops_when_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Health::new();
        let flag = health.ready_flag("caches");
        let (trigger, wish) = Shutdown::new();
        let server = tokio::spawn(serve(listener, health, Metrics::new("test", "0"), wish));

        assert!(request(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let answer = request(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("waiting for: caches"), "{answer}");
        flag.set(true);
        assert!(request(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(request(address, "/metrics").await.contains("valkey_operator_build_info"));

        trigger.stop();
        tokio::time::timeout(Duration::from_secs(10), server).await.unwrap().unwrap().unwrap();
    }
}
