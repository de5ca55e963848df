#!/bin/sh
# Usage: launch.sh RECORD FINGERPRINT COMMAND...
# Becomes COMMAND, after writing to RECORD who it is: process id, start time (together they name a process for
# ever, an id alone is reused) and the fingerprint of what it was started with. Written by the process itself,
# so that none runs without its record, whenever the caller is killed.
set -eu
record=$1 fingerprint=$2
shift 2
start=$(sed 's/.*) //' "/proc/$$/stat" | cut -d ' ' -f 20)
echo "$$ $start $fingerprint" >"$record.new"
mv "$record.new" "$record"
exec "$@"
