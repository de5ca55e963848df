//! `cargo xtask test`: the layers of tests in order, each with what it needs.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::command;
use crate::kubeconfig::{self, Cluster};
use crate::local::images::{self, Valkey};
use crate::local::options::UpOptions;
use crate::local::{self, packages};
use crate::operator_image;
use crate::paths::Paths;
use crate::results::{self, Counts};
use crate::settings;
use crate::ui::{self, Part};

/// A layer of tests, from the quickest to the one closest to real use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// Pure code; needs nothing
    Unit,
    /// The real operator against a model of Kubernetes and Valkey, in stories from seeds; needs nothing
    Sim,
    /// Everything that speaks to Valkey; needs real Valkey servers
    Valkey,
    /// Custom resources and permissions; needs a Kubernetes API
    Api,
    /// The operator as people use it; needs a Kubernetes and the operator's image
    E2e,
}

impl Layer {
    /// What a run of all layers runs.
    const ALL: [Self; 5] = [Self::Unit, Self::Sim, Self::Valkey, Self::Api, Self::E2e];

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Valkey => "valkey",
            Self::Api => "api",
            Self::Sim => "sim",
            Self::E2e => "e2e",
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Unit => {
                &["shared", "cluster-ctl", "node-ctl", "reconcile-loops", "load", "scale", "xtask", "gen"]
            }
            Self::Sim => &["sim"],
            Self::Valkey => &["test-valkey"],
            Self::Api => &["test-api"],
            Self::E2e => &["test-e2e"],
        }
    }

    /// Arguments of the test programs. End-to-end tests take turns by themselves (`test_e2e::turn`), for which all
    /// must have been started.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::E2e => &["--test-threads=200"],
            // How many stories were told, and from which seed on.
            Self::Sim => &["--show-output"],
            Self::Unit | Self::Valkey | Self::Api => &[],
        }
    }

    /// The simulation lives through days of virtual time: what it runs is optimised.
    fn is_optimised(self) -> bool {
        self == Self::Sim
    }

    fn needs_cluster(self) -> bool {
        matches!(self, Self::Api | Self::E2e)
    }
}

/// What is run, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// Only this layer.
    pub(crate) only: Option<Layer>,
    /// The cluster for the layers that need one.
    pub(crate) cluster: Cluster,
    /// Stories of the simulation for an hour, which no run has told before, and a crash at every call.
    pub(crate) nightly: bool,
}

/// Time for fresh stories of the simulation in a nightly run, seconds.
const FRESH_SECONDS: u32 = 3600;

/// How a layer ended.
#[derive(Debug, Clone)]
struct Outcome {
    layer: Layer,
    counts: Counts,
    time: Duration,
    remark: &'static str,
}

/// Runs one layer or all. The last line that is printed is `N passed, M failed`; a layer that could not be
/// run, or ran no test at all, counts as one failure.
pub(crate) fn run(paths: &Paths, choice: Choice, args: &[String]) -> ExitCode {
    let layers = choice.only.map_or_else(|| Layer::ALL.to_vec(), |only| vec![only]);
    let mut outcomes = Vec::new();
    for layer in layers {
        ui::line(&format!("\n== {} ==", layer.name()));
        let part = Part::start(layer.name());
        let (counts, remark) = match run_layer(paths, layer, choice, args) {
            Ok((counts, succeeded)) => judge(counts, succeeded),
            Err(error) => {
                ui::error(&error);
                (Counts { failed: 1, ..Counts::default() }, "could not be run")
            }
        };
        outcomes.push(Outcome { layer, counts, time: part.elapsed(), remark });
    }
    report(&outcomes)
}

/// Adds what the counts alone do not tell: tests that did not build or died, and layers without tests.
fn judge(mut counts: Counts, succeeded: bool) -> (Counts, &'static str) {
    if !succeeded && counts.failed == 0 {
        counts.failed = 1;
        return (counts, "did not build, or a test program died");
    }
    if counts.passed + counts.failed == 0 {
        counts.failed = 1;
        return (counts, "ran no test at all");
    }
    (counts, "")
}

