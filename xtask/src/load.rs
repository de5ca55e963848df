//! `cargo xtask load`, `faults` and `soak`: clusters under load on the local Kubernetes.
//!
//! Owns the way there (Kubernetes, image, environment) and nothing of what is played: that is the crate `load`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::builds::{self, Key};
use crate::command;
use crate::paths::Paths;
use crate::test_layers;
use crate::ui::{self, Part};

/// What all of them take.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seed of chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Commands a second of the application
    #[arg(long, default_value_t = 2000)]
    rate: u32,
}

/// Plays the named scenarios, or all of `kind`.
pub(crate) fn play(paths: &Paths, kind: &str, names: &[String], options: &Options) -> Result<ExitCode> {
    if names == ["list"] {
        return command::exit_code(tool(paths).arg("list"));
    }
    // Built before Kubernetes is touched: it takes minutes the first time.
    build(paths)?;
    let mut load = prepared(paths)?;
    load.arg("play");
    if names.is_empty() {
        load.arg(kind)
    } else {
        load.args(names)
    };
    command::exit_code(with(paths, &mut load, options))
}

/// Breaks something at random for some minutes.
pub(crate) fn soak(paths: &Paths, minutes: u64, options: &Options) -> Result<ExitCode> {
    build(paths)?;
    let mut load = prepared(paths)?;
    load.args(["soak", "--minutes", &minutes.to_string()]);
    command::exit_code(with(paths, &mut load, options))
}

fn build(paths: &Paths) -> Result<()> {
    let status = command::cargo(paths).args(["build", "--release", "--package", "load"]).status();
    anyhow::ensure!(status.context("start cargo build")?.success(), "the load tool does not build");
    Ok(())
}

fn prepared(paths: &Paths) -> Result<Command> {
    let environment = test_layers::local_environment(paths)?;
    let mut load = tool(paths);
    load.envs(environment);
    match other_client(paths) {
        Ok(python) => {
            load.env("VALKEY_OPERATOR_OTHER_CLIENT", python);
        }
        // One scenario cannot be played then, and says so.
        Err(error) => ui::error(&error.context("no other client")),
    }
    Ok(load)
}

/// A Python that has the packages of the other family of clients; installed once.
fn other_client(paths: &Paths) -> Result<PathBuf> {
    let requirements = paths.checkout().join("testing/load/other-client/requirements.txt");
    let part = Part::start("other client");
    let key = Key::default().with_file(&requirements)?;
    let built = builds::ensure(paths, &part, "other-client", key, |folder| {
        command::output(Command::new("python3").args(["-m", "venv", "--copies"]).arg(folder.join("venv")))?;
        let mut pip = Command::new(folder.join("venv/bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements);
        command::output(&mut pip).map(drop)
    })?;
    Ok(built.folder.join("venv/bin/python"))
}

fn tool(paths: &Paths) -> Command {
    let mut cargo = command::cargo(paths);
    cargo.args(["run", "--release", "--quiet", "--package", "load", "--"]);
    cargo
}

fn with<'a>(paths: &Paths, load: &'a mut Command, options: &Options) -> &'a mut Command {
    let folder = paths.cache().join("load");
    ui::line(&format!("results go to {}", folder.display()));
    load.arg("--out").arg(folder);
    load.args(["--seed", &options.seed.to_string(), "--rate", &options.rate.to_string()])
}
