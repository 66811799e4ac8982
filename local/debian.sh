#!/bin/sh
# Unpack Debian packages, with those they need and the machine lacks, into a folder. Needs no root,
# installs nothing into the system and keeps its own package lists.
# Usage: local/debian.sh FOLDER PACKAGE...
set -eu
folder=$1
shift
missing=
for package in "$@"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || {
  echo "setup: no apt-get here; install these by hand: $missing" >&2
  exit 1
}
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
trap 'exit 130' INT TERM
export TMPDIR="$state"  # an interrupted apt leaves files behind
mkdir -p "$state/lists/partial" "$state/archives/partial"
# As root, apt would download as the user _apt, who may not enter our folder.
apt() {
  apt-get -qq -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
# shellcheck disable=SC2086
apt install --download-only --no-install-recommends --yes $missing >/dev/null
for deb in "$state"/archives/*.deb; do
  dpkg -x "$deb" "$folder"
done
