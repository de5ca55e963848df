//! What people see: state, counts and conditions, derived from what was seen and decided. Pure.
//!
//! Status is output: nothing is decided from it but the set-once records that `model` names.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use shared::api::conditions::{self, ConditionStatus, ConditionType};
use shared::api::{ClusterState, Lifecycle, ValkeyCluster, ValkeyClusterStatus};
use shared::slots::SLOT_COUNT;
use shared::tls::EXPIRES_SOON_SECONDS;
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;

use crate::action::{Decision, Wait};
use crate::build;
use crate::model::{Desired, Member, Millis, Observed, sync_state};
use crate::words::Reason;

/// Conditions that reconcile-loops owns: never applied by cluster-ctl.
const NOT_OURS: [ConditionType; 2] = [ConditionType::AclApplied, ConditionType::TlsReady];

/// Our part of the status of `cluster` after this tick's decision.
pub fn derive(
    cluster: &ValkeyCluster,
    seen: &Observed,
    want: &Desired,
    decision: &Decision,
    now: &Time,
) -> ValkeyClusterStatus {
    let old = cluster.status.clone().unwrap_or_default();
    let formed = seen.formed();
    let state = match (&want.tls, formed) {
        (Err(_), _) => ClusterState::Invalid,
        (Ok(()), true) => ClusterState::Active,
        (Ok(()), false) => ClusterState::Creating,
    };
    let ready_nodes = seen.members.values().filter(|member| is_ready(seen, member)).count();
    let facts = Facts::new(seen, want);
    ValkeyClusterStatus {
        state,
        target_spec: if formed { None } else { old.target_spec },
        nodes: seen.members.keys().cloned().collect(),
        message: message(decision),
        observed_generation: cluster.metadata.generation,
        conditions: conditions(
            &old.conditions,
            cluster.metadata.generation,
            &facts,
            want,
            decision,
            (now, seen.now),
        ),
        shards: Some(i32::try_from(facts.shards).unwrap_or(i32::MAX)),
        ready_nodes: Some(i32::try_from(ready_nodes).unwrap_or(i32::MAX)),
        ready: Some(format!("{ready_nodes}/{}", want.shape.members())),
        slots_assigned: Some(i32::from(facts.slots_assigned)),
        last_action: old.last_action,
    }
}

/// Whether two statuses of ours say the same, apart from what moves with time alone.
pub fn same(old: Option<&ValkeyClusterStatus>, new: &ValkeyClusterStatus) -> bool {
    let Some(old) = old else { return false };
    let ours = |conditions: &[Condition]| -> Vec<Condition> {
        let mut ours: Vec<Condition> =
            conditions.iter().filter(|condition| is_ours(condition)).cloned().collect();
        ours.sort_by(|a, b| a.type_.cmp(&b.type_));
        ours
    };
    ours(&old.conditions) == ours(&new.conditions)
        && ValkeyClusterStatus { conditions: Vec::new(), ..old.clone() }
            == ValkeyClusterStatus { conditions: Vec::new(), ..new.clone() }
}

fn is_ours(condition: &Condition) -> bool {
    NOT_OURS.iter().all(|kind| kind.as_str() != condition.type_)
}

/// Active, and as a replica in sync with its primary.
fn is_ready(seen: &Observed, member: &Member) -> bool {
    let Some(report) = member.report() else { return false };
    member.spec.lifecycle == Lifecycle::Active
        && match report.info.role {
            Role::Primary => report.myself().is_some_and(|line| !line.slots.is_empty()),
            Role::Replica => {
                primary_report(seen, report).is_some_and(|primary| sync_state(report, primary).is_synced())
            }
        }
}

fn primary_report<'a>(seen: &'a Observed, replica: &NodeReport) -> Option<&'a NodeReport> {
    seen.answering(replica.myself()?.primary?).map(|(_, report)| report)
}

/// What a majority of the primaries' views agree on.
struct Facts {
    shards: usize,
    slots_assigned: u16,
    /// All slots served, shards and synced replicas as specified.
    whole: bool,
}

