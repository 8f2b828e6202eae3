#!/usr/bin/env bash
# Installs what the tests marked `hosts` need: mounts, terminals, sshd, container engines, and the user they log in as.
# Debian as root; harmless to repeat. No service is started by it.
set -euo pipefail

packages=(
  mount util-linux procps tmux rsync busybox-static python3
  openssh-server openssh-client
  docker.io runc podman                # the engines; runc is the one that podman gets along with here
  docker-registry apache2-utils        # a registry with a login (htpasswd)
  iptables iproute2                    # links that are cut
)
user=ekvi-test

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

undo=()
finish() { for step in "${undo[@]}"; do eval "$step"; done; }
trap finish EXIT

if [ ${#missing[@]} -gt 0 ]; then
  log=$(mktemp)
  undo+=("rm -f $log")
  # 101 means: start nothing. A machine that has a policy of its own keeps it.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    undo+=("rm -f /usr/sbin/policy-rc.d")
  fi
  # The index of manual pages takes longer than all packages together.
  if [ -e /var/lib/man-db/auto-update ]; then
    rm -f /var/lib/man-db/auto-update
    undo+=("touch /var/lib/man-db/auto-update")
  fi
  export DEBIAN_FRONTEND=noninteractive
  install() {
    apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-unsafe-io \
      -o Dpkg::Options::=--force-confold "${missing[@]}"
  }
  # The package lists of a fresh machine are often empty or old: then, and only then, they are fetched first.
  { install || { apt-get update -q && install; }; } >"$log" 2>&1 || {
    cat "$log" >&2
    refuse "these packages could not be installed: ${missing[*]}."
  }
fi

# `*` is a password that nobody has; `!`, the default, is a locked account, which sshd lets nobody into.
id "$user" >/dev/null 2>&1 || useradd -m -s /bin/sh "$user"
usermod -p '*' -aG docker "$user"
mkdir -p -m 755 /run/sshd
