//! Certificates, authorities and passwords renewed, and work on a cluster that speaks TLS only.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use shared::names;
use test_e2e::objects::{condition, text};
use test_e2e::tls::{self, TlsSecret};
use test_e2e::{Authority, Issued, Kind, Probe, Scene, eventually};

use super::Setting;
use super::order::Rules;
use super::planned::{LIMIT, options};
use super::rolls;
use super::stage::{Stage, config, roomy};
use super::users;
use crate::report::Row;

/// Name of the cluster.
const NAME: &str = "security";
/// From a change of the Secret until every member works by it: the kubelet refreshes its files at once, or in 90 s.
const RENEWS: Duration = Duration::from_mins(2);

/// All of it on 3×1. Clients trust all authorities from the start, as people do before they change one.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn security(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let (old, new) = (Authority::until("first", 2040)?, Authority::until("second", 2050)?);
    let last = Authority::until("third", 2060)?;
    let both = format!("{}{}", old.pem(), new.pem());
    let all = format!("{both}{}", last.pem());
    let request = || tls::request(NAME, &scene.name);
    let secret = TlsSecret::new(scene, "certificate");
    let first = old.sign(&request())?;
    secret.hold(&first, &old.pem()).await?;
    scene.client().await?;
    scene.trust(&all).await?;
    roomy(scene).await?;
    let users = users::spec(scene, None).await?;
    let mut cluster =
        scene.blueprint(NAME, 3, 1).with(&tls::spec(&secret.name)).with(&users).create().await?;
    cluster.login = Some(users::login());
    cluster.settled(Duration::from_mins(2)).await?;
    let mut stage = Stage::over(scene, NAME, cluster, Some(all), &options(setting)).await?;
    serves(&stage, &first, &old.pem()).await?;
    users::edits(&mut stage, ", by TLS", Some(&old.pem())).await?;

    let second = old.sign(&request().serial(2))?;
    renew(&mut stage, "the certificate renewed", &secret, (&second, &old.pem())).await?;
    let operation = stage.begin("a second authority trusted", rules(&stage));
    secret.hold(&second, &both).await?;
    let third = new.sign(&request().serial(3))?;
    trusted_by(&stage, &both, &third, stage.cluster.members()).await?;
    stage.end(operation, LIMIT, "").await?;
    // No server shows that it has read an authority more: that is told when a kubelet must have refreshed the files.
    serves(&stage, &second, &both).await?;
    renew(&mut stage, "a certificate of the second authority", &secret, (&third, &both)).await?;
    let operation = stage.begin("the first authority dropped", rules(&stage));
    secret.hold(&third, &new.pem()).await?;
    trusted_by(&stage, &both, &second, 0).await?;
    stage.end(operation, LIMIT, "").await?;
    serves(&stage, &third, &new.pem()).await?;
    let fourth = last.sign(&request().serial(4))?;
    renew(&mut stage, "certificate and authority replaced at once", &secret, (&fourth, &last.pem())).await?;

    passwords(&mut stage).await?;
    for to in [4, 3] {
        let operation = stage.begin(&format!("shards to {to}, by TLS"), rules(&stage));
        stage.cluster.edit(&json!({ "shards": to })).await?;
        stage.cluster.shards = to;
        stage.end(operation, LIMIT, "").await?;
    }
    let settings = json!({ "valkey": { "hz": "20" } });
    rolls::roll(&mut stage, "a setting of 3×1 changed, by TLS", config(&scene.name, &settings)).await?;
    stage.close(Some(&setting.folder)).await
}

fn rules(stage: &Stage<'_>) -> Rules {
    Rules { replicas: stage.cluster.replicas, one_shard_of: None }
}

/// Puts a certificate into the Secret and waits until every member serves it.
async fn renew(
    stage: &mut Stage<'_>,
    name: &str,
    secret: &TlsSecret<'_>,
    (issued, authorities): (&Issued, &str),
) -> Result<()> {
    let operation = stage.begin(name, rules(stage));
    let lives = stage.cluster.lives().await?;
    secret.hold(issued, authorities).await?;
    serves(stage, issued, authorities).await?;
    if stage.cluster.lives().await? != lives {
        bail!("{name}: a member was restarted or replaced");
    }
    stage.end(operation, LIMIT, "").await.map(drop)
}

/// Waits until the status says that this certificate is served, and that these authorities were read.
async fn serves(stage: &Stage<'_>, issued: &Issued, authorities: &str) -> Result<()> {
    let revision = shared::tls::Authorities::from_pem(authorities.as_bytes())?.revision();
    let wanted = [tls::fingerprint(issued)?, revision];
    let told = |object: &serde_json::Value| {
        condition(object, "TLSReady").is_some_and(|it| {
            let says =
                |hash: &String| hash.get(..12).is_some_and(|short| text(it, "/message").contains(short));
            text(it, "/status") == "True" && wanted.iter().all(says)
        })
    };
    stage.cluster.until("to serve the certificate", RENEWS, told).await.map(drop)
}

/// Waits until `wanted` members take `peer` for one of their own.
async fn trusted_by(stage: &Stage<'_>, authorities: &str, peer: &Issued, wanted: usize) -> Result<()> {
    eventually(&format!("{wanted} members to trust it"), RENEWS, || async {
        let trusting = stage.cluster.that_trust(authorities, peer).await?;
        Ok(Probe::of(trusting == wanted, format!("{trusting} do")))
    })
    .await
}

/// The passwords of both system users, replaced on a person's wish.
async fn passwords(stage: &mut Stage<'_>) -> Result<()> {
    let operation = stage.begin("the system passwords rotated", rules(stage));
    let wish = json!({ "metadata": { "annotations": { names::ANNOTATION_ROTATE_PASSWORDS: "first" } } });
    stage.scene.objects.patch(Kind::CLUSTER, &stage.cluster.name, &wish).await?;
    let done = format!("/metadata/annotations/{}", names::ANNOTATION_ROTATED.replace('/', "~1"));
    let secret = names::auth_secret(&stage.cluster.name);
    eventually("the rotation to be over", RENEWS, || async {
        let object = stage.scene.objects.get(Kind::SECRET, &secret).await?;
        let said = text(&object, &done).to_owned();
        Ok(Probe::of(said == "first", said))
    })
    .await?;
    stage.end(operation, LIMIT, "").await.map(drop)
}