impl Facts {
    fn new(seen: &Observed, want: &Desired) -> Self {
        let owns = |report: &NodeReport| report.myself().is_some_and(|line| !line.slots.is_empty());
        let owners: Vec<(&Member, &NodeReport)> = seen.reports().filter(|(_, report)| owns(report)).collect();
        let wanted = usize::from(want.shape.shards);
        let agreeing = owners
            .iter()
            .filter(|(_, report)| {
                let cluster = &report.cluster;
                cluster.ok && cluster.slots_ok == SLOT_COUNT && usize::try_from(cluster.size) == Ok(wanted)
            })
            .count();
        let replicas = |primary: &NodeReport| {
            seen.followers(primary.id).filter(|(_, report)| sync_state(report, primary).is_synced()).count()
        };
        // More than asked for is no lack: while rolling a shard has one more.
        let replicated =
            owners.iter().all(|(_, report)| replicas(report) >= usize::from(want.shape.replicas));
        Self {
            shards: owners.len(),
            slots_assigned: owners.iter().map(|(_, report)| report.cluster.slots_assigned).max().unwrap_or(0),
            whole: owners.len() == wanted && agreeing > wanted / 2 && replicated && seen.formed(),
        }
    }
}

/// What holds something up, for the status message; a bootstrap that merely takes its time needs none.
fn message(decision: &Decision) -> Option<String> {
    let first = decision.waits.iter().find(|wait| wait.reason.is_obstacle())?;
    Some(first.message.clone())
}

fn conditions(
    old: &[Condition],
    generation: Option<i64>,
    facts: &Facts,
    want: &Desired,
    decision: &Decision,
    (now, seen_at): (&Time, Millis),
) -> Vec<Condition> {
    let make = |kind, status: ConditionStatus, reason: Reason, message: &str| {
        conditions::next(old, kind, status, reason.as_str(), message, generation, now)
    };
    let open = decision.action.is_some() || !decision.waits.is_empty();
    let ready = if facts.whole {
        make(
            ConditionType::Ready,
            ConditionStatus::True,
            Reason::Serving,
            "all slots are served with every replica in sync",
        )
    } else {
        make(ConditionType::Ready, ConditionStatus::False, decision.reason, &decision.message)
    };
    let progressing = make(ConditionType::Progressing, open.into(), decision.reason, &decision.message);
    let trouble = decision.waits.iter().find(|wait| wait.reason.is_trouble());
    let degraded = match trouble {
        Some(wait) => make(ConditionType::Degraded, ConditionStatus::True, wait.reason, &wait.message),
        None if decision.reason.is_trouble() => {
            make(ConditionType::Degraded, ConditionStatus::True, decision.reason, &decision.message)
        }
        None => make(
            ConditionType::Degraded,
            ConditionStatus::False,
            Reason::Settled,
            "nothing is broken or lost",
        ),
    };
    let unresolved = want.template.as_ref().err().or(want.acl.as_ref().err());
    let references = match unresolved {
        Some(words) => make(
            ConditionType::ReferencesResolved,
            ConditionStatus::False,
            Reason::ReferencesUnresolved,
            words,
        ),
        None => make(
            ConditionType::ReferencesResolved,
            ConditionStatus::True,
            Reason::Resolved,
            "config, image and roles resolve",
        ),
    };
    let mut all = vec![ready, progressing, degraded, references];
    all.extend(
        expiry(want, seen_at).map(|(status, reason, words)| {
            make(ConditionType::CertificateExpiringSoon, status, reason, &words)
        }),
    );
    all
}

/// Whether the certificate of a TLS cluster expires soon, in words that change with the certificate alone.
fn expiry(want: &Desired, now: Millis) -> Option<(ConditionStatus, Reason, String)> {
    if let Err(words) = &want.tls {
        return Some((ConditionStatus::Unknown, Reason::TlsInvalid, words.clone()));
    }
    let expires = want.certificate.as_ref()?.expires;
    let time = build::time(expires).0;
    let left = (expires.0 - now.0) / 1000;
    Some(if left <= 0 {
        (ConditionStatus::True, Reason::CertificateExpired, format!("the certificate expired at {time}"))
    } else if left < EXPIRES_SOON_SECONDS {
        (ConditionStatus::True, Reason::CertificateExpiring, format!("the certificate expires at {time}"))
    } else {
        (ConditionStatus::False, Reason::CertificateFresh, format!("the certificate expires at {time}"))
    })
}

/// What a person should hear once about the certificate: that it expires soon, and each doubt about it.
pub fn warnings(want: &Desired, now: Millis) -> Vec<Wait> {
    let expiry = expiry(want, now).filter(|(status, ..)| *status == ConditionStatus::True);
    let expiry = expiry.map(|(_, reason, message)| Wait { reason, message });
    let doubts = want.certificate.iter().flat_map(|certificate| certificate.doubts.iter().cloned());
    doubts.chain(expiry).collect()
}
