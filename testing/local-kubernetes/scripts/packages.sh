#!/bin/sh
# Usage: packages.sh
# Installs the machine's own packages that provide the commands the local Kubernetes needs. A command that is
# there already is taken as it is, wherever it comes from.
set -eu
export DEBIAN_FRONTEND=noninteractive

missing=
need() { # package, then a test for it
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
need runc command -v runc
need nftables command -v nft
need iproute2 command -v ip
need openssl command -v openssl
need mmdebstrap command -v mmdebstrap
need containernetworking-plugins test -x /usr/lib/cni/bridge -o -x /opt/cni/bin/bridge
[ -n "$missing" ] || exit 0

echo "installing:$missing"
# Another apt may be at work; and one that was killed leaves dpkg to be finished first.
apt="apt-get -q -o DPkg::Lock::Timeout=300 -y --no-install-recommends"
apt-get -q update
# shellcheck disable=SC2086  # lists of words on purpose
$apt install $missing || { dpkg --configure -a && $apt install $missing; }
