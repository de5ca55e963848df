//! From the start of a process to its end: arguments, settings, client, listener, signals. Shared by the three mains.
//!
//! Owns the order of these steps and the exit code. Must not know what a binary does once it runs.

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use kube::Client;
use tokio::net::TcpListener;
use tracing::{error, info, warn};

use crate::api_client;
use crate::crd_check::{self, CrdError};
use crate::events::Events;
use crate::health::{self, Health, Shutdown};
use crate::metrics::Metrics;
use crate::settings::{Binary, Settings, Sources};
use crate::telemetry::{self, LogFormat};

/// Release of the operator.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time from the wish to stop to the end of the process, below Kubernetes' usual 30 seconds of grace.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Time between two attempts to reach the API server at start.
const API_RETRY: Duration = Duration::from_secs(2);

/// Arguments of every binary.
#[derive(Debug, Clone, Parser)]
#[command(version = VERSION, about = "One of the three processes of the Valkey operator")]
struct Args {
    /// YAML file with settings, for local work
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Directory of the mounted ConfigMap: one file a key
    #[arg(long, value_name = "DIR", default_value = crate::settings::DEFAULT_CONFIG_DIR)]
    config_dir: std::path::PathBuf,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "json")]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// One JSON object a line
    Json,
    /// For a person at a terminal
    Text,
}

/// What a binary works with once it runs.
#[derive(Clone)]
pub struct App {
    /// Which binary this is.
    pub binary: Binary,
    /// Effective settings.
    pub settings: Settings,
    /// Client of the Kubernetes API, bounded and measured.
    pub client: Client,
    /// The registry behind `/metrics`.
    pub metrics: Metrics,
    /// Heartbeats and readiness behind `/livez` and `/readyz`.
    pub health: Health,
    /// Events in the name of this binary.
    pub events: Events,
    /// The wish to stop.
    pub shutdown: Shutdown,
}

/// Runs one binary: reads arguments and settings, starts logging, builds the client, checks the CRDs, opens the
/// listener, then hands over to `work` until that returns or a signal asks to stop. `work` must end soon after
/// [`App::shutdown`]; after 25 seconds it is dropped.
pub fn main<W>(binary: Binary, work: impl FnOnce(App) -> W) -> ExitCode
where
    W: Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>>,
{
    let args = match arguments(binary) {
        Ok(args) => args,
        // Help, version, or what is wrong with the arguments, for a person at a terminal.
        Err(answer) => answer.exit(),
    };
    let format = match args.log_format {
        Format::Json => LogFormat::Json,
        Format::Text => LogFormat::Text,
    };
    let filter = std::env::var("RUST_LOG").ok();
    let started = telemetry::init(format, filter.as_deref());
    if let Err(error) = started {
        // A bad filter must not hide why the process stops: say it with the default one.
        drop(telemetry::init(format, None));
        return failed(&error);
    }
    // An earlier provider would be the same one: ring is the only one that is built in.
    drop(rustls::crypto::ring::default_provider().install_default());
    let sources = Sources { directory: args.config_dir, file: args.config };
    let settings = match Settings::load(binary, &sources, std::env::vars()) {
        Ok(settings) => settings,
        Err(error) => return failed(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(start_and_work(binary, settings, work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error.as_ref()),
    }
}

fn arguments(binary: Binary) -> Result<Args, clap::Error> {
    let matches = Args::command().name(binary.name()).try_get_matches()?;
    Args::from_arg_matches(&matches)
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    error!(error = telemetry::chain(error), "stopped");
    ExitCode::FAILURE
}

async fn start_and_work<W>(
    binary: Binary,
    settings: Settings,
    work: impl FnOnce(App) -> W,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    W: Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>>,
{
    let metrics = Metrics::new(binary.name(), VERSION);
    let user_agent = format!("valkey-operator/{VERSION} {}", binary.name());
    let client = api_client::connect(&user_agent, settings.api_timeout, metrics.api.clone()).await?;
    let health = Health::new();
    let listener = TcpListener::bind(settings.listen_address)
        .await
        .map_err(|source| ListenError { address: settings.listen_address, source })?;
    let (trigger, shutdown) = health::shutdown()?;
    let server = tokio::spawn(health::serve(listener, health.clone(), metrics.clone(), shutdown.clone()));
    let checked = health.ready_flag("CRDs");
    if !crds_checked(&client, &shutdown).await? {
        return Ok(());
    }
    checked.set(true);
    let events = Events::new(client.clone(), binary.manager(), std::env::var("HOSTNAME").ok());
    info!(binary = binary.name(), version = VERSION, settings = settings.to_line(), "started");

    let app = App { binary, settings, client, metrics, health, events, shutdown: shutdown.clone() };
    let deadline = async {
        shutdown.wait().await;
        info!("stopping: no new action, finishing the running one");
        tokio::time::sleep(STOP_LIMIT).await;
    };
    let worked = tokio::select! {
        biased;
        worked = work(app) => worked,
        () = deadline => {
            warn!(limit = %humantime::format_duration(STOP_LIMIT), "gave up waiting for the running action");
            Ok(())
        }
    };
    trigger.stop();
    // A scrape that never ends must not hold up the exit.
    drop(tokio::time::timeout(Duration::from_secs(1), server).await);
    if worked.is_ok() {
        info!("stopped");
    }
    worked
}

/// Waits for the API server and checks its CRDs; false when the process was asked to stop before. An API server that
/// cannot be reached is waited for: to exit would only leave the restart to the kubelet's growing back-off.
async fn crds_checked(client: &Client, shutdown: &Shutdown) -> Result<bool, CrdError> {
    loop {
        match crd_check::check(client).await {
            Ok(()) => return Ok(true),
            Err(error @ CrdError::Unreadable(_)) => {
                warn!(error = telemetry::chain(&error), "waiting for the API server");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(false),
            () = tokio::time::sleep(API_RETRY) => {}
        }
    }
}

/// The listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (setting listenAddress)")]
struct ListenError {
    address: std::net::SocketAddr,
    #[source]
    source: std::io::Error,
}
