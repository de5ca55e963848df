//! The reference pages name every word that people meet. The words are read from the source, so that a new one cannot be
//! forgotten here.

const CONDITIONS: &str = include_str!("../../docs/reference/conditions.md");
const LOGS: &str = include_str!("../../docs/reference/logs.md");
const WORDS: &str = include_str!("../src/words.rs");
const TELL: &str = include_str!("../src/tell.rs");
const METRICS: &str = include_str!("../src/metrics.rs");

/// The text in quotes that follows `marker` on each line of `source` that has it.
fn quoted<'a>(source: &'a str, marker: &str) -> Vec<&'a str> {
    let after = source.lines().filter_map(|line| line.split_once(marker));
    after.filter_map(|(_, rest)| rest.split('"').nth(1)).collect()
}

/// Those of `words` that `page` does not have in the form `shape`, in which `{}` stands for the word.
fn missing<'a>(page: &str, words: &[&'a str], shape: &str) -> Vec<&'a str> {
    words.iter().copied().filter(|word| !page.contains(&shape.replace("{}", word))).collect()
}

#[test]
fn the_reference_of_conditions_has_a_row_for_every_reason() {
    let words = quoted(WORDS, "=> ");
    assert!(words.len() > 30, "only {words:?} were found in words.rs");
    assert_eq!(missing(CONDITIONS, &words, "\n| `{}` |"), Vec::<&str>::new(), "docs/reference/conditions.md");
}

#[test]
fn the_reference_of_logs_has_every_message_of_an_action_and_of_a_wait() {
    let messages = quoted(TELL, "=> ");
    assert!(messages.len() > 5, "only {messages:?} were found in tell.rs");
    assert_eq!(missing(LOGS, &messages, "`{}`"), Vec::<&str>::new(), "docs/reference/logs.md");
}

#[test]
fn the_reference_of_metrics_has_every_metric_of_clusters() {
    let registrations = METRICS.split("metrics.register(").skip(1);
    let names: Vec<&str> = registrations.filter_map(|rest| rest.split('"').nth(1)).collect();
    assert!(names.contains(&"actions"), "{names:?} were found in metrics.rs");
    assert_eq!(missing(LOGS, &names, "`valkey_operator_{}"), Vec::<&str>::new(), "docs/reference/logs.md");
}
