//! Developer commands: a real Kubernetes on this machine, the operator's image, the tests and the demo.
//!
//! Owns the command line and nothing else. Few dependencies on purpose: it builds in seconds.

mod bench;
mod builds;
mod command;
mod demo;
#[cfg(test)]
mod docs_links;
mod kubeconfig;
mod load;
mod local;
mod operator_image;
mod paths;
mod results;
mod settings;
mod test_layers;
mod ui;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::kubeconfig::Cluster;
use crate::local::options::UpOptions;
use crate::paths::Paths;
use crate::test_layers::Layer;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the Valkey operator")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring the local Kubernetes up, or bring it to what the options say; needs root
    Up(UpOptions),
    /// Take the local Kubernetes down and leave the machine as it was
    Down {
        /// Also delete the nodes' disks (unpacked images), certificates and logs
        #[arg(long)]
        purge: bool,
    },
    /// Show what runs, or prove that nothing is left; fails if something is broken or left over
    Status,
    /// Write a kubeconfig that acts as a service account of the local Kubernetes
    Kubeconfig {
        /// Namespace of the service account
        #[arg(long)]
        namespace: String,
        /// Name of the service account, which must exist
        #[arg(long)]
        service_account: String,
        /// File to write
        #[arg(long)]
        out: PathBuf,
        /// How long its token is valid
        #[arg(long, default_value = "24h")]
        duration: String,
    },
    /// Break or mend one node of the local Kubernetes
    Node {
        /// What to do
        #[arg(value_enum)]
        action: local::node::Action,
        /// The node, such as node-2
        node: String,
    },
    /// Build the operator's image and import it into every node
    Image,
    /// Run the tests, layer by layer; the last line says how many passed and failed
    Test {
        /// Run only this layer
        #[arg(value_enum)]
        layer: Option<Layer>,
        /// The cluster for the layers api and e2e
        #[arg(long, value_enum, default_value_t = Cluster::Local)]
        cluster: Cluster,
        /// Tell stories of the simulation for an hour, which no run has told before, and crash at every call
        #[arg(long)]
        nightly: bool,
        /// Arguments for the test programs, such as the name of a test
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Show the operator at work
    Demo {
        /// The cluster to show it on
        #[arg(long, value_enum, default_value_t = Cluster::Local)]
        cluster: Cluster,
        /// The operator's image [default: built from this checkout; an external cluster needs one to pull]
        #[arg(long)]
        image: Option<String>,
    },
    /// Measure the operator
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Play planned operations on a cluster under load, on the local Kubernetes; results are tables and pictures
    Load {
        /// Scenarios [default: all; `list` shows them]
        names: Vec<String>,
        #[command(flatten)]
        options: load::Options,
    },
    /// Play faults on a cluster under load, on the local Kubernetes and never on another
    Faults {
        /// Scenarios [default: all; `list` shows them]
        names: Vec<String>,
        #[command(flatten)]
        options: load::Options,
    },
    /// Break something at random every 20 to 60 s under load, on the local Kubernetes
    Soak {
        /// For how long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        #[command(flatten)]
        options: load::Options,
    },
    /// Write the generated files: CRDs, install manifest, API reference
    Gen {
        /// Only compare; fail if a file is out of date
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            ui::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let paths = Paths::discover()?;
    match command {
        Command::Up(options) => local::up(&paths, &options)?,
        Command::Down { purge } => local::down(&paths, purge)?,
        Command::Status => return local::status::show(&paths),
        Command::Kubeconfig { namespace, service_account, out, duration } => {
            kubeconfig::write_for_service_account(&paths, &namespace, &service_account, &duration, &out)?;
        }
        Command::Node { action, node } => local::node::act(&paths, action, &node)?,
        Command::Image => drop(operator_image::build_and_import(&paths)?),
        Command::Test { layer, cluster, nightly, args } => {
            let choice = test_layers::Choice { only: layer, cluster, nightly };
            return Ok(test_layers::run(&paths, choice, &args));
        }
        Command::Demo { cluster, image } => demo::run(&paths, cluster, image.as_deref())?,
        Command::Bench { what } => return bench::run(&paths, what),
        Command::Load { names, options } => return load::play(&paths, "planned", &names, &options),
        Command::Faults { names, options } => return load::play(&paths, "faults", &names, &options),
        Command::Soak { minutes, options } => return load::soak(&paths, minutes, &options),
        Command::Gen { check } => return generate(&paths, check),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the generator, a crate of its own: it needs the operator's code, which takes minutes to build.
fn generate(paths: &Paths, check: bool) -> Result<ExitCode> {
    let mut cargo = command::cargo(paths);
    cargo.args(["run", "--quiet", "--package", "gen", "--"]).args(check.then_some("--check"));
    command::exit_code(&mut cargo)
}
