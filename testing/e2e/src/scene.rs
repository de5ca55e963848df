//! Where a test plays: a namespace under the `restricted` Pod Security Standard, a menu of its own, a running operator.
//!
//! All of it is gone when the test ends, however it ends. A test that fails leaves in its output what a person would
//! look at first.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use support::wait::Probe;
use support::{Cluster, Kubectl, TestNamespace, eventually};

use crate::audit::{self, AuditLog};
use crate::deployed::Blueprint;
use crate::objects::{Kind, Objects, at, condition_is, text};
use crate::operator::{self, Operator};
use crate::turn::Turn;

/// Label on the menu objects of a scene.
const LABEL: &str = "end-to-end-scene";
/// Name of the client Pod.
pub const CLIENT: &str = "client";
/// The Deployment, as kubectl names it.
const DEPLOYMENT: &str = "deployment/valkey-operator";
/// A Pod without a special image to pull is there within seconds.
const CLIENT_WITHIN: Duration = Duration::from_mins(2);

/// A test's own place.
pub struct Scene {
    /// The cluster under test.
    pub cluster: Cluster,
    /// The operator, running.
    pub operator: Operator,
    /// Objects of the scene's namespace, and cluster-scoped ones.
    pub objects: Objects,
    /// The namespace's name; also the name of the scene's image and config in the menu.
    pub name: String,
    audit: Option<AuditLog>,
    start: Instant,
    _namespace: TestNamespace,
    // Last, so that the next test begins when this one is put away.
    _turn: Turn,
}

impl Scene {
    /// A scene whose namespace starts with `prefix`, with one image and one config of the scene's name in the menu.
    /// Other tests play beside it: it must leave the operator and the machines alone, and may not count on its speed.
    ///
    /// # Errors
    ///
    /// There is no cluster, the operator does not run, or something is refused.
    pub async fn new(prefix: &str) -> Result<Self> {
        Self::in_turn(prefix, Turn::beside_others().await).await
    }

    /// As [`Scene::new`], with no other test beside it: for one that stops the operator, breaks a machine or measures.
    ///
    /// # Errors
    ///
    /// There is no cluster, the operator does not run, or something is refused.
    pub async fn alone(prefix: &str) -> Result<Self> {
        let mut scene = Self::in_turn(prefix, Turn::alone().await).await?;
        scene.operator.make_ours();
        Ok(scene)
    }

    async fn in_turn(prefix: &str, turn: Turn) -> Result<Self> {
        let start = Instant::now();
        let cluster = Cluster::connect().await?;
        let operator = Operator::ready(&cluster).await?;
        let audit = audit::path().map(|path| AuditLog::from_here(&path)).transpose()?;
        let labels = [("pod-security.kubernetes.io/enforce", "restricted")];
        let namespace = TestNamespace::create_labelled(&cluster, &format!("e2e-{prefix}"), &labels).await?;
        let name = namespace.name.clone();
        let objects = Objects::new(cluster.client.clone(), &name);
        let scene =
            Self { cluster, operator, objects, name, audit, start, _namespace: namespace, _turn: turn };
        scene.menu(Kind::IMAGE, &scene.name, image_spec()?).await?;
        scene.menu(Kind::CONFIG, &scene.name, config_spec(&scene.name)).await?;
        Ok(scene)
    }

    /// kubectl as a person.
    pub fn kubectl(&self) -> Kubectl {
        self.cluster.kubectl()
    }

