//! One valkey-server process.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use shared::names::CLIENT_PORT;
use shared::valkey::{Connection, Endpoint, EngineVersion, TlsTarget, connect};
use tempfile::TempDir;

use crate::wait::eventually;
use crate::{Issued, LIMITS, REPL_PASSWORD, operator};

/// Which engine to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// 9.1: atomic slot migration.
    V9_1,
    /// 8.1: none.
    V8_1,
}

impl Version {
    /// Both, newest first.
    pub const ALL: [Self; 2] = [Self::V9_1, Self::V8_1];

    /// As the product says it; the patch does not matter to what is rendered.
    pub fn engine(self) -> EngineVersion {
        match self {
            Self::V9_1 => EngineVersion::new(9, 1, 0),
            Self::V8_1 => EngineVersion::new(8, 1, 0),
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::V9_1 => "VALKEY_SERVER_9_1",
            Self::V8_1 => "VALKEY_SERVER_8_1",
        }
    }

    /// Path of the server binary.
    ///
    /// # Errors
    /// The variable is not set, or names nothing that exists.
    pub fn binary(self) -> Result<PathBuf> {
        Self::program(self.variable())
    }

    /// Path of valkey-cli.
    ///
    /// # Errors
    /// The variable is not set, or names nothing that exists.
    pub fn cli(self) -> Result<PathBuf> {
        Self::program(match self {
            Self::V9_1 => "VALKEY_CLI_9_1",
            Self::V8_1 => "VALKEY_CLI_8_1",
        })
    }

    fn program(variable: &str) -> Result<PathBuf> {
        let hint = "run these tests with `cargo xtask test valkey`";
        let path = std::env::var_os(variable).ok_or_else(|| anyhow!("{variable} is not set; {hint}"))?;
        let path = PathBuf::from(path);
        ensure!(path.exists(), "{variable} names {}, which does not exist; {hint}", path.display());
        Ok(path)
    }
}

/// How a server differs from a plain member with an open default user.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Text of users.acl; `None` means no aclfile at all.
    pub acl: Option<String>,
    /// Certificate and authorities; the server then speaks TLS only.
    pub tls: Option<(Issued, String)>,
    /// Announced hostname; with TLS also the name that the operator verifies.
    pub hostname: Option<String>,
    /// Further lines of valkey.conf.
    pub extra: Vec<String>,
    /// Arguments behind the file's name.
    pub arguments: Vec<String>,
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its address.
    pub ip: IpAddr,
    /// Its engine.
    pub version: Version,
    options: Options,
    child: Child,
    directory: TempDir,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A loopback address that nobody listens on, distinct for every call of every test process.
fn free_address() -> Result<IpAddr> {
    let process = std::process::id();
    for _ in 0..1000 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let octet = |value: u32| u8::try_from(value % 250 + 1).unwrap_or(1);
        // A dead server's address stays unused, so that nobody takes another for it.
        let block = process / 250 + 40 + 101 * (number / 250);
        let ip = IpAddr::V4(Ipv4Addr::new(127, octet(block), octet(process), octet(number)));
        if TcpListener::bind((ip, CLIENT_PORT)).is_ok()
            && TcpListener::bind((ip, CLIENT_PORT + 10000)).is_ok()
        {
            return Ok(ip);
        }
    }
    Err(anyhow!("no free loopback address"))
}

impl Server {
    /// Starts a server on an address of its own and waits until it answers.
    pub async fn start(version: Version, options: Options) -> Result<Self> {
        Self::start_at(version, options, free_address()?).await
    }

