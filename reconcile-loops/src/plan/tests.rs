use super::*;

fn published() -> Published {
    Published { revision: "a".repeat(64), accepted: false, refused: None, fits_twice: true }
}

fn results(results: &[NodeResult]) -> BTreeMap<String, NodeResult> {
    results.iter().enumerate().map(|(index, result)| (format!("c-{index:05}"), result.clone())).collect()
}

const CURRENT: NodeResult = NodeResult::Current { reloaded: false };

fn refused() -> NodeResult {
    NodeResult::Refused("ERR line 2".to_owned())
}

fn failed() -> NodeResult {
    NodeResult::Failed { kind: "timeout", error: "no answer after 1 s".to_owned() }
}

const SOON: Duration = Duration::from_secs(3);

fn decide(published: &Published, nodes: &[NodeResult]) -> AclDecision {
    acl(Ok(published), &results(nodes), SOON)
}

#[test]
fn all_nodes_current_is_applied_and_settled() {
    let decision = decide(
        &Published { accepted: true, ..published() },
        &[CURRENT, NodeResult::Current { reloaded: true }],
    );
    assert_eq!(decision.verdict.status, ConditionStatus::True);
    assert_eq!(decision.verdict.message, "revision aaaaaaaaaaaa is in force on 2 of 2 running nodes");
    assert_eq!((decision.record, decision.settled), (None, true));
}

#[test]
fn the_first_proof_is_recorded_once_and_only_when_it_fits() {
    let nodes = [CURRENT, NodeResult::Stale];
    assert_eq!(decide(&published(), &nodes).record, Some(Record::Accepted));
    assert_eq!(decide(&Published { accepted: true, ..published() }, &nodes).record, None);
    assert_eq!(decide(&Published { fits_twice: false, ..published() }, &nodes).record, None);
    assert!(!decide(&published(), &nodes).settled);
}

#[test]
fn a_node_without_result_is_named_and_nothing_is_settled() {
    let decision = decide(&published(), &[CURRENT, failed(), NodeResult::Stale]);
    assert_eq!((decision.verdict.reason, decision.settled), ("NodeFailed", false));
    insta::assert_snapshot!(
        decision.verdict.message,
        @"revision aaaaaaaaaaaa is in force on 1 of 3 running nodes; no result from c-00001 (timeout)"
    );
}

#[test]
fn many_nodes_are_listed_in_part() {
    let nodes = vec![NodeResult::Stale; 12];
    let message = decide(&published(), &nodes).verdict.message;
    assert!(message.ends_with("c-00004 and 7 more"), "{message}");
}

#[test]
fn a_refusal_is_recorded_only_when_it_can_be_only_the_published_file() {
    let first = decide(&published(), &[refused(), NodeResult::Stale]);
    assert_eq!(first.record, Some(Record::Refused { words: "ERR line 2".to_owned() }));
    assert_eq!(first.verdict.reason, "Refused");

    // An older bad file may still lie on the node: only time tells.
    let after_bad = Published { refused: Some("b".repeat(64)), ..published() };
    assert_eq!(decide(&after_bad, &[refused()]).record, None);
    let late = acl(Ok(&after_bad), &results(&[refused()]), REFRESH_LIMIT);
    assert!(matches!(late.record, Some(Record::Refused { .. })));

    // Recorded already, or proved somewhere: the file is not to blame (again).
    let known = Published { refused: Some("a".repeat(64)), ..published() };
    assert_eq!(decide(&known, &[refused()]).record, None);
    assert_eq!(decide(&published(), &[refused(), CURRENT]).record, Some(Record::Accepted));
    assert_eq!(decide(&Published { accepted: true, ..published() }, &[refused()]).record, None);
}

#[test]
fn a_restored_file_on_all_nodes_still_says_that_the_newer_one_was_refused() {
    let restored = Published { accepted: true, refused: Some("b".repeat(64)), ..published() };
    let verdict = decide(&restored, &[CURRENT]).verdict;
    assert_eq!((verdict.status, verdict.reason), (ConditionStatus::False, "Refused"));
}

