//! kubectl as a person uses it: arguments, standard input, and both outputs.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// kubectl with a fixed kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    kubeconfig: PathBuf,
}

/// What kubectl said.
#[derive(Clone, Debug)]
pub struct Said {
    /// Whether it exited with 0.
    pub ok: bool,
    /// Standard output.
    pub out: String,
    /// Standard error: errors, and the server's warnings.
    pub err: String,
}

impl Said {
    /// The lines with which the API server warned.
    pub fn warnings(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("Warning:")).collect()
    }

    /// Standard output of a success.
    ///
    /// # Errors
    ///
    /// It failed; the text is what it said.
    pub fn success(self) -> Result<String> {
        if self.ok {
            return Ok(self.out);
        }
        bail!("kubectl failed: {}{}", self.out, self.err)
    }
}

impl Kubectl {
    /// kubectl with `kubeconfig`.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned() }
    }

    /// Runs kubectl with `arguments`.
    ///
    /// # Errors
    ///
    /// It cannot be started. Its own failure is in [`Said::ok`].
    pub async fn run(&self, arguments: &[&str]) -> Result<Said> {
        self.run_with(arguments, "").await
    }

    /// Runs kubectl with `arguments` and `input` on standard input, for `-f -`.
    ///
    /// # Errors
    ///
    /// It cannot be started. Its own failure is in [`Said::ok`].
    pub async fn run_with(&self, arguments: &[&str], input: &str) -> Result<Said> {
        let mut child = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start kubectl: is it installed?")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await.context("kubectl closed its standard input")?;
        }
        let output = child.wait_with_output().await.context("kubectl did not finish")?;
        Ok(Said {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
