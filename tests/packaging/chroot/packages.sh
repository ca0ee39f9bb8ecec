#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages in a clean system that systemd has booted: installed, started, used, upgraded, watched, removed, purged.
# The system is of the Debian release that the packages were built on, which is this machine's.
# In: a directory to keep the base system and downloaded packages in. Out: what was done; status 0 when all went as it should and nothing
# was left. Needs root, `make packages` done, debootstrap and systemd-nspawn.
#
#   tests/packaging/chroot/packages.sh [--keep] /var/tmp/pinfeed-chroot
set -euo pipefail
here=$(realpath "$(dirname "$0")")
. "$here/base.sh"
suite=$own_suite

keep=false
[ "${1-}" != --keep ] || { keep=true && shift; }
[ $# -eq 1 ] || die "usage: $0 [--keep] CACHE_DIRECTORY"
[ "$(id -u)" -eq 0 ] || die "needs root, to boot a system"
command -v systemd-nspawn >/dev/null || die "needs systemd-nspawn: apt-get install systemd-container"
mkdir -p "$1/archives/partial"
cache=$(realpath "$1")
build=$(realpath "$here/../../../build")
ls "$build"/packages/pinfeed_*.deb >/dev/null || die "no packages in $build/packages: make packages"

make_root "$cache"
mkdir -p "$root/packages/first" "$root/packages/second"
cp "$build"/packages/*.deb "$root/packages/first"
cpack --config "$build/release/CPackConfig.cmake" -G DEB -B "$root/packages/second" -D CPACK_DEBIAN_PACKAGE_RELEASE=2 >/dev/null
rm -rf "$root/packages/second/_CPack_Packages"
cp "$here/in_system.sh" "$here/../../support/steps.sh" "$root/packages/"

# The users and the network's proxy are this machine's; processes, mounts and control groups are not.
environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
  http_proxy="${http_proxy-}" https_proxy="${https_proxy-}" no_proxy="${no_proxy-}")
systemd-nspawn --quiet --directory "$root" --register=no --keep-unit --bind "$cache/archives:/var/cache/apt/archives" \
  env "${environment[@]}" sh -c 'apt-get -qq update && apt-get -qq -y install --no-install-recommends systemd-sysv dbus python3-numpy >/dev/null 2>&1'
echo "chroot: booting"
systemd-nspawn --quiet --directory "$root" --boot --register=no --keep-unit --bind "$cache/archives:/var/cache/apt/archives" \
  >"$cache/boot.log" 2>&1 </dev/null &
container=$!
halt() {
  kill -KILL "$container" 2>/dev/null && wait "$container" 2>/dev/null || true
  cleanup
}
trap halt EXIT
init=
until [ -n "$init" ] && nsenter --target "$init" --all --root --wd systemctl is-system-running --wait >/dev/null 2>&1 ||
  [ "$(nsenter --target "${init:-1}" --all --root --wd systemctl is-system-running 2>/dev/null)" = degraded ]; do
  kill -0 "$container" 2>/dev/null || die "the system did not boot: $(tail -5 "$cache/boot.log")"
  sleep 0.2
  init=$(pgrep --parent "$container" | head -1)
done
# systemd-nspawn mounts a boot id of its own over the kernel's, which a service with a /proc of its own does not see; real machines have one.
nsenter --target "$init" --all --root --wd sh -c 'while umount /proc/sys/kernel/random/boot_id 2>/dev/null; do :; done'
nsenter --target "$init" --all --root --wd env -i "${environment[@]}" bash /packages/in_system.sh
