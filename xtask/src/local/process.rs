//! The long-running processes of the local Kubernetes: started once, recognised again, ended.
//!
//! A process is known by its id *and* start time, which it records itself (`launch.sh`); an id alone may by
//! now be somebody else's. No other process is ever touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;
use crate::paths::Paths;
use crate::settings::MARKER;

/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// How long a killed process may take to be gone.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// A signal to end a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ask it to end; kill it when it does not.
    Term,
    /// End it now.
    Kill,
}

/// What a record says: a process, and the fingerprint of what it was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Process id.
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot.
    pub(crate) start: u64,
    /// Fingerprint of its command line and configuration.
    pub(crate) fingerprint: String,
}

/// One named process of the local Kubernetes.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    name: String,
    record: PathBuf,
    log: PathBuf,
}

impl Process {
    /// The process of that name, running or not.
    pub(crate) fn new(paths: &Paths, name: impl Into<String>) -> Self {
        let name = name.into();
        let record = records(paths).join(&name);
        let log = paths.logs().join(format!("{name}.log"));
        Self { name, record, log }
    }

    /// All processes that have a record.
    pub(crate) fn recorded(paths: &Paths) -> Result<Vec<Self>> {
        let folder = records(paths);
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let name = entry.context("read the records")?.file_name().to_string_lossy().into_owned();
            // A process that is just being started has not renamed its record yet.
            if Path::new(&name).extension().is_none() {
                found.push(Self::new(paths, name));
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Its name, such as `kubelet-node-1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its log.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Its record, if the process that it speaks of is running.
    pub(crate) fn running(&self) -> Option<Record> {
        let record = parse_record(&fs::read_to_string(&self.record).ok()?)?;
        (start_time(record.pid) == Some(record.start)).then_some(record)
    }

    /// Fails with the end of the log when the process is not running.
    pub(crate) fn check(&self) -> Result<()> {
        if self.running().is_none() {
            bail!("{} has ended by itself:\n{}", self.name, command::quote(&self.log));
        }
        Ok(())
    }

    /// Starts it, unless it runs already with the same fingerprint; with another one it is restarted.
    /// Returns whether anything was done.
    pub(crate) fn ensure(&self, paths: &Paths, fingerprint: &str, command: &Command) -> Result<bool> {
        match self.running() {
            Some(record) if record.fingerprint == fingerprint => return Ok(false),
            Some(_) => self.stop(Signal::Term)?,
            None => {}
        }
        let folder = records(paths);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let log = command::open_log(&self.log)?;
        let copy = log.try_clone().context("duplicate the log's descriptor")?;
        // A session of its own: neither Ctrl-C nor a closed terminal reaches it.
        let mut launch = Command::new("setsid");
        launch
            .arg(paths.script("launch.sh"))
            .arg(&self.record)
            .arg(fingerprint)
            .arg(command.get_program())
            .args(command.get_args())
            .env(MARKER, paths.state())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => launch.env(name, value),
                None => launch.env_remove(name),
            };
        }
        let child = launch.spawn().with_context(|| format!("start {}", self.name))?;
        command::wait_for(&format!("start of {}", self.name), Duration::from_secs(10), || {
            let record = fs::read_to_string(&self.record).ok().and_then(|text| parse_record(&text));
            Ok(record.filter(|record| record.pid == child.id()))
        })?;
        Ok(true)
    }

    /// Ends it if it runs, and forgets it.
    pub(crate) fn stop(&self, signal: Signal) -> Result<()> {
        if let Some(record) = self.running() {
            end(record.pid, record.start, signal).with_context(|| format!("end {}", self.name))?;
        }
        match fs::remove_file(&self.record) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("delete {}", self.record.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Folder of the records.
fn records(paths: &Paths) -> PathBuf {
    paths.state().join("processes")
}

/// Ends the process that has this id and start time, and waits until it is gone.
pub(crate) fn end(pid: u32, start: u64, signal: Signal) -> Result<()> {
    if signal == Signal::Term {
        send(pid, "TERM");
        if gone_within(pid, start, GRACE) {
            return Ok(());
        }
    }
    if start_time(pid) == Some(start) {
        send(pid, "KILL");
    }
    if gone_within(pid, start, KILL_GRACE) { Ok(()) } else { bail!("process {pid} does not end") }
}

/// Sends a signal. That the process has just gone is no error. The shell's own `kill`: the program may be missing.
fn send(pid: u32, signal: &str) {
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &pid.to_string()]);
    drop(kill.stdout(Stdio::null()).stderr(Stdio::null()).status());
}

fn gone_within(pid: u32, start: u64, limit: Duration) -> bool {
    let begin = Instant::now();
    while start_time(pid) == Some(start) {
        if begin.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Start time of a process in clock ticks since boot; `None` when there is none or it has ended already.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The start time in the content of /proc/PID/stat (field 22); `None` for a zombie.
fn parse_start_time(stat: &str) -> Option<u64> {
    // Field 2 is the program's name in parentheses and may contain anything, parentheses included.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn parse_record(text: &str) -> Option<Record> {
    let mut words = text.split_whitespace();
    let (pid, start, fingerprint) = (words.next()?, words.next()?, words.next()?);
    Some(Record { pid: pid.parse().ok()?, start: start.parse().ok()?, fingerprint: fingerprint.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let stat = |name: &str, state: &str| {
            format!("42 ({name}) {state} 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10")
        };
        assert_eq!(parse_start_time(&stat("etcd", "S")), Some(98765));
        assert_eq!(parse_start_time(&stat("a) b (c", "R")), Some(98765));
    }

    #[test]
    fn a_zombie_is_not_running() {
        assert_eq!(parse_start_time("42 (etcd) Z 1 42 42 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0"), None);
    }

    #[test]
    fn a_record_needs_all_its_parts() {
        let record = Record { pid: 7, start: 99, fingerprint: "abc".to_owned() };
        assert_eq!(parse_record("7 99 abc\n"), Some(record));
        assert_eq!(parse_record("7 99\n"), None);
        assert_eq!(parse_record("x 99 abc\n"), None);
    }

    #[test]
    fn an_own_child_is_recognised_and_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = start_time(child.id()).unwrap();
        end(child.id(), start, Signal::Term).unwrap();
        assert_eq!(start_time(child.id()), None);
        child.wait().unwrap();
    }

    #[test]
    fn a_process_with_another_start_time_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = start_time(child.id()).unwrap();
        end(child.id(), start + 1, Signal::Kill).unwrap();
        assert_eq!(start_time(child.id()), Some(start));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
