#!/bin/sh
# Usage: valkey.sh FOLDER SUITE MINOR
# Makes FOLDER/rootfs with the Valkey of that Debian suite, FOLDER/image.tar, and FOLDER/valkey-server and
# FOLDER/valkey-cli, which run the same programs directly on this machine. Fails if the suite has no longer
# the version MINOR (such as 9.1): the tests are written for it. Writes FOLDER/version and FOLDER/digest.
set -eu
folder=$1 suite=$2 minor=$3
here=$(dirname "$(readlink -f "$0")")
root=$folder/rootfs
. "$here/mirror.sh"

# Mounts and processes of its own, which end with it whatever happens: a killed run leaves nothing mounted.
# Documentation and translations would be half of the image.
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc mmdebstrap --mode=root --variant=essential \
    --include=valkey-server --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/zoneinfo/*' \
    "$suite" "$root" "deb [signed-by=$keyring] $mirror $suite main"

for program in valkey-server valkey-cli; do
    cp "$here/../images/run-in-rootfs" "$folder/$program"
done
version=$("$folder/valkey-server" --version | sed 's/.* v=\([0-9.]*\).*/\1/')
case "$version" in
"$minor".*) ;;
*)
    echo "Debian $suite has Valkey $version now, not $minor" >&2
    exit 1
    ;;
esac

# As in the images that are published for Valkey: user 999, which owns /data.
sed -i -E 's/^valkey:x:[0-9]+:[0-9]+:/valkey:x:999:999:/' "$root/etc/passwd"
sed -i -E 's/^valkey:x:[0-9]+:/valkey:x:999:/' "$root/etc/group"
mkdir -p "$root/data"
chown 999:999 "$root/data"

python3 "$here/../images/pack.py" "$root" "$folder/image.tar" \
    --ref "docker.io/valkey/valkey:$version" --ref "docker.io/valkey/valkey:$minor" \
    --cmd '["valkey-server"]' --user 999:999 --workdir /data --port 6379/tcp \
    --exclude /dev --exclude /proc --exclude /sys --exclude /var/cache --exclude /var/lib/apt >"$folder/digest"
echo "$version" >"$folder/version"