    /// Applies an object of the menu that goes when the scene ends.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn menu(&self, kind: Kind, name: &str, spec: Value) -> Result<()> {
        let body = json!({ "metadata": { "labels": { LABEL: self.name } }, "spec": spec });
        self.objects.apply(kind, name, body).await.map(drop)
    }

    /// What a cluster of this scene is to be; nothing is created yet.
    pub fn blueprint(&self, name: &str, shards: usize, replicas: usize) -> Blueprint<'_> {
        Blueprint::new(self, name, shards, replicas)
    }

    /// A Pod in the cluster network in which `sh`, `valkey-cli` and `getent` are, made at the first call.
    ///
    /// # Errors
    ///
    /// It is refused or does not run in time.
    pub async fn client(&self) -> Result<()> {
        if self.objects.find(Kind::POD, CLIENT).await?.is_none() {
            self.objects.apply(Kind::POD, CLIENT, client_pod()?).await?;
        }
        eventually("the client Pod to be ready", CLIENT_WITHIN, || async {
            let pod = self.objects.get(Kind::POD, CLIENT).await?;
            Ok(Probe::of(condition_is(&pod, "Ready", "True"), at(&pod, "/status").to_string()))
        })
        .await
    }

    /// What a shell script in the client Pod prints, whatever its exit code.
    ///
    /// # Errors
    ///
    /// There is no client Pod and none can be made.
    pub async fn run(&self, script: &str) -> Result<String> {
        self.client().await?;
        let arguments = ["-n", &self.name, "exec", CLIENT, "--", "sh", "-c", script];
        Ok(self.kubectl().run(&arguments).await?.out)
    }

    /// Tells the client Pod which authorities to trust.
    ///
    /// # Errors
    ///
    /// There is no client Pod and none can be made.
    pub async fn trust(&self, authorities: &str) -> Result<()> {
        self.run(&format!("cat > {} <<'END'\n{authorities}END", crate::tls::TRUSTED)).await.map(drop)
    }

    /// Events about the object `name`: type, reason and note.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn events(&self, name: &str) -> Result<Vec<(String, String, String)>> {
        let all = self.objects.list(Kind::EVENT, "").await?;
        let field = |event: &Value, pointer: &str| text(event, pointer).to_owned();
        Ok(all
            .iter()
            .filter(|event| text(event, "/regarding/name") == name)
            .map(|event| (field(event, "/type"), field(event, "/reason"), field(event, "/note")))
            .collect())
    }

    /// The end of a test: on the local Kubernetes, no request of the operator was refused for want of a permission.
    ///
    /// # Errors
    ///
    /// One was; the text says which.
    pub fn finish(mut self) -> Result<()> {
        let Some(audit) = self.audit.as_mut() else { return Ok(()) };
        let refused = audit.read()?.into_iter().filter(audit::Request::is_denied).collect::<Vec<_>>();
        anyhow::ensure!(refused.is_empty(), "the operator lacks permissions: {refused:#?}");
        Ok(())
    }
}

impl Scene {
    /// What a person would look at first.
    fn tell(&self) {
        let name = self.name.as_str();
        for arguments in [
            ["-n", name, "get", "valkeyclusters,valkeynodes,pods", "-o", "wide"],
            ["-n", name, "get", "valkeyclusters", "-o", "jsonpath={.items[*].status}"],
            ["-n", name, "get", "events", "--sort-by", ".metadata.creationTimestamp"],
            ["-n", operator::NAMESPACE, "get", "pods", "-o", "wide"],
        ] {
            crate::say(&format!("\n$ kubectl {}\n{}", arguments.join(" "), self.output(&arguments)));
        }
        for container in operator::CONTAINERS {
            let log =
                self.output(&["-n", operator::NAMESPACE, "logs", DEPLOYMENT, "-c", container, "--tail=2000"]);
            let about: Vec<&str> = log.lines().filter(|line| line.contains(name)).collect();
            crate::say(&format!("\nlog of {container}, the last lines about this namespace:"));
            let last = about.len().saturating_sub(30);
            // The spans only repeat what the fields say.
            for line in about.into_iter().skip(last) {
                crate::say(line.split("},\"target\"").next().unwrap_or(line));
            }
        }
    }

    /// Both outputs of kubectl, without an async runtime.
    fn output(&self, arguments: &[&str]) -> String {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(&self.cluster.kubeconfig).args(arguments);
        match kubectl.output() {
            Ok(said) => {
                String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
            }
            Err(error) => format!("cannot start kubectl: {error}"),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        crate::say(&format!("{} took {:.1?}", self.name, self.start.elapsed()));
        let selector = format!("{LABEL}={}", self.name);
        drop(self.output(&[
            "delete",
            "valkeyimages,valkeyconfigs,valkeyroles",
            "-l",
            &selector,
            "--wait=false",
        ]));
    }
}

/// Repository and tag of the Valkey image: `$VALKEY_OPERATOR_VALKEY_IMAGE_9_1`, else the public one.
///
/// # Errors
///
/// The variable names no tag.
pub fn valkey_image() -> Result<(String, String)> {
    let image = std::env::var("VALKEY_OPERATOR_VALKEY_IMAGE_9_1")
        .unwrap_or_else(|_| "docker.io/valkey/valkey:9.1".to_owned());
    let (repository, tag) = image.rsplit_once(':').with_context(|| format!("{image} has no tag"))?;
    Ok((repository.to_owned(), tag.to_owned()))
}

/// The spec of the scene's `ValkeyImage`.
///
/// # Errors
///
/// The environment names no image.
pub fn image_spec() -> Result<Value> {
    let (repository, tag) = valkey_image()?;
    Ok(json!({ "repository": repository, "tag": tag, "version": "9.1.0" }))
}

/// The spec of the scene's `ValkeyConfig`: small, so that many clusters fit.
pub fn config_spec(image: &str) -> Value {
    json!({ "imageRef": image, "resources": { "cpu": "50m", "memory": "64Mi" } })
}

fn client_pod() -> Result<Value> {
    let (repository, tag) = valkey_image()?;
    Ok(json!({ "spec": {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 999, "runAsGroup": 999, "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": "client",
            "image": format!("{repository}:{tag}"),
            "command": ["sleep", "infinity"],
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
        }],
    } }))
}
