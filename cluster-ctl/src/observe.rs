//! Reads the world into plain data: Kubernetes objects as the caches show them, and what each server says.
//!
//! Asks every node with a Pod IP once, concurrently and bounded; a silent node is an observation, not an error.
//! Decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use shared::api::{JoinType, ValkeyNode};
use shared::names;
use shared::valkey::client::Credentials;
use shared::valkey::error::ValkeyError;
use shared::valkey::types::NodeId;
use shared::valkey::view::Sharing;

use crate::model::{
    Answer, Cluster, Container, Ending, Member, Millis, Objects, Observed, Pod, PodRecord, Shape,
};
use crate::ports::{Kube, KubeError, Server, ServerTls, Valkey, World};

/// Time past the end of its grace period after which a Pod's deletion counts as stuck, milliseconds.
const OVERDUE_MILLIS: i64 = 5_000;

/// How to reach the servers of a cluster.
#[derive(Clone, Debug)]
pub struct Access {
    /// Whom to log in as.
    pub credentials: Arc<Credentials>,
    /// Accepted authorities, PEM; `None` for plaintext.
    pub ca_pem: Option<Arc<str>>,
    /// Servers asked at once.
    pub fan_out: usize,
}

impl Access {
    /// The server in `pod` of cluster `cluster`; `None` while it has no IP.
    pub fn server(&self, pod: &Pod, name: &str, cluster: &Cluster) -> Option<Server> {
        let tls = self.ca_pem.as_ref().map(|ca_pem| ServerTls {
            name: names::pod_host(name, &cluster.name, &cluster.namespace),
            ca_pem: Arc::clone(ca_pem),
        });
        Some(Server {
            pod_uid: pod.uid.clone(),
            pod: name.to_owned(),
            ip: pod.ip?,
            tls,
            credentials: Arc::clone(&self.credentials),
        })
    }
}

/// Observes the cluster. `access` is `None` while there is no auth Secret: then nobody is asked.
pub async fn observe<K: Kube, V: Valkey>(
    kube: &K,
    valkey: &V,
    world: &World,
    objects: Objects,
    access: Option<&Access>,
    now: Millis,
) -> Result<Observed, KubeError> {
    let cluster = read_cluster(world);
    let mut members = BTreeMap::new();
    for node in &world.nodes {
        let mut member = read_member(node, world, now);
        if member.pod.is_none()
            && let Some(record) = &member.recorded_pod
        {
            // The cache of Pods may be behind that of nodes: only a live read tells that a recorded Pod is gone.
            let live = kube.live_pod(&cluster.namespace, &member.name).await?;
            let live = live.filter(|pod| pod.metadata.uid.as_deref() == Some(record.uid.as_str()));
            member.pod_vanished = live.is_none();
            member.pod = live.as_ref().and_then(|pod| read_pod(pod, node, world, now));
        }
        members.insert(member.name.clone(), member);
    }
    if let Some(access) = access {
        ask_all(valkey, access, &cluster, &mut members).await;
    }
    Ok(Observed::new(now, cluster, objects, members))
}

/// Asks every server once, `fan_out` at a time. Views that agree are kept once, from the moment when they arrive.
async fn ask_all<V: Valkey>(
    valkey: &V,
    access: &Access,
    cluster: &Cluster,
    members: &mut BTreeMap<String, Member>,
) {
    let servers: Vec<(String, Server)> = members
        .values()
        .filter(|member| member.pod_running())
        .filter_map(|member| {
            let server = access.server(member.pod.as_ref()?, &member.name, cluster)?;
            Some((member.name.clone(), server))
        })
        .collect();
    let mut answers = futures::stream::iter(servers)
        .map(|(name, server)| async move { (name, answer(valkey.report(&server).await)) })
        .buffer_unordered(access.fan_out.max(1));
    let mut sharing = Sharing::default();
    while let Some((name, mut answer)) = answers.next().await {
        if let Answer::Said(report) = &mut answer {
            sharing.share(&mut report.nodes);
        }
        if let Some(member) = members.get_mut(&name) {
            member.answer = answer;
        }
    }
}

fn answer(result: Result<shared::valkey::report::NodeReport, ValkeyError>) -> Answer {
    match result {
        Ok(report) => Answer::Said(Box::new(report)),
        Err(ValkeyError::AuthRejected { .. }) => Answer::AuthRejected,
        Err(error) => Answer::Silent(shared::telemetry::chain(&error)),
    }
}

