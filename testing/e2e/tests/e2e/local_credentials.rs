//! The passwords of the system users are in their Secret and nowhere else: not in any object, event, log, argument,
//! environment or file of configuration of a running system. The test looks for the very values.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use serde_json::Value;
use test_e2e::objects::{Kind, Objects, Propagation, name, text};
use test_e2e::{Deployed, Scene, operator, processes};

/// A value to look for, plain and as base64 has it.
struct Needle {
    what: String,
    forms: Vec<String>,
}

#[tokio::test]
async fn the_passwords_of_the_system_users_are_in_their_secret_and_nowhere_else() {
    let scene = Scene::new("credentials").await.unwrap();
    let cluster = scene.blueprint("vault", 2, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    // A member more: what a repair writes and logs is looked at too.
    let pods = cluster.list(Kind::POD).await.unwrap();
    scene.objects.delete(Kind::POD, name(&pods[0]), Propagation::Background).await.unwrap();
    cluster.settled(Duration::from_mins(2)).await.unwrap();
    let needles = needles(&scene.objects, "vault-operator-auth").await.unwrap();
    assert_eq!(needles.len(), 2);
    let haystack = haystack(&scene, &cluster).await.unwrap();
    assert!(haystack.len() > 60, "only {} places looked at", haystack.len());
    let found: Vec<String> = haystack
        .iter()
        .flat_map(|(place, content)| {
            let held = needles.iter().filter(|needle| needle.forms.iter().any(|form| content.contains(form)));
            held.map(move |needle| format!("{} in {place}", needle.what))
        })
        .collect();
    test_e2e::say(&format!("{} places looked at", haystack.len()));
    assert!(found.is_empty(), "{found:#?}");
    scene.finish().unwrap();
}

/// The passwords. Their Secret is where they must be, which shows that what is looked for is what is there.
async fn needles(objects: &Objects, secret: &str) -> Result<Vec<Needle>> {
    let secret = objects.get(Kind::SECRET, secret).await?;
    let data = secret.pointer("/data").and_then(Value::as_object).context("a Secret without data")?;
    let mut needles = Vec::new();
    for (key, value) in data.iter().filter(|(key, _)| key.ends_with("-password")) {
        let ByteString(plain) = serde_json::from_value(value.clone())?;
        let plain = String::from_utf8(plain)?;
        anyhow::ensure!(plain.len() == 128, "{key} has {} characters", plain.len());
        // Without its end, which depends on what follows in a longer text.
        let encoded = value.as_str().context("no text")?.trim_end_matches('=');
        let encoded = encoded.chars().take(160).collect();
        needles.push(Needle { what: key.clone(), forms: vec![plain, encoded] });
    }
    Ok(needles)
}

/// Every place to look at, with its content.
async fn haystack(scene: &Scene, cluster: &Deployed<'_>) -> Result<Vec<(String, String)>> {
    let mut places = Vec::new();
    for namespace in [scene.name.as_str(), operator::NAMESPACE] {
        let objects = Objects::new(scene.cluster.client.clone(), namespace);
        for (kind, object) in objects.everything().await? {
            // The one place where they belong.
            if kind != "Secret" {
                places.push((format!("{kind} {namespace}/{}", name(&object)), object.to_string()));
            }
        }
    }
    for container in operator::CONTAINERS {
        places.push((format!("log of {container}"), scene.operator.log(container, 100_000).await?));
    }
    let pods = [scene.operator.pods().await?, cluster.list(Kind::POD).await?].concat();
    for pod in &pods {
        for process in processes::of_pod(text(pod, "/metadata/uid"))? {
            for file in ["cmdline", "environ"] {
                let path = format!("/proc/{}/{file}", process.pid);
                let content = fs::read(&path).with_context(|| format!("read {path}"))?;
                let place = format!("{file} of {} in {}", process.program, name(pod));
                places.push((place, String::from_utf8_lossy(&content).into_owned()));
            }
        }
    }
    for pod in cluster.list(Kind::POD).await? {
        let arguments = ["-n", &scene.name, "logs", name(&pod)];
        places.push((format!("log of {}", name(&pod)), scene.kubectl().run(&arguments).await?.out));
    }
    Ok(places)
}