    /// Starts a server at `ip`, which must be free, and waits until it accepts connections.
    pub async fn start_at(version: Version, options: Options, ip: IpAddr) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("valkey-test-").tempdir()?;
        write_files(directory.path(), &options)?;
        let path = directory.path().join("valkey.conf");
        std::fs::write(&path, configuration(version, directory.path(), ip, &options))?;
        let child = launch(version, directory.path(), &options.arguments)?;
        let mut server = Self { ip, version, options, child, directory };
        server.wait_for_port().await?;
        Ok(server)
    }

    /// The exit status and log of a start that is expected to fail.
    pub async fn start_refused(version: Version, options: Options) -> Result<String> {
        match Self::start(version, options).await {
            Ok(server) => Err(anyhow!("the server at {} started", server.ip)),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    async fn wait_for_port(&mut self) -> Result<()> {
        let log = self.directory.path().join("log");
        let (ip, child) = (self.ip, &mut self.child);
        eventually("server listens", Duration::from_secs(20), || {
            let state = match child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(format!("exited with {status}")),
                Err(error) => Some(error.to_string()),
            };
            async move {
                match (state, tokio::net::TcpStream::connect((ip, CLIENT_PORT)).await) {
                    // A process that is gone will not come: stop polling.
                    (Some(state), _) => Ok(Err(state)),
                    (None, Ok(_)) => Ok(Ok(())),
                    (None, Err(error)) => Err(error.to_string()),
                }
            }
        })
        .await?
        .map_err(|state| anyhow!("{state}: {}", std::fs::read_to_string(&log).unwrap_or_default()))
    }

    /// Where the operator dials it.
    pub fn endpoint(&self) -> Endpoint {
        let tls = self.options.tls.as_ref().map(|(_, ca_pem)| TlsTarget {
            server_name: self.options.hostname.clone().unwrap_or_default(),
            ca_pem: ca_pem.clone(),
        });
        Endpoint { ip: self.ip, port: CLIENT_PORT, tls }
    }

    /// A connection of the operator's user.
    pub async fn operator(&self) -> Result<Connection> {
        connect(&self.endpoint(), &operator(), &LIMITS).await.with_context(|| self.log())
    }

    /// A connection of `user` that can send anything; plaintext only. `None` is the default user.
    pub async fn raw(&self, user: Option<(&str, &str)>) -> Result<redis::aio::MultiplexedConnection> {
        let mut info = redis::RedisConnectionInfo::default();
        if let Some((user, password)) = user {
            info = info.set_username(user).set_password(password);
        }
        let address = redis::ConnectionAddr::Tcp(self.ip.to_string(), CLIENT_PORT);
        let info = redis::IntoConnectionInfo::into_connection_info(address)?.set_redis_settings(info);
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(LIMITS.connect))
            .set_response_timeout(Some(Duration::from_secs(10)));
        Ok(redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Replaces a file in the server's directory, as a mounted volume would be refreshed.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.path().join(name), text)?)
    }

    /// Path of a file in the server's directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Ends the process at once (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops the process without ending it (SIGSTOP); connections stay open and silent.
    pub fn freeze(&self) -> Result<()> {
        self.signal("STOP")
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) -> Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> Result<()> {
        let status =
            Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status()?;
        ensure!(status.success(), "kill -{name}: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended by itself; either way it must be reaped.
        self.child.kill().unwrap_or_default();
        drop(self.child.wait());
    }
}

fn launch(version: Version, directory: &Path, arguments: &[String]) -> Result<Child> {
    let log = std::fs::File::create(directory.join("log"))?;
    let child = Command::new(version.binary()?)
        .arg(directory.join("valkey.conf"))
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    child.with_context(|| format!("start {version:?}"))
}

fn write_files(directory: &Path, options: &Options) -> Result<()> {
    if let Some(acl) = &options.acl {
        std::fs::write(directory.join("users.acl"), acl)?;
    }
    if let Some((issued, ca)) = &options.tls {
        std::fs::write(directory.join("tls.crt"), &issued.certificate)?;
        std::fs::write(directory.join("tls.key"), &issued.key)?;
        std::fs::write(directory.join("ca.crt"), ca)?;
    }
    Ok(())
}

fn configuration(version: Version, directory: &Path, ip: IpAddr, options: &Options) -> String {
    let directory = directory.display();
    let mut text = format!(
        "bind {ip}\nprotected-mode no\ndir {directory}\nlogfile \"\"\ndaemonize no\nsave \"\"\n\
         cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout 5000\n\
         cluster-announce-ip {ip}\ncluster-allow-replica-migration no\ncluster-replica-no-failover no\n\
         repl-diskless-sync-delay 0\n"
    );
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        writeln!(text, "{line}").unwrap_or_default();
    };
    if version == Version::V9_1 {
        line(format_args!("slot-migration-max-failover-repl-bytes 64mb"));
    }
    if options.acl.is_some() {
        line(format_args!("aclfile {directory}/users.acl"));
        line(format_args!("primaryuser {}\nprimaryauth {REPL_PASSWORD}", shared::names::USER_REPL));
    }
    if let Some(hostname) = &options.hostname {
        line(format_args!("cluster-announce-hostname {hostname}"));
    }
    if options.tls.is_some() {
        line(format_args!("port 0\ntls-port {CLIENT_PORT}\ntls-cluster yes\ntls-replication yes"));
        line(format_args!("tls-cert-file {directory}/tls.crt\ntls-key-file {directory}/tls.key"));
        line(format_args!("tls-ca-cert-file {directory}/ca.crt\ntls-auth-clients no"));
        line(format_args!("cluster-preferred-endpoint-type hostname"));
    } else {
        line(format_args!("port {CLIENT_PORT}"));
    }
    for extra in &options.extra {
        line(format_args!("{extra}"));
    }
    text
}
