//! The operator as its release manifest installs it.
//!
//! Installs it once a process, and has it running with one replica whenever a test starts, whatever the one before
//! left. Never patches what the manifest says but the image and, for a while, the replicas. Only a test that is alone may stop or
//! change it: others count on it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use support::{Cluster, Probe, eventually};
use tokio::sync::OnceCell;

use crate::objects::{Kind, Objects, Propagation, at, condition_is, name, text};

/// Where the manifest puts the operator.
pub const NAMESPACE: &str = "valkey-operator";
/// Name of the Deployment.
pub const DEPLOYMENT: &str = "valkey-operator";
/// The user that the API server sees.
pub const USER: &str = "system:serviceaccount:valkey-operator:valkey-operator";
/// Its containers.
pub const CONTAINERS: [&str; 3] = ["cluster-ctl", "node-ctl", "reconcile-loops"];

const SELECTOR: &str = "app.kubernetes.io/name=valkey-operator";
/// The image that the manifest names.
const MANIFEST_IMAGE: &str = concat!("valkey-operator:", env!("CARGO_PKG_VERSION"));
/// Longest wait for three ready containers: a pull of the image included.
const READY_WITHIN: Duration = Duration::from_mins(3);

/// The installed operator.
#[derive(Clone)]
pub struct Operator {
    cluster: Cluster,
    /// The operator's namespace.
    pub objects: Objects,
    /// Nobody else counts on it.
    is_ours: bool,
}

