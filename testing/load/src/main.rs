//! The command line of the load tool: a load on its own against any cluster, and scenarios on a Kubernetes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use load::interruptions;
use load::report::{self, Results, Row, Settled};
use load::resolve::{Names, Seeds};
use load::scenario::{self, Setting};
use load::{Load, Options};

#[derive(Parser)]
#[command(
    name = "load",
    about = "Valkey clusters under load: what clients see, and what is left of their data"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a cluster under load, and verify its data at the end
    Run(Run),
    /// Play scenarios on the Kubernetes of $KUBECONFIG; usually started by `cargo xtask load` or `cargo xtask faults`
    Play {
        /// Names of scenarios; `planned` and `faults` stand for all of their kind
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Break something at random again and again
    Soak {
        /// For how long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        #[command(flatten)]
        common: Common,
    },
    /// List the scenarios
    List,
}

#[derive(clap::Args)]
struct Common {
    /// Folder for tables, measurements and pictures
    #[arg(long, default_value = "load-results")]
    out: PathBuf,
    /// Seed of chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Commands a second of the application
    #[arg(long, default_value_t = 2000)]
    rate: u32,
}

#[derive(clap::Args)]
struct Run {
    /// Addresses of nodes, such as 10.0.0.1:6379
    #[arg(long)]
    address: Vec<String>,
    /// The Service's complete name, instead of addresses
    #[arg(long, requires = "dns")]
    service: Option<String>,
    /// The DNS server that knows it, such as 10.96.0.10:53
    #[arg(long)]
    dns: Option<SocketAddr>,
    /// How long
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Keys
    #[arg(long, default_value_t = 20_000)]
    keys: usize,
    #[command(flatten)]
    common: Common,
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(run) => on_its_own(&run).await,
        Command::Play { names, common } => play(&names, common.into()).await,
        Command::Soak { minutes, common } => scenario::soak::soak(&common.into(), minutes).await,
        Command::List => {
            for it in scenario::ALL {
                let kind = if it.is_fault { "faults" } else { "load" };
                test_e2e::say(&format!("{kind:<7} {:<14} {}", it.name, it.about));
            }
            Ok(Vec::new())
        }
    };
    match outcome {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            for fault in faults {
                test_e2e::say(&format!("MISSED: {fault}"));
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            test_e2e::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

impl From<Common> for Setting {
    fn from(Common { out, seed, rate }: Common) -> Self {
        Self { folder: out, seed, rate }
    }
}

/// Every scenario is played, whatever came of the one before.
async fn play(names: &[String], setting: Setting) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let all = |is_fault| {
        let of_kind = scenario::ALL.iter().filter(move |it| it.is_fault == is_fault);
        of_kind.map(|it| it.name).collect::<Vec<_>>()
    };
    let names = names.iter().flat_map(|name| match name.as_str() {
        "planned" => all(false),
        "faults" => all(true),
        name => vec![name],
    });
    for name in names {
        match scenario::play(name, &setting).await {
            Ok(found) => faults.extend(found),
            Err(error) => faults.push(format!("{name} could not be played: {error:#}")),
        }
    }
    Ok(faults)
}

async fn on_its_own(run: &Run) -> Result<Vec<String>> {
    let seeds = match (&run.service, run.dns) {
        (Some(name), Some(server)) => {
            let (names, name) = (Names::of(server)?, name.clone());
            Seeds::Name { names, name, port: 6379, authorities: None, login: None }
        }
        _ if run.address.is_empty() => bail!("name addresses, or a service and a DNS server"),
        _ => Seeds::Fixed(run.address.clone()),
    };
    let Common { out, seed, rate } = &run.common;
    let options = Options { keys: run.keys, rate: *rate, seed: *seed, ..Options::default() };
    let load = Load::start(&seeds, &options).await?;
    tokio::time::sleep(Duration::from_secs(run.seconds)).await;
    let to = load.recorder.now();
    let verdict = load.verify().await;
    let record = load.stop().await?;
    let row = Row {
        name: format!("{} s of load", run.seconds),
        settled: Settled::Held,
        writable_s: None,
        window: interruptions::window(&record, Duration::ZERO, to),
        verdict,
        order: Vec::new(),
        note: String::new(),
    };
    test_e2e::say(&report::table(std::slice::from_ref(&row)));
    report::save(out, &Results { scenario: "run", rows: std::slice::from_ref(&row), record: &record })
        .context("save the results")?;
    Ok(row.faults_of_a_plan())
}
