//! A server started from the file that the operator renders, and nothing else.
//!
//! The file is used as it is, but for what a pod has to itself and a test machine has not: the two directories move
//! below a directory of the server's own, and the port is a free one. Listens on every address, as a pod does, and lets
//! nobody in but [`TESTER`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use redis::aio::MultiplexedConnection;
use shared::conf::{self, Conf, ConfInput};
use shared::names;
use shared::valkey::EngineVersion;
use tempfile::TempDir;

use crate::Issued;
use crate::server::Version;
use crate::{LIMITS, REPL_PASSWORD, wait::eventually};

/// The one user that may log in, with this as its password too.
pub const TESTER: &str = "tester";
/// The announced name of the node.
pub const HOST: &str = "c-3f8a1.c.app.svc.cluster.local";
/// Who connects.
const LOOPBACK: &str = "127.0.0.1";

/// What a node's file is rendered from.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Settings that people wrote.
    pub settings: BTreeMap<String, String>,
    /// Memory limit as a Kubernetes quantity.
    pub memory: Option<String>,
    /// Certificate for `127.0.0.1`, and its authority: then a TLS node.
    pub tls: Option<(Issued, String)>,
    /// The engine to render for, where it is not the one that runs.
    pub declared: Option<EngineVersion>,
}

impl Setup {
    /// A plaintext node with these settings.
    pub fn of<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        Self { settings: settings.into_iter().map(owned).collect(), ..Self::default() }
    }

    /// The file for `version`.
    ///
    /// # Errors
    ///
    /// It cannot be rendered.
    pub fn render(&self, version: Version) -> Result<Conf> {
        Ok(conf::render(&ConfInput {
            settings: &self.settings,
            memory: self.memory.as_deref(),
            tls: self.tls.is_some(),
            version: self.declared.unwrap_or_else(|| version.engine()),
            host: HOST,
        })?)
    }
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Node {
    /// Its client port, in place of 6379.
    pub port: u16,
    authority: Option<String>,
    child: Child,
    directory: TempDir,
}

impl Node {
    /// Renders the file and starts a server with it; returns when the server answers.
    ///
    /// # Errors
    ///
    /// The server ended before it answered: the text is all that it wrote.
    pub async fn start(version: Version, setup: &Setup) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("valkey-node-").tempdir()?;
        let port = free_port()?;
        let text = moved(&setup.render(version)?.text, directory.path(), port)?;
        write_mounts(directory.path(), setup, &text)?;
        let output = File::create(directory.path().join("output"))?;
        let child = Command::new(version.binary()?)
            .arg(directory.path().join("conf/valkey.conf"))
            .args(conf::pod_arguments().map(|argument| argument.replace("$(POD_IP)", LOOPBACK)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {version:?}"))?;
        let authority = setup.tls.as_ref().map(|(_, authority)| authority.clone());
        let mut node = Self { port, authority, child, directory };
        node.wait().await?;
        Ok(node)
    }

    /// Everything that a server wrote which is expected to end at its start, as Kubernetes keeps it.
    ///
    /// # Errors
    ///
    /// The server started.
    pub async fn last_words(version: Version, setup: &Setup) -> Result<String> {
        match Self::start(version, setup).await {
            Ok(node) => bail!("the server started with {:?}: {}", setup.settings, node.output()),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    async fn wait(&mut self) -> Result<()> {
        let (port, authority, child) = (self.port, self.authority.as_deref(), &mut self.child);
        let answered = eventually("the server answers", Duration::from_secs(20), || {
            let ended = child.try_wait().ok().flatten();
            async move {
                match (ended, login(port, authority).await) {
                    // A process that is gone will not come: stop polling.
                    (Some(status), _) => Ok(Err(status)),
                    (None, Ok(_)) => Ok(Ok(())),
                    (None, Err(error)) => Err(format!("{error:#}")),
                }
            }
        })
        .await;
        answered.with_context(|| self.output())?.map_err(|status| anyhow!("{status}: {}", self.output()))
    }

    /// What the server wrote so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    /// Where the files of `/etc/valkey` are.
    pub fn conf_dir(&self) -> String {
        self.directory.path().join("conf").display().to_string()
    }

    /// Where the files of `/var/lib/valkey` are.
    pub fn data_dir(&self) -> String {
        self.directory.path().join("data").display().to_string()
    }

    /// Logs in; over TLS the certificate must be the authority's and for this address.
    ///
    /// # Errors
    ///
    /// The server does not let us in.
    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        login(self.port, self.authority.as_deref()).await
    }

    /// What `CONFIG GET` says of `key`; `None` when the engine does not know it.
    ///
    /// # Errors
    ///
    /// No answer.
    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        config_get(&mut self.connect().await?, key).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended by itself; either way it must be reaped.
        self.child.kill().unwrap_or_default();
        drop(self.child.wait());
    }
}

/// What `CONFIG GET` says of one setting; `None` when the engine does not know it.
///
/// # Errors
///
/// No answer.
pub async fn config_get(connection: &mut MultiplexedConnection, key: &str) -> Result<Option<String>> {
    let said: BTreeMap<String, String> =
        redis::cmd("CONFIG").arg("GET").arg(key).query_async(connection).await?;
    Ok(said.get(key).cloned())
}

async fn login(port: u16, authority: Option<&str>) -> Result<MultiplexedConnection> {
    let user = redis::RedisConnectionInfo::default().set_username(TESTER).set_password(TESTER);
    let with_user = |address| -> Result<redis::ConnectionInfo> {
        Ok(redis::IntoConnectionInfo::into_connection_info(address)?.set_redis_settings(user))
    };
    let host = LOOPBACK.to_owned();
    let client = match authority {
        None => redis::Client::open(with_user(redis::ConnectionAddr::Tcp(host, port))?)?,
        Some(authority) => {
            // Several crates in the tree can provide cryptography; all must agree on one. An error means: already done.
            drop(rustls::crypto::ring::default_provider().install_default());
            let address = redis::ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
            let root_cert = Some(authority.as_bytes().to_vec());
            let tls = redis::TlsCertificates { client_tls: None, root_cert };
            redis::Client::build_with_tls(with_user(address)?, tls)?
        }
    };
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMITS.connect))
        .set_response_timeout(Some(Duration::from_secs(10)));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// The file with the directories and the port of this machine; exactly one line has a port.