fn report(outcomes: &[Outcome]) -> ExitCode {
    ui::line(&format!("\n{:<10}{:>8}{:>8}{:>9}{:>10}", "layer", "passed", "failed", "ignored", "seconds"));
    let mut sum = Counts::default();
    for Outcome { layer, counts, time, remark } in outcomes {
        let Counts { passed, failed, ignored } = counts;
        let row = format!(
            "{:<10}{passed:>8}{failed:>8}{ignored:>9}{:>10.1}  {remark}",
            layer.name(),
            time.as_secs_f64()
        );
        ui::line(row.trim_end());
        sum += *counts;
    }
    ui::line(&format!("\n{} passed, {} failed", sum.passed, sum.failed));
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prepares a layer and runs it; returns its counts and whether cargo called it a success.
fn run_layer(paths: &Paths, layer: Layer, choice: Choice, args: &[String]) -> Result<(Counts, bool)> {
    let cluster = choice.cluster;
    let mut environment = prepare(paths, layer, cluster)?;
    if layer == Layer::Sim && choice.nightly {
        environment.push(("SIM_SECONDS".to_owned(), FRESH_SECONDS.to_string().into()));
        environment.push(("SIM_COMPLETE".to_owned(), "1".into()));
    }
    // What the API layer writes must stay as it was written: an operator that an earlier run left would answer it.
    let _paused = (layer == Layer::Api && cluster == Cluster::Local)
        .then(|| PausedOperator::pause(paths))
        .transpose()?;
    let mut test = command::cargo(paths);
    test.args(["test", "--no-fail-fast"]);
    if layer.is_optimised() {
        test.arg("--release");
    }
    for package in layer.packages() {
        test.args(["--package", package]);
    }
    test.arg("--").args(layer.arguments()).args(args);
    if layer == Layer::E2e && cluster == Cluster::External {
        ui::line("without the tests named local_…: they need the machine of the local Kubernetes");
        test.args(["--skip", "local_"]);
    }
    test.envs(environment).stdout(Stdio::piped());
    let mut child = test.spawn().context("start cargo test")?;
    let output = child.stdout.take().context("output of cargo test")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        ui::line(&line);
        if let Some(found) = results::parse_line(&line) {
            counts += found;
        }
    }
    let status = child.wait().context("wait for cargo test")?;
    Ok((counts, status.success()))
}

/// The operator of the local Kubernetes, at no replicas until this is dropped; nothing where none is installed.
struct PausedOperator<'a> {
    paths: &'a Paths,
    installed: bool,
}

impl<'a> PausedOperator<'a> {
    fn pause(paths: &'a Paths) -> Result<Self> {
        let tools = packages::ensure_unpacked(paths)?;
        let namespace = ["--namespace", "valkey-operator"];
        let get = ["get", "deployment", "valkey-operator", "--ignore-not-found", "--output", "name"];
        let installed = !command::output(local::kubectl(paths, &tools).args(namespace).args(get))?.is_empty();
        if installed {
            scale(paths, 0)?;
            let gone = [
                "wait",
                "--for=delete",
                "pod",
                "--selector",
                "app.kubernetes.io/name=valkey-operator",
                "--timeout=60s",
            ];
            command::output(local::kubectl(paths, &tools).args(namespace).args(gone))?;
        }
        Ok(Self { paths, installed })
    }
}

impl Drop for PausedOperator<'_> {
    fn drop(&mut self) {
        if self.installed
            && let Err(error) = scale(self.paths, 1)
        {
            ui::error(&error);
        }
    }
}

fn scale(paths: &Paths, replicas: u8) -> Result<()> {
    let tools = packages::ensure_unpacked(paths)?;
    let replicas = format!("--replicas={replicas}");
    let scale = ["--namespace", "valkey-operator", "scale", "deployment", "valkey-operator", &replicas];
    command::output(local::kubectl(paths, &tools).args(scale)).map(drop)
}

