//! Every rule on single objects, on the server.

use test_api::{Server, Verdict, cases};

/// What was wrong with the answer to a case, if anything.
async fn wrong(server: &Server, case: &test_api::Case) -> Option<String> {
    let what = format!("{} ({})", case.what, case.object["kind"].as_str().unwrap());
    let answer = match server.dry_create(&case.object).await {
        Ok(answer) => answer,
        Err(error) => return Some(format!("{what}: no answer: {error:#}")),
    };
    match (&case.verdict, answer) {
        (Verdict::Accept, Ok(_)) => None,
        (Verdict::Accept, Err(refusal)) => Some(format!("{what}: refused: {refusal}")),
        (Verdict::Reject(_), Ok(_)) => Some(format!("{what}: accepted")),
        (Verdict::Reject(expected), Err(refusal)) if refusal.contains(expected) => None,
        (Verdict::Reject(expected), Err(refusal)) => Some(format!("{what}: not {expected:?} but: {refusal}")),
    }
}

#[tokio::test]
async fn the_server_accepts_and_refuses_what_the_cases_say() {
    let server = Server::ready().await.unwrap();
    let mut failures = Vec::new();
    for case in cases::all() {
        failures.extend(wrong(&server, &case).await);
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases::all().len(), failures.join("\n"));
}

#[test]
fn every_cel_rule_on_single_objects_has_a_case_that_it_refuses() {
    let expected: Vec<String> = cases::all()
        .into_iter()
        .filter_map(|case| match case.verdict {
            Verdict::Reject(message) => Some(message),
            Verdict::Accept => None,
        })
        .collect();
    let mut rules = Vec::new();
    for crd in shared::api::crds() {
        collect_rules(&serde_json::to_value(crd).unwrap(), &mut rules);
    }
    assert!(rules.len() > 15, "only {} rules found", rules.len());
    for (rule, message) in rules.iter().filter(|(rule, _)| !rule.contains("oldSelf")) {
        assert!(expected.iter().any(|case| message.contains(case)), "no case for {message:?} ({rule})");
    }
}

fn collect_rules(schema: &serde_json::Value, rules: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = |key: &str| rule[key].as_str().unwrap().to_owned();
        rules.push((text("rule"), text("message")));
    }
    let members = schema.as_object().into_iter().flat_map(|members| members.values());
    for inner in members.chain(schema.as_array().into_iter().flatten()) {
        collect_rules(inner, rules);
    }
}