fn moved(text: &str, directory: &Path, port: u16) -> Result<String> {
    let text = text
        .replace(conf::CONF_DIR, &directory.join("conf").display().to_string())
        .replace(conf::DATA_DIR, &directory.join("data").display().to_string());
    let fixed = format!("port {}", names::CLIENT_PORT);
    let is_port = |line: &&str| line.strip_prefix("tls-").unwrap_or(line) == fixed;
    ensure!(text.lines().filter(is_port).count() == 1, "not one port in\n{text}");
    Ok(text
        .lines()
        .map(|line| {
            let name = if line.starts_with("tls-") { "tls-port" } else { "port" };
            if is_port(&line) { format!("{name} {port}\n") } else { format!("{line}\n") }
        })
        .collect())
}

/// What a pod has mounted.
fn write_mounts(directory: &Path, setup: &Setup, text: &str) -> Result<()> {
    for name in ["conf/acl", "conf/auth", "conf/tls", "data"] {
        fs::create_dir_all(directory.join(name))?;
    }
    let conf = directory.join("conf");
    fs::write(conf.join(names::KEY_VALKEY_CONF), text)?;
    let users = format!("user default off\nuser {TESTER} on >{TESTER} ~* &* +@all\n");
    fs::write(conf.join("acl").join(names::KEY_USERS_ACL), users)?;
    let auth = format!("primaryauth \"{REPL_PASSWORD}\"\n");
    fs::write(conf.join("auth").join(names::KEY_PRIMARYAUTH_CONF), auth)?;
    if let Some((issued, authority)) = &setup.tls {
        fs::write(conf.join("tls/tls.crt"), &issued.certificate)?;
        fs::write(conf.join("tls/tls.key"), &issued.key)?;
        fs::write(conf.join("tls/ca.crt"), authority)?;
    }
    Ok(())
}

/// A port that is free on every address, as is the cluster bus's, 10000 above it; below those that the kernel gives out.
fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 1900).unwrap_or(0);
    for _ in 0..1900 {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 1900;
        let free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if free(port) && free(port + 10_000) {
            return Ok(port);
        }
    }
    Err(anyhow!("no free port"))
}
