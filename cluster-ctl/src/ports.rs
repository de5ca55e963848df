//! What the cluster loop needs of Kubernetes and of Valkey, in its own words. A simulation can stand behind them.
//!
//! The real ones are in `kube_api` and `valkey_api`. A port does what it is told and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::api::{
    Lifecycle, ValkeyCluster, ValkeyClusterStatus, ValkeyConfigSpec, ValkeyImageSpec, ValkeyNode,
    ValkeyNodeStatus, ValkeyRoleSpec,
};
use shared::events::Notice;
use shared::secret::{RandomError, Redacted};
use shared::slots::SlotRange;
use shared::tls::Material;
use shared::valkey::client::Credentials;
use shared::valkey::commands::FailoverKind;
use shared::valkey::error::ValkeyError;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId};

use crate::model::Millis;

/// A `ValkeyCluster` by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The menu: every object that a config can resolve to.
#[derive(Clone, Debug, Default)]
pub struct Menu {
    /// `ValkeyConfig`s by name.
    pub configs: BTreeMap<String, ValkeyConfigSpec>,
    /// `ValkeyImage`s by name.
    pub images: BTreeMap<String, ValkeyImageSpec>,
    /// `ValkeyRole`s by name.
    pub roles: BTreeMap<String, ValkeyRoleSpec>,
}

/// A Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its zone, where labelled.
    pub zone: Option<String>,
    /// Since when its condition Ready has been True, by the clock of the control plane; `None` while it is not.
    pub ready_since: Option<Millis>,
    /// It carries the taint `node.kubernetes.io/out-of-service`: a person says that it does not run anything.
    pub out_of_service: bool,
}

/// The Kubernetes half of an observation. May be behind: every write carries a precondition.
#[derive(Clone, Debug)]
pub struct World {
    /// The cluster.
    pub cluster: Arc<ValkeyCluster>,
    /// Its nodes, by controller owner UID.
    pub nodes: Vec<Arc<ValkeyNode>>,
    /// Pods with the cluster's labels in its namespace, by name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// UIDs of the Pods that the `EndpointSlice`s of its Service show as ready: DNS answers for them.
    pub published: BTreeSet<String>,
    /// The object named like its Service, whoever owns it.
    pub service: Option<Arc<Service>>,
    /// The object named like its auth Secret, whoever owns it.
    pub auth: Option<Arc<Secret>>,
    /// The object named like its ACL ConfigMap, whoever owns it.
    pub acl: Option<Arc<ConfigMap>>,
    /// What the TLS Secret that the spec names holds, read live; `None` without TLS.
    pub tls: Option<Arc<Material>>,
    /// The Kubernetes nodes by name.
    pub machines: BTreeMap<String, Machine>,
    /// The menu.
    pub menu: Arc<Menu>,
}

/// Why a call to the Kubernetes API failed.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// Somebody else wrote first, or the precondition does not hold.
    #[error("{what}: the object has changed")]
    Conflict {
        /// What was tried.
        what: &'static str,
    },
    /// The object is not there.
    #[error("{what}: not found")]
    NotFound {
        /// What was tried.
        what: &'static str,
    },
    /// An object of that name is there already.
    #[error("{what}: exists already")]
    Exists {
        /// What was tried.
        what: &'static str,
    },
    /// The namespace is being deleted: nothing can be made in it, and all that is in it goes.
    #[error("{what}: the namespace is being deleted")]
    NamespaceEnding {
        /// What was tried.
        what: &'static str,
    },
    /// The API server refused, or did not answer.
    #[error("{what}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Where a cluster-level object stands.
#[derive(Clone, Debug)]
pub enum ClusterObject {
    /// The headless Service.
    Service(Box<Service>),
    /// The auth Secret.
    Secret(Box<Secret>),
    /// The ACL ConfigMap.
    ConfigMap(Box<ConfigMap>),
}

impl ClusterObject {
    /// Its metadata and its kind.
    pub fn meta(&self) -> (&ObjectMeta, &'static str) {
        match self {
            Self::Service(service) => (&service.metadata, "a Service"),
            Self::Secret(secret) => (&secret.metadata, "a Secret"),
            Self::ConfigMap(map) => (&map.metadata, "a ConfigMap"),
        }
    }
}

/// Changes of a live Pod's metadata and readiness gate; `None` leaves it alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUpkeep {
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
    /// The readiness gate.
    pub joined: Option<bool>,
}

