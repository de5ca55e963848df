//! `cargo xtask bench`: what is measured, beside what, is told by each part.
//!
//! Owns the command line. Times mean nothing on another machine; ratios of one run, and counts, do.

mod bootstrap;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::command;
use crate::kubeconfig::Cluster;
use crate::paths::Paths;
use crate::test_layers;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum What {
    /// A bootstrap beside the same cluster made by hand; the operator must be installed, as by `demo`
    Bootstrap {
        /// Number of shards
        #[arg(long, default_value_t = 3)]
        shards: u16,
        /// Replicas of each
        #[arg(long, default_value_t = 1)]
        replicas: u16,
        /// Pairs to measure
        #[arg(long, default_value_t = 3)]
        runs: u16,
        /// The cluster to measure on
        #[arg(long, value_enum, default_value_t = Cluster::Local)]
        cluster: Cluster,
    },
    /// The operator with many clusters on the local Kubernetes; their servers only pretend
    Scale {
        /// Arguments, such as --clusters 1,100,1000 --rest 120
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// The time to decide at 3, 100 and 1 000 shards; needs nothing
    Plan,
}

/// Measures it.
pub(crate) fn run(paths: &Paths, what: What) -> Result<ExitCode> {
    let mut cargo = command::cargo(paths);
    match what {
        What::Bootstrap { shards, replicas, runs, cluster } => {
            bootstrap::run(paths, cluster, shards, replicas, runs)?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Scale { args } => {
            cargo.envs(test_layers::local_environment(paths)?);
            cargo.args(["run", "--quiet", "--package", "scale", "--"]).args(args);
        }
        What::Plan => drop(cargo.args(["bench", "--quiet", "--package", "cluster-ctl", "--bench", "plan"])),
    }
    command::exit_code(&mut cargo)
}