fn read_cluster(world: &World) -> Cluster {
    let cluster = &world.cluster;
    let snapshot = cluster.status.as_ref().and_then(|status| status.target_spec.as_ref());
    Cluster {
        namespace: cluster.metadata.namespace.clone().unwrap_or_default(),
        name: cluster.metadata.name.clone().unwrap_or_default(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        deleting: cluster.metadata.deletion_timestamp.is_some(),
        finalizer: has_finalizer(&cluster.metadata.finalizers, names::CLUSTER_FINALIZER),
        snapshot: snapshot.map(|spec| shape(spec.shards, spec.replicas_per_shard)),
    }
}

/// Whether the list of finalizers names `finalizer`.
pub fn has_finalizer(finalizers: &Option<Vec<String>>, finalizer: &str) -> bool {
    finalizers.iter().flatten().any(|name| name == finalizer)
}

/// A size from the numbers of a spec, which admission has bounded.
pub fn shape(shards: i32, replicas: i32) -> Shape {
    let bounded = |number: i32| {
        u16::try_from(number.clamp(0, i32::from(shared::slots::SLOT_COUNT))).unwrap_or_default()
    };
    Shape { shards: bounded(shards), replicas: bounded(replicas) }
}

fn read_member(node: &ValkeyNode, world: &World, now: Millis) -> Member {
    let meta = &node.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let status = node.status.as_ref();
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
    let annotation = |key: &str| meta.annotations.as_ref().and_then(|annotations| annotations.get(key));
    Member {
        uid: meta.uid.clone().unwrap_or_default(),
        spec: node.spec.clone(),
        join: label(names::LABEL_JOIN_TYPE).and_then(|kind| kind.parse::<JoinType>().ok()),
        deleting: meta.deletion_timestamp.is_some(),
        created: meta.creation_timestamp.as_ref().map_or(Millis(0), |time| Millis(time.0.as_millisecond())),
        start_attempt: annotation(names::ANNOTATION_START_ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        confirmed_dead: annotation(names::ANNOTATION_CONFIRMED_DEAD).is_some_and(|uid| {
            status.and_then(|status| status.pod.as_ref()).is_some_and(|record| record.uid == *uid)
        }),
        recorded_id: status
            .and_then(|status| status.node_id.as_ref())
            .and_then(|id| id.parse::<NodeId>().ok()),
        recorded_pod: status.and_then(|status| status.pod.as_ref()).map(read_record),
        recorded_slots: status
            .and_then(|status| status.slots)
            .map_or(0, |slots| u16::try_from(slots).unwrap_or(0)),
        machine: machine_of(world.pods.get(&name).map(|pod| &**pod))
            .or_else(|| status.and_then(|status| status.machine.clone())),
        ended_with_machine: false,
        pod: world.pods.get(&name).and_then(|pod| read_pod(pod, node, world, now)),
        pod_vanished: false,
        answer: Answer::NotAsked,
        silent_millis: 0,
        keys_kept_millis: 0,
        name,
    }
}

fn machine_of(pod: Option<&core::Pod>) -> Option<String> {
    pod?.spec.as_ref()?.node_name.clone()
}

fn read_record(record: &shared::api::PodRecord) -> PodRecord {
    let ended = record.terminated_at.as_ref().map(|_| Ending {
        exit_code: record.exit_code.unwrap_or_default(),
        reason: record.reason.clone().unwrap_or_default(),
        message: record.message.clone().unwrap_or_default(),
        at: record.terminated_at.as_ref().map(|time| Millis(time.0.as_millisecond())),
    });
    PodRecord { uid: record.uid.clone(), ended }
}

/// The Pod of `node`, unless it belongs to somebody else.
fn read_pod(pod: &core::Pod, node: &ValkeyNode, world: &World, now: Millis) -> Option<Pod> {
    let owner =
        pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    if node.metadata.uid.as_deref() != Some(owner.uid.as_str()) {
        return None;
    }
    let status = pod.status.as_ref();
    let machine = machine_of(Some(pod));
    let conditions = || status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let unschedulable = conditions()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| condition.message.clone().unwrap_or_default());
    Some(Pod {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        ip: status.and_then(|status| status.pod_ip.as_ref()).and_then(|ip| ip.parse().ok()),
        zone: machine.as_ref().and_then(|machine| world.machines.get(machine)?.zone.clone()),
        machine,
        deleting: pod.metadata.deletion_timestamp.is_some(),
        // The timestamp is the end of the grace period, not the moment of the request.
        overdue: pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .is_some_and(|end| now.0 > end.0.as_millisecond() + OVERDUE_MILLIS),
        container: read_container(status),
        unschedulable,
        joined: conditions()
            .any(|condition| condition.type_ == names::READINESS_GATE && condition.status == "True"),
        published: pod.metadata.uid.as_ref().is_some_and(|uid| world.published.contains(uid)),
        role_label: pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_ROLE).cloned()),
    })
}

/// State of the container `valkey`. One that was restarted has lost its first process: it counts as ended.
fn read_container(status: Option<&core::PodStatus>) -> Container {
    let waiting = |reason: &str, message: &str| Container::Waiting {
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let container = status
        .into_iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .find(|container| container.name == names::CONTAINER);
    let Some(container) = container else { return waiting("", "") };
    let ended = |ended: &core::ContainerStateTerminated| Ending {
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone().unwrap_or_default(),
        at: ended.finished_at.as_ref().map(|time| Millis(time.0.as_millisecond())),
    };
    let state = container.state.as_ref();
    if container.restart_count > 0 {
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref()).map(ended);
        let restarted =
            || Ending { exit_code: -1, reason: "Restarted".to_owned(), message: String::new(), at: None };
        return Container::Ended(last.unwrap_or_else(restarted));
    }
    if let Some(end) = state.and_then(|state| state.terminated.as_ref()) {
        return Container::Ended(ended(end));
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Container::Running;
    }
    let words = state.and_then(|state| state.waiting.as_ref());
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    Container::Waiting {
        reason: text(words.and_then(|words| words.reason.as_ref())),
        message: text(words.and_then(|words| words.message.as_ref())),
    }
}
