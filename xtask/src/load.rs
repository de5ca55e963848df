//! `cargo xtask load`, `faults` and `soak`: clusters under load on the local Kubernetes.
//!
//! Owns the way there (Kubernetes, image, environment) and nothing of what is played: that is the crate `load`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::builds::{self, Key};
use crate::command;
use crate::operator_image;
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
    /// Commit or tag whose operator the scenario `release` upgrades from and rolls back to
    #[arg(long, value_name = "COMMIT")]
    older: Option<String>,
}

/// Plays the named scenarios, or all of `kind`.
pub(crate) fn play(paths: &Paths, kind: &str, names: &[String], options: &Options) -> Result<ExitCode> {
    if names == ["list"] {
        return command::exit_code(tool(paths).arg("list"));
    }
    // Built before Kubernetes is touched: it takes minutes the first time.
    build(paths)?;
    let mut load = prepared(paths)?;
    if let Some(commit) = &options.older {
        load.envs(older_operator(paths, commit)?);
    }
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

/// The operator of another commit: its image, and its sources with its manifests.
fn older_operator(paths: &Paths, commit: &str) -> Result<[(&'static str, PathBuf); 2]> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(paths.checkout()).args(arguments);
        git
    };
    let id = command::output(&mut git(&["rev-parse", "--verify", &format!("{commit}^{{commit}}")]))?;
    let part = Part::start("sources");
    let key = Key::default().with("commit", &id);
    let sources = builds::ensure(paths, &part, "other-operator-sources", key, |folder| {
        let archive = folder.join("sources.tar");
        command::output(git(&["archive", &id, "--output"]).arg(&archive))?;
        command::output(Command::new("tar").arg("-C").arg(folder).arg("-xf").arg(&archive))?;
        std::fs::remove_file(&archive).context("delete the archive, which is unpacked")
    })?
    .folder;
    part.done(&id);
    let image = operator_image::build_and_import_other(paths, sources.clone())?;
    Ok([
        ("VALKEY_OPERATOR_OLDER_IMAGE", image.into()),
        ("VALKEY_OPERATOR_OLDER_DEPLOY", sources.join("deploy")),
    ])
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
