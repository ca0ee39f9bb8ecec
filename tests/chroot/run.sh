#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer does, on a machine that has nothing: a minimal Debian 12 with git and make, a clone of the last commit, then each command.
# In: a directory to keep the base system and downloaded packages in; the commands (default: "make test" and "make demo").
# Out: their output and times; exit status of the first that fails. Needs root and debootstrap. Mirror and proxy are this machine's own.
#
#   tests/chroot/run.sh [--user] [--keep] /var/tmp/pinfeed-chroot ["make test" ...]
#
# --user runs the commands as an ordinary user who may use sudo, else root runs them. --keep leaves the system there to look around in.
set -euo pipefail
suite=bookworm

die() {
  echo "chroot: $*" >&2
  exit 1
}

# Runs in namespaces of its own: mounts and processes end with it, whatever happens.
inside() {
  local root=$1 source=$2 archives=$3 account=$4
  shift 4
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount --bind "$archives" "$root/var/cache/apt/archives"
  mkdir -p "$root/mnt/source"
  mount --bind -o ro "$source" "$root/mnt/source"
  local enter=(chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
    http_proxy="${http_proxy-}" https_proxy="${https_proxy-}" no_proxy="${no_proxy-}")
  local as=("${enter[@]}" HOME=/root) home=/root
  if [ "$account" = user ]; then
    "${enter[@]}" sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends sudo >/dev/null &&
      useradd --create-home --shell /bin/bash newcomer && echo "newcomer ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/newcomer'
    home=/home/newcomer
    as=("${enter[@]}" HOME="$home" setpriv --reuid newcomer --regid newcomer --init-groups)
  fi
  "${as[@]}" git -c safe.directory='*' clone -q --no-hardlinks file:///mnt/source "$home/pinfeed"
  umount "$root/mnt/source"
  local command started status
  for command in "$@"; do
    echo "chroot: == $command"
    started=$SECONDS status=0
    "${as[@]}" sh -c "cd $home/pinfeed && $command" </dev/null || status=$?
    echo "chroot: == $command: exit $status after $((SECONDS - started)) s"
    [ $status -eq 0 ] || exit $status
  done
}

if [ "${1-}" = --inside ]; then
  shift
  inside "$@"
  exit 0
fi

account=root keep=false
while true; do
  case "${1-}" in
    --user) account=user ;;
    --keep) keep=true ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 1 ] || die "usage: $0 [--user] [--keep] CACHE_DIRECTORY [COMMAND ...]"
[ "$(id -u)" -eq 0 ] || die "needs root, for chroot and mount"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
mkdir -p "$1/archives/partial"
cache=$(realpath "$1")
shift
[ $# -ge 1 ] || set -- "make test" "make demo"
source=$(git -c safe.directory='*' -C "$(dirname "$0")" rev-parse --path-format=absolute --git-common-dir)

# Debian's own archives as this machine reaches them; other sources it may have are not what a newcomer has.
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) main' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u)
mirror=$(printf '%s\n' "$sources" | awk -v suite=$suite '$3 == suite { print $2; exit }')
[ -n "$mirror" ] || die "this machine's apt sources name no Debian archive for $suite; run apt-get update, or use a Debian 12 machine"

base=$cache/$suite.tar
root=$(mktemp -d "$cache/root.XXXXXX")
cleanup() {
  if $keep; then
    echo "chroot: kept $root"
  else
    rm -rf --one-file-system "$root"
  fi
}
trap cleanup EXIT
started=$SECONDS
if [ -e "$base" ]; then
  tar -C "$root" -xpf "$base"
else
  debootstrap --variant=minbase --include=ca-certificates,git,make "$suite" "$root" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
    die "debootstrap failed: $(tail -3 "$cache/debootstrap.log")"
  rm -rf "$root"/var/cache/apt/archives/*.deb
  tar -C "$root" -cpf "$base.new" . && mv "$base.new" "$base"
fi
chmod 755 "$root" # mktemp's is for root alone; every user may enter a machine's /
printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
apt-config dump Acquire | grep -E '^Acquire::(Check-|https?:|Retries|Force)' >"$root/etc/apt/apt.conf.d/90host" || true
echo 'Binary::apt::APT::Keep-Downloaded-Packages "true";' >"$root/etc/apt/apt.conf.d/91keep"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # a crash loses nothing that is wanted
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e $file ] || cp -L $file "$root$file"
done
echo "chroot: base system ready after $((SECONDS - started)) s"
unshare --mount --pid --fork --kill-child "$0" --inside "$root" "$source" "$cache/archives" $account "$@"