/// Kubernetes, as the cluster loop uses it.
pub trait Kube: Send + Sync {
    /// The cluster and all that belongs to it; `None` when it is not there.
    fn world(&self, cluster: &ClusterKey) -> impl Future<Output = Result<Option<World>, KubeError>> + Send;
    /// The object named like a cluster-level object of ours, read live: a cache that selects by label does not show
    /// an object of somebody else.
    fn live_object(
        &self,
        cluster: &ClusterKey,
        like: &ClusterObject,
    ) -> impl Future<Output = Result<Option<ClusterObject>, KubeError>> + Send;
    /// Every `ValkeyNode` whose controller is `cluster`, read live.
    fn live_nodes(
        &self,
        cluster: &ValkeyCluster,
    ) -> impl Future<Output = Result<Vec<ValkeyNode>, KubeError>> + Send;
    /// A Pod, read live.
    fn live_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Pod>, KubeError>> + Send;
    /// Applies the whole of our part of the status, under the resourceVersion of `cluster`.
    fn save_status(
        &self,
        cluster: &ValkeyCluster,
        status: &ValkeyClusterStatus,
    ) -> impl Future<Output = Result<ValkeyCluster, KubeError>> + Send;
    /// Adds or removes the cleanup finalizer of the cluster of this UID, and returns the cluster as it is then.
    fn set_cluster_finalizer(
        &self,
        cluster: &ValkeyCluster,
        present: bool,
    ) -> impl Future<Output = Result<ValkeyCluster, KubeError>> + Send;
    /// Removes the in-use finalizer of the auth Secret, under its resourceVersion.
    fn release_secret(&self, secret: &Secret) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Replaces data and annotations of the auth Secret by those of `secret`, under its resourceVersion.
    fn replace_secret(&self, secret: &Secret) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Creates a `ValkeyNode`.
    fn create_node(&self, node: &ValkeyNode) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Moves the lifecycle of the node of this UID; with `clear_join_type` its join type goes in the same write.
    fn set_lifecycle(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        to: Lifecycle,
        clear_join_type: bool,
    ) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Deletes the node of this UID; one that is gone already is success.
    fn delete_node(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Deletes the Pod of this UID with its own grace period; one that is gone already is success.
    fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Applies our part of a node's status, under its resourceVersion.
    fn save_node_status(
        &self,
        node: &ValkeyNode,
        status: &ValkeyNodeStatus,
    ) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Creates a cluster-level object.
    fn create_object(&self, object: &ClusterObject) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Applies a cluster-level object that is ours.
    fn apply_object(&self, object: &ClusterObject) -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Keeps a live Pod of this UID right.
    fn upkeep_pod(&self, pod: &Pod, change: &PodUpkeep)
    -> impl Future<Output = Result<(), KubeError>> + Send;
    /// Tells people of the cluster once per change.
    fn notify(&self, cluster: &ValkeyCluster, notice: &Notice) -> impl Future<Output = ()> + Send;
}

/// Which server to talk to.
#[derive(Clone, Debug)]
pub struct Server {
    /// UID of its Pod; keys the connection.
    pub pod_uid: String,
    /// Name of its Pod, for messages and certificates.
    pub pod: String,
    /// IP of its Pod.
    pub ip: IpAddr,
    /// TLS authorities, and the name that its certificate must cover; `None` for plaintext.
    pub tls: Option<ServerTls>,
    /// Whom to log in as.
    pub credentials: Arc<Credentials>,
}

/// What a server's certificate has to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Name to be covered.
    pub name: String,
    /// Accepted authorities, PEM.
    pub ca_pem: Arc<str>,
}

/// One mutating command to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `CLUSTER SET-CONFIG-EPOCH`.
    SetConfigEpoch(Epoch),
    /// `CLUSTER ADDSLOTSRANGE`.
    AddSlots(Vec<SlotRange>),
    /// `CLUSTER MEET`.
    Meet(IpAddr),
    /// `CLUSTER REPLICATE`.
    Replicate(NodeId),
    /// `CLUSTER FORGET`; an unknown ID is success.
    Forget(NodeId),
    /// `CLUSTER FAILOVER`.
    Failover(FailoverKind),
    /// `CLUSTER RESET HARD`.
    Reset,
    /// `CLUSTER MIGRATESLOTS` of these ranges to this primary.
    MigrateSlots(Vec<SlotRange>, NodeId),
}

/// Time and chance, passed in so that a simulation can own them.
pub trait Host: Send + Sync {
    /// The operator's clock.
    fn now(&self) -> Millis;
    /// Time since some fixed moment of this process, which no setting of a clock moves.
    fn uptime(&self) -> Duration;
    /// `digits` random hexadecimal digits from a source fit for passwords.
    fn random_hex(&self, digits: usize) -> Result<String, RandomError>;
}

/// Why a command was not carried out, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The precondition did not hold on the connection that would have carried the command; nothing was sent.
    #[error("precondition: {0}")]
    Precondition(String),
    /// The call failed. [`ValkeyError::outcome_unknown`] tells whether the command may have taken effect.
    #[error(transparent)]
    Valkey(#[from] ValkeyError),
}

/// A precondition, judged on what the server says just before the command on the same connection.
pub type Check<'a> = dyn Fn(&NodeReport) -> Result<(), String> + Send + Sync + 'a;

/// Valkey, as the cluster loop uses it.
pub trait Valkey: Send + Sync {
    /// Everything that a tick needs to know of a server.
    fn report(&self, server: &Server) -> impl Future<Output = Result<NodeReport, ValkeyError>> + Send;
    /// Whether the server runs exactly this revision of users.acl, proved by a new login.
    fn proves(
        &self,
        server: &Server,
        revision: &str,
    ) -> impl Future<Output = Result<bool, ValkeyError>> + Send;
    /// Tells the server with which password to log in at its primary from now on. A link that is up stays.
    fn set_replication_password(
        &self,
        server: &Server,
        password: &Redacted<String>,
    ) -> impl Future<Output = Result<(), ValkeyError>> + Send;
    /// Reads the server's report, judges `check` on it, and only then sends `command`, all on one connection.
    fn send(
        &self,
        server: &Server,
        check: &Check<'_>,
        command: &Command,
    ) -> impl Future<Output = Result<(), SendError>> + Send;
}
