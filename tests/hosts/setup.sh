#!/usr/bin/env bash
# Installs what the tests marked `hosts` need: real mounts and terminals. Debian as root; harmless to repeat.
set -euo pipefail

packages=(mount util-linux procps tmux)

refuse() {
  echo "tests/hosts/setup.sh: $1" >&2
  exit 1
}

[ "$(uname -s)" = Linux ] || refuse "the tests on real system services need Linux, this is $(uname -s)."
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  refuse "the tests on real system services need Debian or a relative of it (no dpkg and apt-get here)."
[ "$(id -u)" = 0 ] || refuse "the tests on real system services need root: they mount file systems."

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get install -y -q --no-install-recommends "${missing[@]}"; }
# The package lists of a fresh machine are often empty or old: then, and only then, they are fetched first.
{ install || { apt-get update -q && install; }; } >"$log" 2>&1 || {
  cat "$log" >&2
  refuse "these packages could not be installed: ${missing[*]}."
}
