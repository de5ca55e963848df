//! Writes the generated files of the repository: `cargo run -p gen`, or `-- --check` to fail when one is out of date.
//!
//! Owns which files are generated; a module each knows what is in them. Reads nothing but the code it is built with, so
//! that the same commit always gives the same bytes.

mod api_reference;
mod crds;
mod install;
mod monitoring;
mod output;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::output::{Drift, Output};

/// The repository's root, two directories above this package.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Every generated file. A new one is a module that makes its [`Output`], and a line here.
fn outputs() -> Result<Vec<Output>> {
    let crds = shared::api::crds();
    let yaml = crds::yaml(&crds)?;
    let install = install::outputs(&yaml.content)?;
    let mut outputs = vec![yaml, crds::json(&crds)?, api_reference::markdown(&crds)?];
    outputs.extend(install);
    Ok(outputs)
}

fn main() -> ExitCode {
    let mut err = std::io::stderr();
    match run() {
        Ok(code) => code,
        Err(error) => {
            drop(writeln!(err, "gen: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--check"] => true,
        other => bail!("unknown arguments {other:?}; the only one is --check"),
    };
    let root = Path::new(ROOT);
    let mut out = std::io::stdout();
    let mut drifted = false;
    for output in outputs()? {
        match output.drift(root)? {
            None => writeln!(out, "unchanged {}", output.path)?,
            Some(drift) if check => {
                drifted = true;
                report(&mut out, &output, &drift)?;
            }
            Some(_) => {
                output.write(root)?;
                writeln!(out, "written   {}", output.path)?;
            }
        }
    }
    if drifted {
        writeln!(out, "run `cargo xtask gen` and commit the result")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Says where a file differs, by its first differing line.
fn report(out: &mut impl std::io::Write, output: &Output, drift: &Drift) -> Result<()> {
    match drift {
        Drift::Missing => writeln!(out, "MISSING   {}", output.path)?,
        Drift::Differs { line, found, expected } => {
            writeln!(out, "DIFFERS   {}:{line}", output.path)?;
            writeln!(out, "  - {found}\n  + {expected}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_file_is_what_the_code_generates() {
        for output in outputs().unwrap() {
            let drift = output.drift(Path::new(ROOT)).unwrap();
            assert_eq!(drift, None, "{}: run `cargo xtask gen` and commit the result", output.path);
        }
    }

    #[test]
    fn two_runs_give_the_same_bytes() {
        let contents = || outputs().unwrap().into_iter().map(|output| output.content).collect::<Vec<_>>();
        assert_eq!(contents(), contents());
    }
}
