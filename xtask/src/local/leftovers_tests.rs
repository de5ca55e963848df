//! Tests of how our things are told from others'.

use super::*;

#[test]
fn only_tables_of_our_name_are_ours() {
    let tables = "table ip vkop\ntable ip filter\ntable bridge vkop_cut\ntable inet vkopx\n";
    let ours: Vec<_> = parse_tables(tables).iter().map(ToString::to_string).collect();
    assert_eq!(ours, ["nftables table ip vkop", "nftables table bridge vkop_cut"]);
}

#[test]
fn mounts_below_our_folders_come_innermost_first() {
    let mountinfo = "\
        22 1 0:5 / /run rw - tmpfs tmpfs rw\n\
        23 22 0:6 / /run/vk rw - tmpfs tmpfs rw\n\
        24 23 0:7 / /run/vk/a\\040b rw - tmpfs tmpfs rw\n\
        25 22 0:8 / /run/vk-other rw - tmpfs tmpfs rw\n";
    let ours = parse_mounts(mountinfo, &[Path::new("/run/vk")]);
    assert_eq!(ours, [Path::new("/run/vk/a b"), Path::new("/run/vk")]);
}

#[test]
fn a_backslash_that_is_no_escape_stays() {
    assert_eq!(unescape("/a\\134b"), Path::new("/a\\b"));
    assert_eq!(unescape("/a\\9"), Path::new("/a\\9"));
}

#[test]
fn a_process_in_a_pod_is_told_by_its_cgroup() {
    let v1 = "5:memory:/vkop/node-2/kubepods/burstable/pod1/c\n4:cpu:/\n";
    assert_eq!(node_of_cgroups(v1).as_deref(), Some("node-2"));
    assert_eq!(node_of_cgroups("0::/vkop/node-1/kubepods\n").as_deref(), Some("node-1"));
    assert_eq!(node_of_cgroups("0::/vkopx/node-1\n0::/user.slice\n"), None);
}

#[test]
fn a_process_of_ours_is_told_by_its_environment() {
    let environment = b"A=1\0MARK=/state\0NODE=node-3\0";
    assert!(variable(environment, "MARK=/state", "").is_some());
    assert!(variable(environment, "MARK=/sta", "").is_none());
    assert_eq!(variable(environment, "NODE", "=").as_deref(), Some("node-3"));
    assert_eq!(variable(environment, "NOD", "="), None);
}

#[test]
fn a_socket_that_somebody_listens_on_is_recognised() {
    let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
        00000000a: 00000002 00000000 00010000 0001 01 123 /run/containerd/s/abc\n\
        00000000b: 00000002 00000000 00010000 0001 01 124\n";
    assert!(is_listed(sockets, Path::new("/run/containerd/s/abc")));
    assert!(!is_listed(sockets, Path::new("/run/containerd/s/ab")));
}
