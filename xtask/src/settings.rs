//! Names, addresses and ports of the local Kubernetes, all in this one place.
//!
//! They differ from what other tools on a developer's machine use (Docker, kind, Minikube), so that the local
//! Kubernetes can live beside them. Scripts get them as `K8S_*` variables, templates as `@NAME@`.

use std::net::Ipv4Addr;

/// The bridge that every pod and every node address is on.
pub(crate) const BRIDGE: &str = "vkop0";
/// nftables table of the local Kubernetes. All tables named so, or with a further `_part`, belong to it:
/// tests that cut the network name theirs `vkop_…`, and `down` removes them.
pub(crate) const NFT_TABLE: &str = "vkop";
/// nftables table of the service proxy.
pub(crate) const NFT_SERVICES_TABLE: &str = "vkop_services";
/// Parent of all pods' cgroups, in every hierarchy.
pub(crate) const CGROUP: &str = "vkop";
/// CNI network; names the files of the CNI library's cache.
pub(crate) const NETWORK: &str = "vkop";
/// Sockets and other things that do not outlive `down`. Short: a Unix socket's path has 107 characters at most.
pub(crate) const RUN_DIR: &str = "/run/valkey-operator-k8s";
/// Environment variable that every process of the local Kubernetes carries; its value is the state folder.
pub(crate) const MARKER: &str = "VALKEY_OPERATOR_LOCAL_KUBERNETES";

/// Domain of the cluster's DNS names.
pub(crate) const DOMAIN: &str = "cluster.local";
/// Address of the bridge: API server and DNS as pods and nodes see them.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);
/// Addresses of pods.
pub(crate) const POD_CIDR: &str = "10.86.0.0/16";
/// First two octets of pods' addresses; the third is the node's number.
pub(crate) const POD_NET: &str = "10.86";
/// First three octets of the nodes' own addresses.
pub(crate) const NODE_NET: &str = "10.86.255";
/// Addresses of services.
pub(crate) const SERVICE_CIDR: &str = "10.97.0.0/16";
/// Address of the service `kubernetes`.
pub(crate) const SERVICE_IP: &str = "10.97.0.1";

/// Port of the API server, on 127.0.0.1 and on the bridge.
pub(crate) const API_PORT: u16 = 16443;
/// Port of etcd for the API server, on 127.0.0.1.
pub(crate) const ETCD_PORT: u16 = 17379;
/// Port of etcd for its peers, of which there are none.
pub(crate) const ETCD_PEER_PORT: u16 = ETCD_PORT + 1;
/// Port of the controller manager's own endpoints, on 127.0.0.1.
pub(crate) const CONTROLLER_MANAGER_PORT: u16 = 17257;
/// Port of the scheduler's own endpoints, on 127.0.0.1.
pub(crate) const SCHEDULER_PORT: u16 = 17259;

/// Zone labels, given to the nodes in turn.
pub(crate) const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
/// Most nodes that the addresses and a developer's machine leave room for.
pub(crate) const MAX_NODES: u8 = 16;

/// Kubernetes version; go.mod of the local Kubernetes must name the same (a test compares).
pub(crate) const KUBERNETES_VERSION: &str = "v1.36.3";
/// Debian suite of etcd, containerd and kubectl.
pub(crate) const PACKAGE_SUITE: &str = "testing";
/// Valkey images: minor version and the Debian suite that has it.
pub(crate) const VALKEY: [(&str, &str); 2] = [("9.1", "testing"), ("8.1", "trixie")];
/// Reference of the pause image.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// Repository of the operator's own image.
pub(crate) const OPERATOR_IMAGE: &str = "docker.io/library/valkey-operator";

/// The zone of node number `node` (from 1).
pub(crate) fn zone(node: u8) -> &'static str {
    let [first, second, third] = ZONES;
    match node % 3 {
        1 => first,
        2 => second,
        _ => third,
    }
}

/// Environment of the scripts in `testing/local-kubernetes/scripts`.
pub(crate) fn script_environment() -> Vec<(&'static str, String)> {
    vec![
        ("K8S_BRIDGE", BRIDGE.to_owned()),
        ("K8S_NFT_TABLE", NFT_TABLE.to_owned()),
        ("K8S_DOMAIN", DOMAIN.to_owned()),
        ("K8S_GATEWAY", GATEWAY.to_string()),
        ("K8S_POD_CIDR", POD_CIDR.to_owned()),
        ("K8S_NODE_NET", NODE_NET.to_owned()),
        ("K8S_SERVICE_CIDR", SERVICE_CIDR.to_owned()),
        ("K8S_SERVICE_IP", SERVICE_IP.to_owned()),
        ("K8S_API_PORT", API_PORT.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_modules_are_of_the_stated_kubernetes_version() {
        let modules = include_str!("../../testing/local-kubernetes/modules/go.mod");
        assert!(modules.contains(&format!("\tk8s.io/kubernetes {KUBERNETES_VERSION}\n")));
    }

    #[test]
    fn nodes_take_the_zones_in_turn() {
        assert_eq!([1, 2, 3, 4].map(zone), ["zone-a", "zone-b", "zone-c", "zone-a"]);
    }
}
