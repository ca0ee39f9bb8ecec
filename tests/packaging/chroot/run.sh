#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer does, on a machine that has nothing: a minimal Debian with git and make, a clone of the last commit, then each command.
# In: a directory to keep the base system and downloaded packages in; the commands (default: "make test" and "make demo").
# Out: their output and times; exit status of the first that fails. Needs root and debootstrap. Mirror and proxy are this machine's own.
#
#   tests/packaging/chroot/run.sh [--suite trixie] [--user] [--cuda DIRECTORY] [--keep] /var/tmp/pinfeed-chroot ["make test" ...]
#
# --suite names the release; without it the release is bookworm (Debian 12). --user runs the commands as an ordinary user who may use sudo,
# else root runs them. --cuda shows a CUDA Toolkit of this machine, read-only, as /usr/local/cuda. --keep leaves the system there to look around in.
set -euo pipefail
. "$(dirname "$0")/base.sh"

# Runs in namespaces of its own: mounts and processes end with it, whatever happens.
inside() {
  local root=$1 source=$2 archives=$3 account=$4 cuda=$5
  shift 5
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount --bind "$archives" "$root/var/cache/apt/archives"
  if [ -n "$cuda" ]; then
    mkdir -p "$root/usr/local/cuda"
    mount --bind -o ro "$(realpath "$cuda")" "$root/usr/local/cuda"
  fi
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

account=root cuda="" keep=false
while true; do
  case "${1-}" in
    --suite) suite=${2-} && shift ;;
    --user) account=user ;;
    --cuda) cuda=${2-} && shift ;;
    --keep) keep=true ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 1 ] || die "usage: $0 [--suite RELEASE] [--user] [--keep] CACHE_DIRECTORY [COMMAND ...]"
[ "$(id -u)" -eq 0 ] || die "needs root, for chroot and mount"
mkdir -p "$1/archives/partial"
cache=$(realpath "$1")
shift
[ $# -ge 1 ] || set -- "make test" "make demo"
source=$(git -c safe.directory='*' -C "$(dirname "$0")" rev-parse --path-format=absolute --git-common-dir)

make_root "$cache"
unshare --mount --pid --fork --kill-child "$0" --inside "$root" "$source" "$cache/archives" $account "$cuda" "$@"
