//! What each layer does, and the exact words for what is wrong.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(directory: &Path, file: Option<&Path>, pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let sources = Sources { directory: directory.to_owned(), file: file.map(Path::to_owned) };
    Settings::load(Binary::NodeCtl, &sources, env(pairs))
}

/// Lays files out as the kubelet does: real files below `..2026`, `..data` and each key as symlinks.
fn mounted(keys: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().join("..2026_11_29");
    fs::create_dir(&real).unwrap();
    symlink("..2026_11_29", root.path().join("..data")).unwrap();
    for (key, value) in keys {
        fs::write(real.join(key), value).unwrap();
        symlink(Path::new("..data").join(key), root.path().join(key)).unwrap();
    }
    root
}

#[test]
fn without_any_source_the_documented_defaults_hold() {
    let settings = load(Path::new("/nonexistent"), None, &[("PATH", "/bin")]).unwrap();
    assert_eq!(settings, Settings::defaults(Binary::NodeCtl));
    insta::assert_snapshot!(settings.to_line(), @r#"{"defaultZoneSpread":"bestEffort","aclTick":"30s","tlsTick":"30s","heartbeat":"15s","waitRequeue":"500ms","valkeyConnectTimeout":"1s","valkeyTimeout":"1s","apiTimeout":"10s","failoverPatience":"20s","nodeLossPatience":"30s","slotBatch":1024,"slotBatchBytes":"8MiB","nodeFanOut":32,"listenAddress":"0.0.0.0:8082"}"#);
    let addresses = [Binary::ClusterCtl, Binary::NodeCtl, Binary::ReconcileLoops]
        .map(|binary| Settings::defaults(binary).listen_address.to_string());
    assert_eq!(addresses, ["0.0.0.0:8081", "0.0.0.0:8082", "0.0.0.0:8083"]);
}

#[test]
fn a_mounted_config_map_is_read_without_the_kubelets_own_entries() {
    let root = mounted(&[("aclTick", "5s\n"), ("slotBatch", "256"), ("slotBatchBytes", "1GiB")]);
    let settings = load(root.path(), None, &[]).unwrap();
    assert_eq!(settings.acl_tick, Duration::from_secs(5));
    assert_eq!((settings.slot_batch, settings.slot_batch_bytes), (256, ByteSize(1 << 30)));
}

#[test]
fn the_file_wins_over_the_directory_and_the_environment_over_both() {
    let root = mounted(&[("aclTick", "5s"), ("tlsTick", "6s"), ("defaultZoneSpread", "bestEffort")]);
    let file = root.path().join("..local.yaml");
    fs::write(&file, "aclTick: 7s\ntlsTick: 8s\nslotBatch: 12\nnodeFanOut: '3'\n").unwrap();
    let pairs = [("TLS_TICK", "9s"), ("DEFAULT_ZONE_SPREAD", "required"), ("LISTEN_ADDRESS", "[::]:9000")];
    let settings = load(root.path(), Some(&file), &pairs).unwrap();
    assert_eq!(settings.acl_tick, Duration::from_secs(7));
    assert_eq!(settings.tls_tick, Duration::from_secs(9));
    assert_eq!(settings.default_zone_spread, ZoneSpread::Required);
    assert_eq!((settings.slot_batch, settings.node_fan_out), (12, 3));
    assert_eq!(settings.listen_address.to_string(), "[::]:9000");
}

#[test]
fn an_unknown_key_is_one_line_with_key_source_and_what_is_known() {
    let root = mounted(&[("aclTik", "5s")]);
    let said = load(root.path(), None, &[]).unwrap_err().to_string();
    let said = said.replace(&root.path().display().to_string(), "DIR");
    insta::assert_snapshot!(said, @"setting aclTik (from file DIR/aclTik) is unknown: known are defaultZoneSpread, aclTick, tlsTick, heartbeat, waitRequeue, valkeyConnectTimeout, valkeyTimeout, apiTimeout, failoverPatience, nodeLossPatience, slotBatch, slotBatchBytes, nodeFanOut, listenAddress");
}

#[test]
fn a_bad_value_is_one_line_with_key_value_source_and_what_is_allowed() {
    let nowhere = Path::new("/nonexistent");
    let said = |pairs: &[(&str, &str)]| load(nowhere, None, pairs).unwrap_err().to_string();
    insta::assert_snapshot!(said(&[("ACL_TICK", "soon")]), @r#"setting aclTick: "soon" (from environment variable ACL_TICK) is not allowed: allowed is a duration above zero and up to a day, such as 500ms, 30s or 2m"#);
    insta::assert_snapshot!(said(&[("DEFAULT_ZONE_SPREAD", "Required")]), @r#"setting defaultZoneSpread: "Required" (from environment variable DEFAULT_ZONE_SPREAD) is not allowed: allowed is bestEffort or required"#);
    insta::assert_snapshot!(said(&[("LISTEN_ADDRESS", "8081")]), @r#"setting listenAddress: "8081" (from environment variable LISTEN_ADDRESS) is not allowed: allowed is an IP address with a port, such as 0.0.0.0:8081 or [::]:8081"#);
}

#[test]
fn every_kind_of_value_has_bounds() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("settings.yaml");
    for bad in [
        "aclTick: 0s",
        "aclTick: 25h",
        "aclTick: 30",
        "aclTick: [30s]",
        "aclTick:",
        "slotBatch: 0",
        "slotBatch: 16385",
        "slotBatch: -1",
        "slotBatch: 1.5",
        "slotBatchBytes: 0",
        "slotBatchBytes: 8 apples",
        "slotBatchBytes: 99999999999GiB",
        "nodeFanOut: true",
        "nodeFanOut: 1025",
        "other: 1",
    ] {
        fs::write(&file, bad).unwrap();
        let error = load(root.path().join("none").as_path(), Some(&file), &[]).unwrap_err().to_string();
        let key = bad.split(':').next().unwrap();
        assert!(error.starts_with(&format!("setting {key}")), "{bad}: {error}");
        assert!(error.contains("settings.yaml") && !error.contains('\n'), "{bad}: {error}");
    }
}

#[test]
fn a_file_that_is_no_map_or_not_there_is_named() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("settings.yaml");
    let none = root.path().join("none");
    let error = load(&none, Some(&file), &[]).unwrap_err();
    assert!(error.to_string().contains("settings.yaml"), "{error}");
    fs::write(&file, "- a\n- b\n").unwrap();
    let error = load(&none, Some(&file), &[]).unwrap_err().to_string();
    assert!(error.contains("is no YAML map") && !error.contains('\n'), "{error}");
    fs::write(&file, "# nothing set\n").unwrap();
    assert_eq!(load(&none, Some(&file), &[]).unwrap(), Settings::defaults(Binary::NodeCtl));
}

#[test]
fn the_settings_file_for_local_work_is_valid_and_holds_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/settings.yaml");
    let settings = load(Path::new("/nonexistent"), Some(&path), &[]).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&settings.to_line()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    for key in shown.as_object().unwrap().keys() {
        assert!(text.contains(&format!("{key}:")), "{key} is not in config/settings.yaml");
    }
}