impl Operator {
    /// Installs the operator with the image `$VALKEY_OPERATOR_IMAGE` if this process has not, and waits until its one
    /// Pod is ready.
    ///
    /// # Errors
    ///
    /// The variable is unset, something is refused, or the Pod does not become ready in time.
    pub async fn ready(cluster: &Cluster) -> Result<Self> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let objects = Objects::new(cluster.client.clone(), NAMESPACE);
        let operator = Self { cluster: cluster.clone(), objects, is_ours: false };
        INSTALLED.get_or_try_init(|| operator.install()).await?;
        operator.set_replicas(1).await?;
        operator.await_ready().await?;
        Ok(operator)
    }

    /// From now on it is for a test that is alone.
    pub fn make_ours(&mut self) {
        self.is_ours = true;
    }

    fn require_ours(&self) -> Result<()> {
        ensure!(self.is_ours, "other tests count on the operator: only a scene that is alone may touch it");
        Ok(())
    }

    async fn install(&self) -> Result<()> {
        self.kubectl_apply(&read(&deploy().join("crds.yaml"))?).await?;
        self.apply_with_image(&read(&deploy().join("operator.yaml"))?).await
    }

    /// Applies the install manifest, and does not wait.
    ///
    /// # Errors
    ///
    /// It cannot be read or is refused, or others count on the operator.
    pub async fn apply_release(&self) -> Result<()> {
        self.require_ours()?;
        self.apply_with_image(&read(&deploy().join("operator.yaml"))?).await
    }

    /// Applies the overlay `name` of deploy/overlays, and does not wait.
    ///
    /// # Errors
    ///
    /// It cannot be rendered or is refused, or others count on the operator.
    pub async fn apply_overlay(&self, name: &str) -> Result<()> {
        self.require_ours()?;
        let folder = deploy().join("overlays").join(name);
        let rendered =
            self.cluster.kubectl().run(&["kustomize", &folder.to_string_lossy()]).await?.success()?;
        self.apply_with_image(&rendered).await
    }

    /// Applies the install manifest of another release, `image` for the image that it names, and does not wait. The
    /// CRDs stay those of the newest, as docs/install.md has it.
    ///
    /// # Errors
    ///
    /// It cannot be read or is refused, or others count on the operator.
    pub async fn apply_other_release(&self, deploy: &Path, image: &str) -> Result<()> {
        self.require_ours()?;
        self.kubectl_apply(&read(&deploy.join("operator.yaml"))?.replace(MANIFEST_IMAGE, image)).await
    }

    async fn apply_with_image(&self, manifest: &str) -> Result<()> {
        let image = std::env::var("VALKEY_OPERATOR_IMAGE").context(
            "VALKEY_OPERATOR_IMAGE is unset: run `cargo xtask test e2e`, or name an image that the cluster can pull",
        )?;
        if !manifest.contains(MANIFEST_IMAGE) {
            bail!("the manifest does not name the image {MANIFEST_IMAGE}: run `cargo xtask gen`");
        }
        self.kubectl_apply(&manifest.replace(MANIFEST_IMAGE, &image)).await
    }

    async fn kubectl_apply(&self, manifest: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.cluster.kubectl().run_with(&arguments, manifest).await?.success().map(drop)
    }

    /// Sets the number of replicas and does not wait.
    ///
    /// # Errors
    ///
    /// The API server refuses it, or others count on the operator.
    pub async fn scale(&self, replicas: u32) -> Result<()> {
        self.require_ours()?;
        self.set_replicas(replicas).await
    }

    async fn set_replicas(&self, replicas: u32) -> Result<()> {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.objects.patch(Kind::DEPLOYMENT, DEPLOYMENT, &patch).await
    }

    /// The operator's Pods, terminating ones included.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        self.objects.list(Kind::POD, SELECTOR).await
    }

    /// Waits until the Deployment has as many ready Pods as it asks for, no other Pod exists, and its rollout is done.
    ///
    /// # Errors
    ///
    /// Not so in time.
    pub async fn await_ready(&self) -> Result<()> {
        eventually("the operator's Pods to be exactly those that are ready", READY_WITHIN, || async {
            let deployment = self.objects.get(Kind::DEPLOYMENT, DEPLOYMENT).await?;
            let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            let pods = self.pods().await?;
            let wanted = number("/spec/replicas");
            let done = number("/status/observedGeneration") == number("/metadata/generation")
                && number("/status/updatedReplicas") == wanted
                && number("/status/availableReplicas") == wanted
                && pods.len() == usize::try_from(wanted).unwrap_or(usize::MAX)
                && pods.iter().all(|pod| condition_is(pod, "Ready", "True"));
            Ok(Probe::of(done, format!("status {}, {} Pods", at(&deployment, "/status"), pods.len())))
        })
        .await
    }

    /// Ends every Pod of the operator without any grace: the Deployment makes new ones.
    ///
    /// # Errors
    ///
    /// The API server refuses it, or others count on the operator.
    pub async fn kill(&self) -> Result<()> {
        self.require_ours()?;
        for pod in self.pods().await? {
            self.objects.delete_at_once(Kind::POD, name(&pod)).await?;
        }
        Ok(())
    }

    /// Tells every Pod of the operator to stop, as the end of a machine does: the Deployment makes new ones.
    ///
    /// # Errors
    ///
    /// The API server refuses it, or others count on the operator.
    pub async fn stop(&self) -> Result<()> {
        self.require_ours()?;
        for pod in self.pods().await? {
            self.objects.delete(Kind::POD, name(&pod), Propagation::Background).await?;
        }
        Ok(())
    }

    /// The last `lines` lines of a container's log.
    ///
    /// # Errors
    ///
    /// kubectl cannot be run.
    pub async fn log(&self, container: &str, lines: u32) -> Result<String> {
        let tail = format!("--tail={lines}");
        let arguments = ["-n", NAMESPACE, "logs", "deployment/valkey-operator", "-c", container, &tail];
        Ok(self.cluster.kubectl().run(&arguments).await?.out)
    }

    /// How often each container was started again, by Pod and container.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn restarts(&self) -> Result<Vec<(String, u64)>> {
        let mut restarts = Vec::new();
        for pod in self.pods().await? {
            for status in
                pod.pointer("/status/containerStatuses").and_then(Value::as_array).into_iter().flatten()
            {
                let count = status.pointer("/restartCount").and_then(Value::as_u64).unwrap_or(0);
                restarts.push((format!("{}/{}", name(&pod), text(status, "/name")), count));
            }
        }
        Ok(restarts)
    }
}

/// Folder of the manifests.
fn deploy() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}
