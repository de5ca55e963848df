# Sourced. Sets $mirror, the Debian mirror that this machine's own apt uses, and $keyring.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2>/dev/null | head -n 1
}
mirror=$(debian_mirror)
if [ -z "$mirror" ]; then # fresh machine: apt has not read its sources yet
    apt-get -q update
    mirror=$(debian_mirror)
fi
if [ -z "$mirror" ] || [ ! -f "$keyring" ]; then
    echo "this needs a Debian machine: apt knows no Debian mirror, or $keyring is missing" >&2
    exit 1
fi
