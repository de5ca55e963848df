//! What the code registers, read from the code, and three comparisons with it: expressions, and the page of metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::metrics::Metrics;

use super::{alerts, dashboard};

/// Every Rust file under the source folders of the three binaries, tests left out.
fn sources() -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|name| name == "tests") {
                continue;
            }
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for binary in ["cluster-ctl", "node-ctl", "reconcile-loops"] {
        walk(&root.join(binary).join("src"), &mut files);
    }
    let text = |file: PathBuf| fs::read_to_string(file).unwrap();
    files
        .into_iter()
        .map(text)
        .map(|text| text.split("#[cfg(test)]").next().unwrap_or_default().to_owned())
        .collect()
}

/// Kind of the metric that `ident` holds, by its declaration in `file` or by an alias of its type in any file.
fn kind(ident: &str, file: &str, all: &[String]) -> Option<&'static str> {
    let word = |text: &str| ["Counter", "Gauge", "Histogram"].into_iter().find(|word| text.contains(word));
    let declared = |line: &str| {
        let line = line.trim().trim_start_matches("pub ").trim_start_matches("let ");
        let rest = line.strip_prefix(ident)?.trim_start();
        rest.strip_prefix(':').or_else(|| rest.strip_prefix('=')).map(|rest| rest.trim().to_owned())
    };
    let types: Vec<String> = file.lines().filter_map(declared).collect();
    types.iter().find_map(|text| word(text)).or_else(|| {
        let alias = types.first()?.split(|c: char| !c.is_alphanumeric()).next()?;
        let definition = format!("type {alias} = ");
        all.iter().flat_map(|file| file.lines()).find(|line| line.contains(&definition)).and_then(word)
    })
}

/// Every metric as Prometheus names it (a histogram without its suffixes), with its type.
fn registered() -> BTreeMap<String, &'static str> {
    let sources = sources();
    let mut found = shared_families();
    for file in &sources {
        for call in file.split(".register(").skip(1) {
            let arguments = call.split(");").next().unwrap_or_default();
            let mut literals = arguments.split('"');
            let Some(name) = literals.nth(1) else { continue };
            let holder = literals.next_back().unwrap().trim_matches(|c: char| ", \n".contains(c));
            let ident = holder.trim_end_matches(".clone()").rsplit('.').next().unwrap();
            let (suffix, kind) = match kind(ident, file, &sources) {
                Some("Counter") => ("_total", "counter"),
                Some("Gauge") => ("", "gauge"),
                Some("Histogram") => ("", "histogram"),
                _ => panic!("what kind of metric is {name:?}, held by {ident:?}?"),
            };
            found.insert(format!("valkey_operator_{name}{suffix}"), kind);
        }
    }
    found
}

/// The families that all binaries share, as they print themselves.
fn shared_families() -> BTreeMap<String, &'static str> {
    let metrics = Metrics::new("test", "test");
    metrics.controller.start("test").finish("success");
    metrics.api.observe("get", "ok", Duration::from_millis(1));
    metrics.valkey.observe("ping", "ok", Duration::from_millis(1));
    let text = metrics.encode().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| match kind {
            "counter" => (format!("{name}_total"), "counter"),
            "info" => (format!("{name}_info"), "info"),
            "gauge" => (name.to_owned(), "gauge"),
            "histogram" => (name.to_owned(), "histogram"),
            other => panic!("{name} has the type {other}"),
        })
        .collect()
}

/// The series that an expression reads: our names start in one of two ways. That the expression is `PromQL` at all is
/// tested with Prometheus' own parser, in testing/api.
fn series(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("valkey_operator_") || word.starts_with("controller_runtime_"))
        .collect()
}

fn expressions() -> Vec<String> {
    let panels = dashboard::panels().into_iter().flat_map(|panel| panel.queries).map(|(query, _)| query);
    alerts::alerts().into_iter().map(|alert| alert.expression).chain(panels).collect()
}

#[test]
fn every_expression_reads_only_metrics_that_the_code_registers() {
    let registered = registered();
    let known = |series: &str| {
        registered.get(series).is_some_and(|kind| *kind != "histogram")
            || ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| series.strip_suffix(suffix))
                .any(|name| registered.get(name) == Some(&"histogram"))
    };
    for expression in expressions() {
        let series = series(&expression);
        assert!(!series.is_empty(), "{expression} reads nothing");
        for name in series {
            assert!(known(name), "{expression}: {name} is not among {:?}", registered.keys());
        }
    }
}

#[test]
fn every_registered_metric_is_shown_on_the_dashboard_or_used_by_an_alert() {
    let all = expressions().join("\n");
    let unused: Vec<String> = registered().into_keys().filter(|name| !all.contains(name.as_str())).collect();
    assert_eq!(unused, Vec::<String>::new());
}

#[test]
fn the_page_of_metrics_lists_exactly_what_is_registered_with_its_type() {
    let page = include_str!("../../../../docs/monitoring.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| metric | type |")).skip(2);
    let listed: BTreeMap<String, String> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    let registered: BTreeMap<String, String> =
        registered().into_iter().map(|(name, kind)| (name, kind.to_owned())).collect();
    assert_eq!(listed, registered, "docs/monitoring.md");
}
