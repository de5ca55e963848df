#!/bin/sh
# Usage: unpack.sh FOLDER SUITE PACKAGE...
# Unpacks packages of a newer Debian suite into FOLDER/PACKAGE. They are never installed: the machine's own
# packages stay as they are. Writes FOLDER/versions, one "package version" a line.
set -eu
folder=$1 suite=$2
shift 2
work=$folder/.apt
mkdir -p "$work/lists/partial" "$work/archives/partial"
. "${0%/*}/mirror.sh"
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"

# A package database of its own: empty, since a package that the machine has installed from elsewhere must not
# count. An index of `testing` may be older than it says it may be.
: >"$work/status"
apt() {
    apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work" \
        -o APT::Sandbox::User=root -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none "$@"
}
apt update
cd "$work"
apt download "$@"
for package in "$@"; do
    dpkg -x "$package"_*.deb "$folder/$package"
    dpkg-deb -W --showformat '${Package} ${Version}\n' "$package"_*.deb >>"$folder/versions"
done
cd "$folder"
rm -rf "$work"
