//! `sim --seed N [--trace]` runs one story, `sim --seeds A..B` many. A failure prints how to run it again.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use sim::scenario::Scenario;
use sim::simulation::run_seed;

/// Runs the operator against a model of Kubernetes and Valkey.
#[derive(Debug, Parser)]
struct Arguments {
    /// The seed of one story.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds A up to, but not, B.
    #[arg(long, value_parser = range, value_name = "A..B")]
    seeds: Option<(u64, u64)>,
    /// Prints every line of what happens.
    #[arg(long)]
    trace: bool,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("two numbers with .. between them")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok((number(from)?, number(to)?))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (from, to) = arguments.seeds.unwrap_or_else(|| {
        let seed = arguments.seed.unwrap_or(1);
        (seed, seed + 1)
    });
    let mut out = std::io::stdout();
    let mut failed: u64 = 0;
    for seed in from..to {
        if arguments.trace {
            drop(writeln!(out, "{:#?}", Scenario::from_seed(seed)));
        }
        match run_seed(seed, arguments.trace) {
            Ok(summary) => {
                let healed = summary.healed_in / 1000;
                drop(writeln!(out, "seed {seed}: well {healed} s after the story, {} ticks", summary.ticks));
            }
            Err(failure) => {
                failed += 1;
                drop(writeln!(out, "seed {seed}: FAILED: {failure}"));
                if !arguments.keep_going {
                    break;
                }
            }
        }
    }
    drop(writeln!(out, "{failed} of {} seeds failed", to - from));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
