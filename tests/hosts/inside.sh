#!/bin/bash
# The first process of a test machine: makes the machine's own view of things, says "ready", and waits for the end of
# its standard input. It is pid 1 of its namespace, so everything that was started in the machine ends with it.
#   inside.sh FOLDER KIND [HOSTNAME ADDRESS]      KIND: nvidia, amd, both, cpu
# Without HOSTNAME only /dev is its own; with one also /run, /tmp, /home/*, /usr/local/bin, the name and machine-id.
set -eu
folder=$1 kind=$2 name=${3:-} address=${4:-}

own_dev() { # devtmpfs is one for all namespaces, so device nodes of our own need another /dev
  local new=$folder/dev node
  mkdir -p "$new"
  mount -t tmpfs -o mode=755 tmpfs "$new"
  for node in null zero full random urandom tty fuse; do [ -e /dev/$node ] && cp -a /dev/$node "$new/"; done
  mkdir -p "$new"/{pts,shm,mqueue,net}
  [ -e /dev/net/tun ] && cp -a /dev/net/tun "$new/net/"
  mount --bind /dev/pts "$new/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$new/shm"
  ln -s pts/ptmx "$new/ptmx"
  ln -s /proc/self/fd "$new/fd"
  for node in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${node#*:}" "$new/${node%:*}"; done
  case $kind in nvidia | both)
    for node in nvidiactl nvidia-uvm nvidia0 nvidia1; do mknod -m 666 "$new/$node" c 1 3; done ;;
  esac
  case $kind in amd | both)
    mkdir "$new/dri"
    for node in kfd dri/card0 dri/renderD128 dri/card1 dri/renderD129; do
      mknod -m 660 "$new/$node" c 1 3
      chgrp video "$new/$node"
    done
    chmod 666 "$new/kfd" ;;
  esac
  mount --rbind "$new" /dev
}

own_system() {
  hostname "$name"
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/sshd /run/lock
  tr -d - </proc/sys/kernel/random/uuid >"$folder/machine-id"
  mount --bind "$folder/machine-id" /etc/machine-id
  printf '127.0.0.1 localhost\n%s %s\n' "$address" "$name" >"$folder/hosts"
  mount --bind "$folder/hosts" /etc/hosts
  mount --bind "$folder/tools" /usr/local/bin
  mkdir -p -m 1777 "$folder/tmp"
  chmod 1777 "$folder/tmp"
  for home in /home/*; do
    mkdir -p "$folder$home"
    chown --reference="$home" "$folder$home"
    chmod 755 "$folder$home"
    mount --bind "$folder$home" "$home"
  done
  mount --bind "$folder/tmp" /tmp
}

own_dev
[ -z "$name" ] || own_system
echo ready
read -r _ || true