/// The environment of the end-to-end tests on the local Kubernetes, which is brought up, with the operator's image.
pub(crate) fn local_environment(paths: &Paths) -> Result<Vec<(String, PathBuf)>> {
    prepare(paths, Layer::E2e, Cluster::Local)
}

/// Brings up what the layer needs and returns the environment that tells its tests about it.
fn prepare(paths: &Paths, layer: Layer, cluster: Cluster) -> Result<Vec<(String, PathBuf)>> {
    let mut environment = vec![("VALKEY_OPERATOR_CACHE".to_owned(), paths.cache().to_owned())];
    if matches!(layer, Layer::Unit | Layer::Sim) {
        return Ok(environment);
    }
    if layer == Layer::Valkey {
        local::require_root()?;
        packages::ensure_installed(paths)?; // mmdebstrap
        for (minor, suite) in settings::VALKEY {
            let part = Part::start(format!("valkey {minor}"));
            environment.extend(valkey_programs(&images::ensure_valkey(paths, &part, minor, suite)?));
        }
    }
    if layer.needs_cluster() {
        if cluster == Cluster::Local {
            local::up(paths, &UpOptions::default())?;
            environment.extend(local_cluster(paths)?);
            if layer == Layer::E2e {
                let image = operator_image::build_and_import(paths)?;
                environment.push(("VALKEY_OPERATOR_IMAGE".to_owned(), image.into()));
            }
        }
        environment.push(("KUBECONFIG".to_owned(), kubeconfig::for_cluster(paths, cluster)?));
        environment.push(("VALKEY_OPERATOR_CLUSTER".to_owned(), cluster.as_str().into()));
    }
    Ok(environment)
}

/// Where the programs of a Valkey are: `VALKEY_SERVER_9_1`, `VALKEY_CLI_9_1`.
fn valkey_programs(valkey: &Valkey) -> [(String, PathBuf); 2] {
    let suffix = valkey.minor.replace('.', "_");
    [
        (format!("VALKEY_SERVER_{suffix}"), valkey.folder.join("valkey-server")),
        (format!("VALKEY_CLI_{suffix}"), valkey.folder.join("valkey-cli")),
    ]
}

/// What tests may use of the local Kubernetes besides its API.
fn local_cluster(paths: &Paths) -> Result<Vec<(String, PathBuf)>> {
    let tools = packages::ensure_unpacked(paths)?;
    let mut environment = vec![
        ("VALKEY_OPERATOR_XTASK".to_owned(), env::current_exe().context("path of xtask itself")?),
        ("VALKEY_OPERATOR_KUBECTL".to_owned(), tools.kubectl),
        ("VALKEY_OPERATOR_AUDIT_LOG".to_owned(), paths.audit_log()),
    ];
    for (minor, _suite) in settings::VALKEY {
        let name = format!("VALKEY_OPERATOR_VALKEY_IMAGE_{}", minor.replace('.', "_"));
        environment.push((name, format!("docker.io/valkey/valkey:{minor}").into()));
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_without_tests_is_a_failure() {
        assert_eq!(judge(Counts::default(), true).0.failed, 1);
        assert_eq!(judge(Counts { ignored: 3, ..Counts::default() }, true).0.failed, 1);
    }

    #[test]
    fn tests_that_died_are_a_failure_even_if_all_others_passed() {
        let counts = Counts { passed: 5, ..Counts::default() };
        assert_eq!(judge(counts, false).0, Counts { failed: 1, ..counts });
    }

    #[test]
    fn counts_that_say_it_all_are_left_alone() {
        for counts in [Counts { passed: 5, ..Counts::default() }, Counts { failed: 2, ..Counts::default() }] {
            assert_eq!(judge(counts, counts.failed == 0), (counts, ""));
        }
    }
}
