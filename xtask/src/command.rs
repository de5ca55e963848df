//! Running other programs: what they print goes to a log, and a failure says which log to read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::paths::Paths;

/// Lines of a log that an error quotes.
const QUOTED_LINES: usize = 12;

/// Opens a log for appending, and makes its folder.
pub(crate) fn open_log(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("open the log {}", path.display()))
}

/// A command that ends when xtask ends, however that happens: for builds, which are of no use without it.
pub(crate) fn bound_to_us(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A cargo that works on the checkout and keeps what it builds in the cache.
pub(crate) fn cargo(paths: &Paths) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths.checkout()).env("CARGO_TARGET_DIR", paths.target());
    cargo
}

/// Runs a command; its output goes to `log`. An error quotes the end of the log.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = open_log(log)?;
    let copy = file.try_clone().context("duplicate the log's descriptor")?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .status()
        .with_context(|| format!("start {}", words(command)))?;
    if status.success() { Ok(()) } else { Err(failure(command, &status.to_string(), log)) }
}

/// Runs a command to its end, its output shown; its success is the exit code.
pub(crate) fn exit_code(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a command and returns what it printed to standard output, without blanks at the ends.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().with_context(|| format!("start {}", words(command)))?;
    if !status.success() {
        bail!("{}: {status}: {}", words(command), String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}

/// Whether a program of that name is in the PATH.
pub(crate) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    // Root's daemons are often called with a short PATH, and these programs are in sbin.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Asks `probe` again and again until it gives a value; fails after `limit` with what it last said.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match probe() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() >= limit {
            let waited = format!("{what}: not within {} s", limit.as_secs());
            return Err(last.map_or_else(|| anyhow!(waited.clone()), |error| error.context(waited.clone())));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The error of a command that failed: what it was, the end of its log, and where the log is.
fn failure(command: &Command, status: &str, log: &Path) -> anyhow::Error {
    anyhow!("{}: {status}\n{}", words(command), quote(log))
}

/// The end of a log, indented, and where the log is.
pub(crate) fn quote(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut quoted = String::new();
    for line in last_lines(&text, QUOTED_LINES) {
        quoted.push_str("    ");
        quoted.push_str(line);
        quoted.push('\n');
    }
    quoted.push_str("  full log: ");
    quoted.push_str(&log.display().to_string());
    quoted
}

fn last_lines(text: &str, count: usize) -> impl Iterator<Item = &str> {
    let skip = text.lines().count().saturating_sub(count);
    text.lines().skip(skip)
}

/// The command's program and first arguments, for messages.
fn words(command: &Command) -> String {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    let all: Vec<_> = all.map(|word| word.to_string_lossy()).collect();
    let mut text = all.join(" ");
    if let Some((end, _)) = text.char_indices().nth(160) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_quotes_the_end_of_its_log() {
        assert_eq!(last_lines("a\nb\nc\n", 2).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(last_lines("a", 5).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn output_of_a_failing_command_is_in_the_error() {
        let error = output(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        assert!(error.to_string().contains('3'), "{error}");
    }

    #[test]
    fn waiting_says_what_was_seen_last() {
        let error = wait_for::<()>("the moon", Duration::ZERO, || bail!("it is cloudy")).unwrap_err();
        assert_eq!(format!("{error:#}"), "the moon: not within 0 s: it is cloudy");
    }
}
