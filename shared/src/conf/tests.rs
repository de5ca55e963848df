//! Pins of the rendered bytes, and properties that hold for whatever people write.

use proptest::prelude::*;

use super::*;

const HOST: &str = "c-3f8a1.c.app.svc.cluster.local";
const V9: EngineVersion = EngineVersion::new(9, 1, 2);

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn input(settings: &BTreeMap<String, String>) -> ConfInput<'_> {
    ConfInput { settings, memory: Some("1Gi"), tls: false, version: V9, host: HOST }
}

/// What is rendered for these settings, without the lines that are there for none.
fn added(pairs: &[(&str, &str)]) -> Vec<String> {
    let none = render(&input(&BTreeMap::new())).unwrap().text;
    let settings = settings(pairs);
    let text = render(&input(&settings)).unwrap().text;
    text.lines().filter(|line| !none.lines().any(|other| other == *line)).map(str::to_owned).collect()
}

#[test]
fn a_plaintext_node_of_engine_9() {
    let none = BTreeMap::new();
    insta::assert_snapshot!(render(&input(&none)).unwrap().text, @r#"
    aclfile /etc/valkey/acl/users.acl
    bind * -::*
    cluster-allow-replica-migration no
    cluster-announce-hostname c-3f8a1.c.app.svc.cluster.local
    cluster-config-file /var/lib/valkey/nodes.conf
    cluster-enabled yes
    cluster-node-timeout 5000
    cluster-preferred-endpoint-type ip
    cluster-replica-no-failover no
    daemonize no
    dir /var/lib/valkey
    logfile ""
    maxmemory 805306368
    port 6379
    primaryuser _momento_repl
    protected-mode no
    repl-diskless-sync-delay 0
    save ""
    shutdown-on-sigterm nosave failover
    slot-migration-max-failover-repl-bytes 64mb
    include /etc/valkey/auth/primaryauth.conf
    "#);
}

#[test]
fn a_tls_node_of_engine_8_without_a_memory_limit() {
    let none = BTreeMap::new();
    let input = ConfInput { tls: true, memory: None, version: OLDEST_ENGINE, ..input(&none) };
    insta::assert_snapshot!(render(&input).unwrap().text, @r#"
    aclfile /etc/valkey/acl/users.acl
    bind * -::*
    cluster-allow-replica-migration no
    cluster-announce-hostname c-3f8a1.c.app.svc.cluster.local
    cluster-config-file /var/lib/valkey/nodes.conf
    cluster-enabled yes
    cluster-node-timeout 5000
    cluster-preferred-endpoint-type hostname
    cluster-replica-no-failover no
    daemonize no
    dir /var/lib/valkey
    logfile ""
    port 0
    primaryuser _momento_repl
    protected-mode no
    repl-diskless-sync-delay 0
    save ""
    shutdown-on-sigterm nosave
    tls-auth-clients no
    tls-ca-cert-file /etc/valkey/tls/ca.crt
    tls-cert-file /etc/valkey/tls/tls.crt
    tls-cluster yes
    tls-key-file /etc/valkey/tls/tls.key
    tls-port 6379
    tls-replication yes
    include /etc/valkey/auth/primaryauth.conf
    "#);
}

#[test]
fn people_override_defaults_but_never_what_is_forced() {
    let settings = settings(&[
        ("cluster-announce-ip", "10.0.0.1"),
        ("cluster-node-timeout", "15000"),
        ("masterauth", "x"),
        ("maxmemory", "100mb"),
        ("primaryuser", "me"),
        ("repl-diskless-load", "on-empty-db"),
        ("save", "900 1"),
        ("shutdown-on-sigterm", "now"),
    ]);
    let conf = render(&input(&settings)).unwrap();
    assert_eq!(
        conf.overridden,
        ["cluster-announce-ip", "cluster-node-timeout", "masterauth", "primaryuser", "repl-diskless-load"]
    );
    for line in ["cluster-node-timeout 5000", "maxmemory 100mb", "save 900 1", "shutdown-on-sigterm now"] {
        assert!(conf.text.lines().any(|rendered| rendered == line), "no {line} in\n{}", conf.text);
    }
    for gone in ["10.0.0.1", "15000", "masterauth", "on-empty-db"] {
        assert!(!conf.text.contains(gone), "{gone} in\n{}", conf.text);
    }
    assert!(conf.text.ends_with("\ninclude /etc/valkey/auth/primaryauth.conf\n"));
}

/// The settings that are overridden and those that are written, of all of these set by a person.
fn overridden_and_written(tls: bool, keys: &[&str]) -> (Vec<String>, Vec<String>) {
    let settings: BTreeMap<String, String> =
        keys.iter().map(|key| ((*key).to_owned(), "people".to_owned())).collect();
    let conf = render(&ConfInput { tls, ..input(&settings) }).unwrap();
    let written =
        conf.text.lines().filter_map(|line| line.strip_suffix(" people")).map(str::to_owned).collect();
    (conf.overridden, written)
}

#[test]
fn a_server_has_exactly_one_door_of_the_kind_that_its_cluster_has() {
    let doors = ["bind", "port", "rdma-port", "tls-cluster", "tls-port", "tls-replication"];
    let inert = ["tls-auth-clients", "tls-ca-cert-dir", "tls-cert-file", "unixsocket"];
    let all = [doors.as_slice(), inert.as_slice()].concat();
    let (overridden, written) = overridden_and_written(false, &all);
    assert_eq!(overridden, doors);
    // Without a TLS port, bus or link nothing reads these; a socket in the pod's own file system is no door.
    assert_eq!(written, inert);

    let (overridden, written) = overridden_and_written(true, &all);
    assert_eq!(
        overridden,
        [
            "bind",
            "port",
            "rdma-port",
            "tls-auth-clients",
            "tls-ca-cert-dir",
            "tls-cert-file",
            "tls-cluster",
            "tls-port",
            "tls-replication",
        ]
    );
    assert_eq!(written, ["unixsocket"]);
}

#[test]
fn a_swapdb_load_is_allowed() {
    assert_eq!(added(&[("repl-diskless-load", "swapdb")]), ["repl-diskless-load swapdb"]);
}

#[test]
fn values_are_quoted_as_the_server_reads_them() {
    insta::assert_snapshot!(added(&[
        ("client-output-buffer-limit", "normal 0 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60"),
        ("latency-tracking-info-percentiles", "50 99 99.9"),
        ("loadmodule", "/usr/lib/valkey/a.so one two"),
        ("notify-keyspace-events", ""),
        ("proc-title-template", "{title} \"quoted\" back\\slash 'single' #hash é"),
        ("save", "900 1 300 10"),
        ("shutdown-on-sigint", "a\"b"),
    ]).join("\n"), @r##"
    client-output-buffer-limit normal 0 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60
    latency-tracking-info-percentiles 50 99 99.9
    loadmodule /usr/lib/valkey/a.so one two
    notify-keyspace-events ""
    proc-title-template "{title} \"quoted\" back\\slash 'single' #hash é"
    save 900 1 300 10
    shutdown-on-sigint "\"a\\\"b\""
    "##);
    assert!(added(&[("client-output-buffer-limit", "")]).is_empty());
}

#[test]
fn what_cannot_be_expressed_safely_is_an_error() {
    for key in ["include", "user", "requirepass", "rename-command", "syslog-ident", "replica-announce-ip"] {
        let settings = settings(&[(key, "x")]);
        assert_eq!(render(&input(&settings)).unwrap_err(), ConfError::Refused { key: key.to_owned() });
    }
    for key in ["", "Save", "a b", "a\nb", "#", "9x", "module.key", &"k".repeat(129)] {
        let settings = settings(&[(key, "x")]);
        assert_eq!(render(&input(&settings)).unwrap_err(), ConfError::Key { key: key.to_owned() });
    }
    for value in ["a\nb", "a\rb", "a\0b", "\u{85}", &"v".repeat(4097)] {
        let settings = settings(&[("proc-title-template", value)]);
        assert!(matches!(render(&input(&settings)).unwrap_err(), ConfError::Value { .. }), "{value:?}");
    }
    let none = BTreeMap::new();
    let input = ConfInput { memory: Some("1 Gi"), ..input(&none) };
    assert_eq!(render(&input).unwrap_err(), ConfError::Memory { memory: "1 Gi".to_owned() });
}

/// An independent reading of how the server splits a line into arguments.
fn split(line: &str) -> Option<Vec<Vec<u8>>> {
    let blank = |byte: u8| byte == b' ' || (9..=13).contains(&byte);
    let mut bytes = line.bytes().peekable();
    let mut arguments = Vec::new();
    loop {
        while bytes.next_if(|byte| blank(*byte)).is_some() {}
        if bytes.peek().is_none() {
            return Some(arguments);
        }
        let mut argument = Vec::new();
        loop {
            match bytes.next() {
                None => break,
                Some(byte) if blank(byte) => break,
                Some(b'"') => {
                    loop {
                        match bytes.next()? {
                            b'"' => break,
                            b'\\' => argument.push(bytes.next()?),
                            byte => argument.push(byte),
                        }
                    }
                    if bytes.peek().is_some_and(|byte| !blank(*byte)) {
                        return None;
                    }
                }
                Some(byte) => argument.push(byte),
            }
        }
        arguments.push(argument);
    }
}

/// The arguments that the server hands to a directive that takes several, from its line in the file.
fn split_again(arguments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    match arguments.as_slice() {
        [single] if !single.is_empty() => split(std::str::from_utf8(single).unwrap()).unwrap(),
        _ => arguments,
    }
}

proptest! {
    #[test]
    fn a_single_argument_reads_back_as_it_was_written(value in "\\PC{0,60}") {
        prop_assume!(!value.chars().any(char::is_control));
        let line = quote::line("proc-title-template", &value).unwrap();
        let arguments = split(&line).unwrap();
        prop_assert_eq!(arguments, vec![b"proc-title-template".to_vec(), value.into_bytes()]);
    }

    #[test]
    fn several_arguments_read_back_as_config_set_would_split_them(value in "[ a-z0-9\"'\\\\#é]{1,40}") {
        let line = quote::line("save", &value).unwrap();
        let mut arguments = split(&line).unwrap();
        arguments.remove(0);
        let wanted: Vec<Vec<u8>> = value.split(' ').map(|part| part.as_bytes().to_vec()).collect();
        prop_assert_eq!(split_again(arguments), wanted);
    }

    #[test]
    fn nothing_that_people_write_adds_a_line_or_moves_the_include(
        settings in prop::collection::btree_map("[a-z][a-z0-9-]{0,12}|save|port|bind|user", any::<String>(), 0..6),
        tls: bool,
    ) {
        let input = ConfInput { tls, ..input(&settings) };
        let Ok(conf) = render(&input) else { return Ok(()) };
        let none = BTreeMap::new();
        let fixed = render(&ConfInput { settings: &none, ..input.clone() }).unwrap();
        let own: Vec<&str> = fixed.text.lines().filter_map(|line| line.split(' ').next()).collect();
        let mut keys: Vec<&str> = conf.text.lines().filter_map(|line| line.split(' ').next()).collect();
        prop_assert_eq!(keys.pop(), Some("include"));
        for key in keys {
            prop_assert!(own.contains(&key) || settings.contains_key(key), "{} came from nowhere", key);
        }
        prop_assert!(conf.text.lines().count() <= own.len() + settings.len());
        prop_assert!(conf.text.ends_with("include /etc/valkey/auth/primaryauth.conf\n"));
    }

    #[test]
    fn rendering_is_deterministic_and_every_line_splits(
        settings in prop::collection::btree_map("[a-z][a-z0-9-]{0,12}", "\\PC{0,40}", 0..6),
    ) {
        let Ok(conf) = render(&input(&settings)) else { return Ok(()) };
        prop_assert_eq!(&conf, &render(&input(&settings)).unwrap());
        for line in conf.text.lines() {
            prop_assert!(split(line).is_some_and(|arguments| arguments.len() >= 2), "{}", line);
        }
    }
}
