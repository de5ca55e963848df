//! The reference pages name every setting, label and forced Valkey setting. Read from the code, so that a new one cannot
//! be forgotten here.

use shared::settings::{Binary, Settings};

const SETTINGS: &str = include_str!("../../docs/reference/settings.md");
const LABELS: &str = include_str!("../../docs/reference/labels.md");
const PLATFORM: &str = include_str!("../../docs/platform-guide.md");
const NAMES: &str = include_str!("../src/names.rs");
const CONF: &str = include_str!("../src/conf/mod.rs");

#[test]
fn the_reference_of_settings_has_every_key_with_its_default() {
    let defaults = serde_json::to_value(Settings::defaults(Binary::ClusterCtl)).unwrap();
    let settings = defaults.as_object().unwrap();
    for (key, value) in settings {
        let row = SETTINGS.lines().find(|line| line.starts_with(&format!("| `{key}`")));
        let row = row.unwrap_or_else(|| panic!("docs/reference/settings.md has no row for {key}"));
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert!(
            row.contains(&format!("`{value}`")),
            "the row of {key} does not show its default {value}: {row}"
        );
    }
    let rows =
        SETTINGS.lines().filter(|line| line.starts_with("| `") && line.split('|').count() == 7).count();
    assert_eq!(rows, settings.len(), "docs/reference/settings.md has rows for keys that do not exist");
}

#[test]
fn the_reference_of_labels_has_every_label_annotation_finalizer_key_and_user() {
    let kinds = ["LABEL_", "ANNOTATION_", "KEY_", "USER_", "MANAGER_", "READINESS_GATE"];
    let mut found = 0;
    for line in NAMES.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let (Some((name, _)), Some(value)) = (line.split_once(':'), line.split('"').nth(1)) else { continue };
        if kinds.iter().any(|kind| name.starts_with(kind)) || name.ends_with("_FINALIZER") {
            found += 1;
            assert!(LABELS.contains(&format!("`{value}`")), "docs/reference/labels.md lacks {name}, {value}");
        }
    }
    assert!(found > 20, "only {found} names were found in names.rs");
}

#[test]
fn the_platform_guide_has_every_forced_and_refused_setting() {
    let forced = CONF.split_once("\nfn forced(").unwrap().1.split_once("\nfn defaults(").unwrap().0;
    let refused = CONF.split_once("const REFUSED:").unwrap().1.split_once("/// Longest name").unwrap().0;
    let setting =
        |text: &&str| text.len() > 2 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    // Odd pieces between quotes are what is quoted; values among them that look like a setting are filtered below.
    let values = ["hostname", "yes"];
    let quoted = |text: &'static str| text.split('"').skip(1).step_by(2);
    let names: Vec<&str> = quoted(forced).chain(quoted(refused)).filter(setting).collect();
    assert!(names.len() > 30, "only {names:?} were found in conf/mod.rs");
    for name in names.into_iter().filter(|name| !values.contains(name)) {
        let shown = if name.ends_with('-') { format!("`{name}*`") } else { format!("`{name}`") };
        assert!(PLATFORM.contains(&shown), "docs/platform-guide.md does not name {shown}");
    }
}
