//! TLS in tests: Secrets as people write them, clients that verify, and what a member really serves.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::ByteString;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use shared::names;
use shared::secret::Redacted;
use shared::valkey::{Connection, Credentials, Endpoint, Limits, TlsTarget, certificate, connect};
use support::{Issued, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_rustls::TlsConnector;

use crate::deployed::Deployed;
use crate::objects::{Kind, Propagation, at};
use crate::scene::Scene;

/// Where the client Pod keeps the authorities that it trusts.
pub const TRUSTED: &str = "/dev/shm/ca.crt";
/// Longest wait for kubectl to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// The names that a certificate of `cluster` in `namespace` has to cover.
pub fn request(cluster: &str, namespace: &str) -> Request {
    let host = names::service_host(cluster, namespace);
    Request::new([host.clone(), format!("*.{host}")])
}

/// A TLS Secret as a person keeps it.
pub struct TlsSecret<'a> {
    scene: &'a Scene,
    /// Its name.
    pub name: String,
}

impl<'a> TlsSecret<'a> {
    /// A Secret that need not exist yet.
    pub fn new(scene: &'a Scene, name: &str) -> Self {
        Self { scene, name: name.to_owned() }
    }

    /// Makes it hold exactly these keys.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn put(&self, parts: &[(&str, &str)]) -> Result<()> {
        let data: BTreeMap<&str, ByteString> =
            parts.iter().map(|(key, value)| (*key, ByteString(value.as_bytes().to_vec()))).collect();
        let body = json!({ "type": "Opaque", "data": data });
        self.scene.objects.apply(Kind::SECRET, &self.name, body).await.map(drop)
    }

    /// Makes it hold a certificate and the authorities to trust.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn hold(&self, issued: &Issued, authorities: &str) -> Result<()> {
        self.put(&[("tls.crt", &issued.certificate), ("tls.key", &issued.key), ("ca.crt", authorities)]).await
    }

    /// Deletes it.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn delete(&self) -> Result<()> {
        self.scene.objects.delete(Kind::SECRET, &self.name, Propagation::Background).await
    }
}

/// A member within reach of this process, by kubectl.
pub struct Forward {
    port: u16,
    _kubectl: Child,
}

impl Forward {
    /// Forwards a local port to the client port of `pod`.
    ///
    /// # Errors
    ///
    /// kubectl does not listen in time.
    pub async fn to(scene: &Scene, pod: &str) -> Result<Self> {
        Self::to_port(scene, pod, names::CLIENT_PORT).await
    }

    /// Forwards a local port to another port of `pod`.
    ///
    /// # Errors
    ///
    /// kubectl does not listen in time.
    pub async fn to_port(scene: &Scene, pod: &str, port: u16) -> Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&scene.cluster.kubeconfig)
            .args(["-n", &scene.name, "port-forward", &format!("pod/{pod}"), &format!(":{port}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start kubectl")?;
        let out = kubectl.stdout.take().context("kubectl has no output")?;
        let mut lines = BufReader::new(out).lines();
        let listening = async {
            while let Some(line) = lines.next_line().await? {
                let port =
                    line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
                if let Some(port) = port {
                    return Ok(port.parse()?);
                }
            }
            bail!("kubectl port-forward to {pod} ended")
        };
        let port =
            tokio::time::timeout(LISTENS_WITHIN, listening).await.context("kubectl does not listen")??;
        // What kubectl says later is read too: a full pipe would stop it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { port, _kubectl: kubectl })
    }

    /// Connects as the operator, verifying for `host` by `authorities` alone.
    ///
    /// # Errors
    ///
    /// The certificate does not prove it, or the login is refused.
    pub async fn connect(&self, host: &str, authorities: &str, login: &Credentials) -> Result<Connection> {
        let target = TlsTarget { server_name: host.to_owned(), ca_pem: authorities.to_owned() };
        let endpoint = Endpoint { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: self.port, tls: Some(target) };
        let limits = Limits { connect: Duration::from_secs(5), response: Duration::from_secs(5) };
        Ok(connect(&endpoint, login, &limits).await?)
    }
}

