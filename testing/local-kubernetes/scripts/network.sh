#!/bin/sh
# Usage: network.sh NODES
# Makes the bridge that all pods of all nodes are on, an address on it for every node, the route for service
# addresses, and the rules that keep all of it on this machine. What exists is kept; K8S_* give the names.
set -eu
nodes=$1

# Services send packets from a pod back to a pod, through this machine's routing.
[ "$(cat /proc/sys/net/ipv4/ip_forward)" = 1 ] || echo 1 >/proc/sys/net/ipv4/ip_forward

[ -d "/sys/class/net/$K8S_BRIDGE" ] || ip link add "$K8S_BRIDGE" type bridge
ip link set "$K8S_BRIDGE" up
address() {
    ip -o -4 address show dev "$K8S_BRIDGE" | grep -qF " $1 " || ip address add "$1" dev "$K8S_BRIDGE"
}
# The gateway must be the bridge's first address: the CNI plugin compares with that one.
address "$K8S_GATEWAY/16"
i=1
while [ "$i" -le "$nodes" ]; do
    address "$K8S_NODE_NET.$i/32"
    i=$((i + 1))
done
ip route replace "$K8S_SERVICE_CIDR" dev "$K8S_BRIDGE" src "$K8S_GATEWAY"

# In one transaction, so that a second run finds the same rules. Pods reach pods, services and this machine
# only. A service address that the proxy did not translate has no endpoints: refused at once, not timed out.
nft -f - <<EOF
table ip $K8S_NFT_TABLE
delete table ip $K8S_NFT_TABLE
table ip $K8S_NFT_TABLE {
  chain services {
    # A reset and not an ICMP message: those are limited in rate, and the kernel's redirects use up the limit.
    ip daddr $K8S_SERVICE_CIDR meta l4proto tcp reject with tcp reset
    ip daddr $K8S_SERVICE_CIDR reject
  }
  chain forwarded {
    type filter hook forward priority 0;
    jump services
    ip saddr $K8S_POD_CIDR ip daddr != $K8S_POD_CIDR reject
  }
  chain from_host {
    type filter hook output priority 0;
    jump services
  }
}
EOF