#[test]
fn without_a_file_or_a_node_there_is_nothing_to_wait_for() {
    for why in [Unpublished::Missing, Unpublished::Foreign, Unpublished::Malformed] {
        let decision = acl(Err(why), &results(&[CURRENT]), SOON);
        assert_eq!(
            (decision.verdict.status, decision.record, decision.settled),
            (ConditionStatus::False, None, true)
        );
    }
    let decision = decide(&published(), &[]);
    assert_eq!((decision.verdict.status, decision.settled), (ConditionStatus::Unknown, true));
}

fn published_tls(trust: Trust) -> PublishedTls {
    PublishedTls {
        fingerprint: "0123456789abcdef".to_owned(),
        authorities: "fedcba9876543210".to_owned(),
        trust,
        doubt: None,
    }
}

const TOLD: NodeResult = NodeResult::Told { reloaded: false };

#[test]
fn tls_is_ready_when_every_node_serves_the_secrets_certificate() {
    let published = published_tls(Trust::Proved);
    let (verdict, settled) = tls(Ok(&published), &results(&[CURRENT, TOLD]));
    assert_eq!((verdict.status, verdict.reason, settled), (ConditionStatus::True, "Served", true));
    assert_eq!(
        verdict.message,
        "certificate 0123456789ab is served by 2 of 2 running nodes, and all have read ca.crt fedcba987654"
    );
    let (verdict, settled) = tls(Ok(&published), &results(&[CURRENT, NodeResult::Stale]));
    assert_eq!((verdict.reason, settled), ("WaitingForKubelet", false));
    let (verdict, settled) = tls(Err(("SecretInvalid", "no tls.crt")), &results(&[CURRENT]));
    assert_eq!((verdict.reason, verdict.message.as_str(), settled), ("SecretInvalid", "no tls.crt", true));
}

#[test]
fn a_changed_authority_is_ready_when_each_node_shows_it_or_a_kubelet_has_had_its_time() {
    let changed = |waited| published_tls(Trust::Changed { replaced: false, waited });
    let of = |waited, found: &[NodeResult]| {
        let (verdict, settled) = tls(Ok(&changed(waited)), &results(found));
        assert_eq!(settled, verdict.status == ConditionStatus::True);
        verdict.reason
    };
    assert_eq!(of(false, &[CURRENT, CURRENT]), "Served", "the servers show it");
    assert_eq!(of(false, &[CURRENT, TOLD]), "AuthoritiesUnproved");
    assert_eq!(of(true, &[CURRENT, TOLD]), "Served");
    assert_eq!(
        of(true, &[CURRENT, NodeResult::Stale]),
        "WaitingForKubelet",
        "time proves nothing against a server"
    );
    let (verdict, _) = tls(Ok(&changed(false)), &results(&[CURRENT, TOLD]));
    assert!(verdict.message.contains("is not shown by c-00001:"), "{}", verdict.message);
}

#[test]
fn a_replaced_authority_is_told_until_all_have_read_the_new_one() {
    let replaced = |waited| published_tls(Trust::Changed { replaced: true, waited });
    for found in [vec![CURRENT, NodeResult::Stale], vec![CURRENT, TOLD]] {
        let (verdict, settled) = tls(Ok(&replaced(false)), &results(&found));
        assert_eq!((verdict.reason, settled), (AUTHORITIES_REPLACED, false));
        assert!(verdict.message.contains("clients need the new ca.crt"), "{}", verdict.message);
    }
    assert_eq!(tls(Ok(&replaced(true)), &results(&[CURRENT, TOLD])).0.reason, "Served");
    assert_eq!(tls(Ok(&replaced(false)), &results(&[CURRENT])).0.reason, "Served");
}

#[test]
fn a_certificate_that_is_served_and_doubtful_is_ready_with_the_doubt_as_its_reason() {
    let published = PublishedTls { doubt: Some(Doubt::NoClientAuth), ..published_tls(Trust::Proved) };
    let (verdict, settled) = tls(Ok(&published), &results(&[CURRENT]));
    assert_eq!((verdict.status, verdict.reason, settled), (ConditionStatus::True, "TlsNoClientAuth", true));
    assert!(verdict.message.contains("client auth"), "{}", verdict.message);
}