/// Whether a member takes `peer` for one of its own at the port of the cluster bus, which asks for a certificate. A server
/// says no only after the handshake: silence is a yes.
async fn takes_for_a_member(port: u16, host: &str, authorities: &str, peer: &Issued) -> Result<bool> {
    let authorities = shared::tls::Authorities::from_pem(authorities.as_bytes())?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(peer.certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(peer.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(authorities))
        .with_client_auth_cert(chain, key)?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let name = ServerName::try_from(host.to_owned())?;
    let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await else {
        return Ok(false);
    };
    let mut byte = [0; 1];
    Ok(tokio::time::timeout(Duration::from_secs(1), stream.read(&mut byte)).await.is_err())
}

impl Deployed<'_> {
    /// The members that take `peer` for one of their own on the cluster bus. Each is verified by `authorities`.
    ///
    /// # Errors
    ///
    /// A member cannot be reached.
    pub async fn that_trust(&self, authorities: &str, peer: &Issued) -> Result<usize> {
        let mut trusting = 0;
        for pod in self.addresses().await?.into_keys() {
            let forward = Forward::to_port(self.scene, &pod, names::BUS_PORT).await?;
            let host = self.host_of(&pod);
            trusting += usize::from(takes_for_a_member(forward.port, &host, authorities, peer).await?);
        }
        Ok(trusting)
    }

    /// The login of the operator's user, from the auth Secret.
    ///
    /// # Errors
    ///
    /// There is none.
    pub async fn operator_login(&self) -> Result<Credentials> {
        let secret = self.scene.objects.get(Kind::SECRET, &names::auth_secret(&self.name)).await?;
        let value = at(&secret, &format!("/data/{}", names::KEY_OPERATOR_PASSWORD)).clone();
        let ByteString(bytes) = serde_json::from_value(value).context("no password")?;
        let password = Redacted::new(String::from_utf8(bytes)?);
        Ok(Credentials { user: names::USER_OPERATOR.to_owned(), password })
    }

    /// The name that a member's certificate has to cover.
    pub fn host_of(&self, pod: &str) -> String {
        names::pod_host(pod, &self.name, &self.scene.name)
    }

    /// SHA-256 of the certificate that each member serves, each connection verified for the member's name.
    ///
    /// # Errors
    ///
    /// A member cannot be reached, or does not prove its name by `authorities`.
    pub async fn served(&self, authorities: &str) -> Result<BTreeMap<String, String>> {
        let login = self.operator_login().await?;
        let mut served = BTreeMap::new();
        for pod in self.addresses().await?.into_keys() {
            let forward = Forward::to(self.scene, &pod).await?;
            let connection = forward.connect(&self.host_of(&pod), authorities, &login).await;
            let connection = connection.with_context(|| format!("connect to {pod}"))?;
            let leaf = connection.served_certificate().context("served none")?;
            served.insert(pod, certificate::fingerprint(leaf));
        }
        Ok(served)
    }

    /// UIDs and restarts of its Pods: the same before and after means that nothing was restarted or replaced.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn lives(&self) -> Result<BTreeMap<String, (String, u64)>> {
        let pods = self.list(Kind::POD).await?;
        Ok(pods
            .iter()
            .map(|pod| {
                let restarts = at(pod, "/status/containerStatuses/0/restartCount").as_u64().unwrap_or(0);
                let uid = at(pod, "/metadata/uid").as_str().unwrap_or_default().to_owned();
                (crate::objects::name(pod).to_owned(), (uid, restarts))
            })
            .collect())
    }
}

/// The fingerprint of a certificate in PEM form.
///
/// # Errors
///
/// It is none.
pub fn fingerprint(issued: &Issued) -> Result<String> {
    Ok(certificate::fingerprint(&certificate::leaf(&issued.certificate)?))
}

/// The replies in what valkey-cli printed, without its remarks on redirections that it follows.
pub fn replies_in(said: &str) -> Vec<&str> {
    said.lines().filter(|line| !line.is_empty() && !line.starts_with("-> Redirected to slot ")).collect()
}

/// A client that writes numbered values all the time, in the client Pod: an aware one that follows redirections, over
/// TLS if it trusts somebody.
pub struct Load<'a> {
    scene: &'a Scene,
}

impl<'a> Load<'a> {
    /// Starts it against `host` with `valkey-cli` and these options, and waits until it has been sent to several shards.
    ///
    /// # Errors
    ///
    /// There is no client Pod, or nothing was written in half a minute.
    pub async fn start(scene: &'a Scene, host: &str, options: &str) -> Result<Self> {
        let script = format!(
            "rm -f /dev/shm/load.*; \
             (i=0; while [ ! -e /dev/shm/load.stop ]; do i=$((i+1)); echo \"SET load:$i $i\"; \
             echo $i > /dev/shm/load.sent; sleep 0.02; done) \
             | valkey-cli -c -h {host} {options} > /dev/shm/load.out 2>&1; touch /dev/shm/load.done"
        );
        scene
            .run(&format!("nohup sh -c '{}' > /dev/null 2>&1 < /dev/null &", script.replace('\'', "'\\''")))
            .await?;
        let script = "for i in $(seq 300); do [ \"$(grep -c '^OK$' /dev/shm/load.out)\" -ge 20 ] && exit 0; sleep 0.1; done; \
             cat /dev/shm/load.out; exit 1";
        scene.run(script).await.context("the load does not come to write")?;
        Ok(Self { scene })
    }

    /// Ends it once it has sent more than `least` values: how many were sent, and all that came back that is not OK.
    ///
    /// # Errors
    ///
    /// It sent fewer in half a minute, did not end, or a count does not add up.
    pub async fn end(self, least: u64) -> Result<(u64, Vec<String>)> {
        let wait = format!(
            "for i in $(seq 300); do [ \"$(cat /dev/shm/load.sent)\" -gt {least} ] && break; sleep 0.1; done; \
             touch /dev/shm/load.stop; for i in $(seq 100); do [ -e /dev/shm/load.done ] && break; sleep 0.1; done"
        );
        let said = self.scene.run(&format!("{wait}; cat /dev/shm/load.sent; cat /dev/shm/load.out")).await?;
        let (sent, replies) = said.split_once('\n').context("no output")?;
        let sent: u64 = sent.trim().parse().with_context(|| said.clone())?;
        let replies = replies_in(replies);
        let good = replies.iter().filter(|line| **line == "OK").count();
        let other: Vec<String> =
            replies.iter().filter(|line| **line != "OK").map(|line| (*line).to_owned()).collect();
        anyhow::ensure!(sent > least, "only {sent} writes");
        if other.is_empty() && u64::try_from(good)? != sent {
            bail!("{good} replies to {sent} writes");
        }
        Ok((sent, other))
    }
}

/// The spec of a TLS cluster, to be merged.
pub fn spec(secret: &str) -> Value {
    json!({ "tls": { "secretRef": secret } })
}
