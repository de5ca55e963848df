//! TLS clusters whose Secret is wrong, or not for long.

use cluster_ctl::action::{Action, Wait};
use cluster_ctl::model::{Certificate, Millis, Shape};
use cluster_ctl::status::{derive, warnings};
use cluster_ctl::words::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::api::conditions::{self, ConditionType};
use shared::api::{ClusterState, ValkeyCluster, ValkeyClusterSpec, ValkeyClusterStatus};

use crate::world::{Flag, World, world};

const WORDS: &str = "TLS Secret \"s\" has no data";

fn invalid(world: &mut World) {
    world.want.tls = Err(WORDS.to_owned());
    world.want.hold = Some(Wait { reason: Reason::TlsInvalid, message: WORDS.to_owned() });
}

fn unusable(world: &mut World) {
    let wait = Wait { reason: Reason::TlsUntrusted, message: "not signed".to_owned() };
    world.want.hold = Some(wait.clone());
    world.want.certificate =
        Some(Certificate { expires: Millis(i64::MAX / 2), doubts: vec![wait.clone()], unusable: Some(wait) });
}

fn status(world: &World) -> ValkeyClusterStatus {
    let cluster = ValkeyCluster::new("c", ValkeyClusterSpec::default());
    derive(&cluster, &world.observed(), &world.want, &world.plan(), &Time(jiff::Timestamp::UNIX_EPOCH))
}

#[test]
fn given_an_invalid_secret_then_nothing_planned_is_done_and_the_exact_words_are_the_message() {
    let world = world(3, 1).formed().with(|world| world.want.shape = Shape { shards: 4, replicas: 1 });
    assert!(world.plan().action.is_some(), "it would scale");
    let world = world.with(invalid);
    let decision = world.plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::TlsInvalid));
    let status = status(&world);
    assert_eq!((status.state, status.message.as_deref()), (ClusterState::Invalid, Some(WORDS)));
}

#[test]
fn given_an_invalid_secret_then_a_dead_primary_is_replaced_by_its_copy_and_nothing_is_made() {
    let world = world(3, 1).formed().with(invalid).with(|world| world.kill("c-02"));
    assert!(matches!(world.action(), Action::Failover { .. }));
    assert_eq!(status(&world).message.as_deref(), Some(WORDS), "beside an action too");
}

#[test]
fn given_an_invalid_or_unusable_secret_then_no_node_is_made_in_the_place_of_a_lost_one() {
    for (wrong, reason) in [(invalid as fn(&mut World), Reason::TlsInvalid), (unusable, Reason::TlsUntrusted)]
    {
        let mut lost = world(3, 1).formed();
        lost.nodes.remove("c-03");
        lost.everyone_forgets("c-03");
        assert!(matches!(lost.action(), Action::CreateNodes { .. }));
        let decision = lost.with(wrong).plan();
        assert_eq!(decision.action, None);
        assert!(decision.waits.iter().any(|wait| wait.reason == reason), "{decision:?}");
    }
}

#[test]
fn given_silence_because_nobody_can_be_verified_then_the_secret_is_what_is_told() {
    let silent = |world: &mut World| {
        for name in world.nodes.keys().cloned().collect::<Vec<_>>() {
            world.silence(&name, None::<Flag>);
        }
    };
    let world = world(3, 1).formed().with(invalid).with(silent);
    let decision = world.plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::TlsInvalid));
    assert_eq!(status(&world).message.as_deref(), Some(WORDS));
}

#[test]
fn given_a_secret_that_servers_cannot_use_then_bootstrap_waits_for_it() {
    let decision = world(3, 1).snapshot().with(unusable).plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::TlsUntrusted));
}

#[test]
fn given_an_unusable_secret_then_a_whole_cluster_stays_settled_and_the_doubt_is_a_warning() {
    let world = world(3, 1).formed().with(unusable);
    assert_eq!(world.plan().reason, Reason::Settled);
    assert_eq!(status(&world).state, ClusterState::Active);
    let told: Vec<Reason> =
        warnings(&world.want, world.observed().now).iter().map(|wait| wait.reason).collect();
    assert_eq!(told, [Reason::TlsUntrusted]);
}

#[test]
fn a_certificate_is_told_to_expire_from_thirty_days_before() {
    const DAY: i64 = 86_400_000;
    let of = |left: i64| {
        let world = world(1, 0).formed().with(|world| {
            let expires = Millis(world.now.0 + left);
            world.want.certificate = Some(Certificate { expires, doubts: vec![], unusable: None });
        });
        let status = status(&world);
        let condition = conditions::find(&status.conditions, ConditionType::CertificateExpiringSoon).unwrap();
        assert_eq!(status.state, ClusterState::Active);
        let told = warnings(&world.want, world.observed().now).len();
        (condition.status.clone(), condition.reason.clone(), told)
    };
    let words = |status: &str, reason: &str, told| (status.to_owned(), reason.to_owned(), told);
    assert_eq!(of(31 * DAY), words("False", "CertificateFresh", 0));
    assert_eq!(of(30 * DAY), words("False", "CertificateFresh", 0));
    assert_eq!(of(30 * DAY - 1000), words("True", "CertificateExpiring", 1));
    assert_eq!(of(1000), words("True", "CertificateExpiring", 1));
    assert_eq!(of(0), words("True", "CertificateExpired", 1));
    assert_eq!(of(-400 * DAY), words("True", "CertificateExpired", 1));
}

#[test]
fn a_plaintext_cluster_has_no_condition_of_a_certificate() {
    let status = status(&world(1, 0).formed());
    assert!(conditions::find(&status.conditions, ConditionType::CertificateExpiringSoon).is_none());
}
