//! Users edited while clients work: how long until every member lets the edited user in, and what the others notice.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use serde_json::{Value, json};
use shared::acl::PasswordHash;
use shared::names;
use shared::secret::Redacted;
use shared::valkey::{Credentials, Endpoint, Limits, TlsTarget, connect};
use test_e2e::{Deployed, Kind, Scene};

use super::Setting;
use super::order::Rules;
use super::planned::{LIMIT, options};
use super::stage::{Stage, roomy};
use crate::report::Row;

/// Edits of one kind.
const EDITS: u32 = 12;
/// Every member lets the user in within this, or the scenario ends.
const WITHIN: Duration = Duration::from_mins(2);
/// Between two logins at a member.
const AGAIN: Duration = Duration::from_millis(10);
/// Limits of a login.
const LIMITS: Limits = Limits { connect: Duration::from_secs(1), response: Duration::from_secs(1) };
/// As whom the application logs in.
const APPLICATION: (&str, &str) = ("application", "of-the-application");

/// Users of 3×1 edited, in plaintext.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn users(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    roomy(scene).await?;
    let spec = spec(scene, None).await?;
    let mut cluster = scene.blueprint("users", 3, 1).with(&spec).create().await?;
    cluster.login = Some(login());
    cluster.settled(Duration::from_mins(2)).await?;
    let mut stage = Stage::over(scene, "users", cluster, None, &options(setting)).await?;
    edits(&mut stage, "", None).await?;
    stage.close(Some(&setting.folder)).await
}

/// The login of the application.
pub fn login() -> (String, String) {
    (APPLICATION.0.to_owned(), APPLICATION.1.to_owned())
}

/// The part of a spec with the application's user and, with a password, the edited one; the role is made if need be.
///
/// # Errors
///
/// The API server refuses the role.
pub async fn spec(scene: &Scene, edited: Option<&str>) -> Result<Value> {
    let all = json!({ "categories": [{ "name": "all", "access": "allow" }] });
    scene.menu(Kind::ROLE, &scene.name, all).await?;
    let binding = |user: &str, password: &str| {
        let hash = PasswordHash::of(&Redacted::new(password.to_owned()));
        json!({
            "username": user,
            "passwordHashes": [hash.as_str()],
            "permissions": [{ "roleRef": scene.name, "keys": [{ "pattern": "*" }], "channels": ["*"] }],
        })
    };
    let edited = edited.map(|password| binding("edited", password));
    let bindings: Vec<Value> = [binding(APPLICATION.0, APPLICATION.1)].into_iter().chain(edited).collect();
    Ok(json!({ "acl": bindings }))
}

/// Gives a user another password, again and again, and each time waits until every member takes it.
///
/// # Errors
///
/// A member does not within two minutes.
pub async fn edits(stage: &mut Stage<'_>, how: &str, authorities: Option<&str>) -> Result<()> {
    let rules = Rules { replicas: stage.cluster.replicas, one_shard_of: None };
    let operation = stage.begin(&format!("a user edited {EDITS} times{how}"), rules);
    let mut took = Vec::new();
    for number in 0..EDITS {
        let password = format!("password-{number}");
        let spec = spec(stage.scene, Some(&password)).await?;
        let start = Instant::now();
        stage.cluster.edit(&spec).await?;
        let addresses = stage.cluster.addresses().await?;
        let members = addresses.iter().map(|(pod, ip)| {
            let password = Redacted::new(password.clone());
            let login = Credentials { user: "edited".to_owned(), password };
            lets_in(&stage.cluster, pod, ip, authorities, login)
        });
        for member in join_all(members).await {
            member?;
        }
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let seconds = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64);
    let (median, longest) = (seconds(took.get(took.len() / 2)), seconds(took.last()));
    let note = format!("on all members after {median:.2} s in the median, {longest:.2} s at most");
    stage.end(operation, LIMIT, &note).await.map(drop)
}

/// Waits until a member lets somebody in.
async fn lets_in(
    cluster: &Deployed<'_>,
    pod: &str,
    ip: &str,
    authorities: Option<&str>,
    login: Credentials,
) -> Result<()> {
    let server_name = names::pod_host(pod, &cluster.name, &cluster.scene.name);
    let tls = authorities.map(|pem| TlsTarget { server_name, ca_pem: pem.to_owned() });
    let endpoint = Endpoint { ip: ip.parse()?, port: names::CLIENT_PORT, tls };
    let trying = async {
        while connect(&endpoint, &login, &LIMITS).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    };
    let in_time = tokio::time::timeout(WITHIN, trying).await;
    in_time.with_context(|| format!("{pod} does not let {} in", login.user))
}
