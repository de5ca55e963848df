//! Live pods: readiness gate, role label, annotations. Patched in place, never replaced.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use shared::api::Lifecycle;
use shared::names;
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;

use crate::model::{Member, Observed, sync_state};
use crate::ports::{Kube, KubeError, PodUpkeep, World};

/// What the pods' mounted files should hold; a change of an annotation makes the kubelet refresh them at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Revisions<'a> {
    /// Revision of the published users.acl.
    pub acl: Option<&'a str>,
    /// Revision of the TLS Secret.
    pub tls: Option<&'a str>,
}

/// Writes what differs on the pods of members that are part of the cluster. Returns how many were written.
pub async fn keep<K: Kube>(
    kube: &K,
    world: &World,
    seen: &Observed,
    revisions: Revisions<'_>,
    fan_out: usize,
) -> Result<usize, KubeError> {
    let mut changes = Vec::new();
    for member in seen.staying() {
        let (Some(pod), Some(report)) = (world.pods.get(&member.name), member.report()) else { continue };
        if !is_member(seen, report) {
            continue;
        }
        let change = change(seen, member, report, pod, world, revisions);
        if change != PodUpkeep::default() {
            changes.push((Arc::clone(pod), change));
        }
    }
    let results: Vec<Result<(), KubeError>> = futures::stream::iter(changes)
        .map(|(pod, change)| async move { kube.upkeep_pod(&pod, &change).await })
        .buffer_unordered(fan_out.max(1))
        .collect()
        .await;
    let mut written = 0;
    for result in results {
        match result {
            // Gone or changed meanwhile: the next pass looks again.
            Ok(()) | Err(KubeError::NotFound { .. } | KubeError::Conflict { .. }) => written += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Every answering node knows it by its real ID, and somebody owns slots.
fn is_member(seen: &Observed, report: &NodeReport) -> bool {
    report.cluster.slots_assigned > 0 && seen.listed_by_all(report.id)
}

fn change(
    seen: &Observed,
    member: &Member,
    report: &NodeReport,
    pod: &core::Pod,
    world: &World,
    revisions: Revisions<'_>,
) -> PodUpkeep {
    let differing = |have: Option<&BTreeMap<String, String>>,
                     want: Vec<(String, String)>|
     -> BTreeMap<String, String> {
        want.into_iter().filter(|(key, value)| have.and_then(|have| have.get(key)) != Some(value)).collect()
    };
    let role = (names::LABEL_ROLE.to_owned(), report.info.role.as_str().to_owned());
    let mut annotations: Vec<(String, String)> =
        world.cluster.spec.pod_annotations.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let revisions =
        [(names::ANNOTATION_ACL_REVISION, revisions.acl), (names::ANNOTATION_TLS_REVISION, revisions.tls)];
    annotations
        .extend(revisions.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
    let joined = member.pod.as_ref().is_some_and(|pod| pod.joined);
    PodUpkeep {
        labels: differing(pod.metadata.labels.as_ref(), vec![role]),
        annotations: differing(pod.metadata.annotations.as_ref(), annotations),
        joined: match member.spec.lifecycle {
            Lifecycle::Leaving => joined.then_some(false),
            Lifecycle::Joining | Lifecycle::Active => (!joined && may_serve(seen, report)).then_some(true),
        },
    }
}

/// A member is published once it serves: a primary with slots, a replica in sync. Never taken back for a passing
/// trouble.
fn may_serve(seen: &Observed, report: &NodeReport) -> bool {
    match report.info.role {
        Role::Primary => true,
        Role::Replica => {
            let primary = report.myself().and_then(|line| seen.answering(line.primary?));
            primary.is_some_and(|(_, primary)| sync_state(report, primary).is_synced())
        }
    }
}
