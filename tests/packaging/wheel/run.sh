#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The wheel in clean systems of Debian 12 and 13: installed by pip for a user who is not root, used, uninstalled. Debian 11, whose glibc
# is too old, refuses it. In: a directory that keeps the base systems and NumPy. Out: what was seen, with times; status 0 when all went as
# it should. Needs root, debootstrap, PyPI, and `make wheel` done.
#
#   tests/packaging/wheel/run.sh /var/tmp/pinfeed-wheel [SUITE ...]
set -euo pipefail
here=$(realpath "$(dirname "$0")")
. "$here/../chroot/base.sh"
base_packages=python3,python3-venv
declare -A python_of=([bookworm]=3.11 [trixie]=3.13 [bullseye]=3.9)

# Runs in namespaces of its own: mounts and processes end with it, whatever happens.
inside() {
  local root=$1
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  chroot "$root" useradd --create-home user
  exec chroot "$root" env -i PATH=/usr/bin:/bin HOME=/home/user LANG=C.UTF-8 setpriv --reuid user --regid user --init-groups bash /wheel/in_system.sh
}
if [ "${1-}" = --inside ]; then
  inside "$2"
fi

[ $# -ge 1 ] || die "usage: $0 CACHE_DIRECTORY [SUITE ...]"
[ "$(id -u)" -eq 0 ] || die "needs root, for chroot and mount"
mkdir -p "$1"
cache=$(realpath "$1")
shift
[ $# -ge 1 ] || set -- bookworm trixie bullseye
source=$(realpath "$here/../../..")
ls "$source"/build/wheel/pinfeed-*.whl >/dev/null || die "no wheel in $source/build/wheel: make wheel"

for suite in "$@"; do
  numpy=$cache/numpy-${python_of[$suite]}
  ls "$numpy"/*.whl >/dev/null 2>&1 ||
    /usr/bin/python3 -m pip download --quiet --only-binary=:all: --python-version "${python_of[$suite]}" --dest "$numpy" numpy
  make_root "$cache"
  mkdir "$root/wheel"
  cp "$source"/build/wheel/pinfeed-*.whl "$numpy"/*.whl "$here/in_system.sh" "$here/ten_lines.py" "$here/../../support/steps.sh" "$root/wheel/"
  for class in jpeg png webp; do mkdir -p "$root/wheel/images/$class"; done
  for i in 1 2 3 4; do
    cp "$source/tests/fuzz/corpus/decode/rgb_16x16_2_0.jpg" "$root/wheel/images/jpeg/$i.jpg"
    cp "$source/tests/fuzz/corpus/decode/png_2_8_0_1.png" "$root/wheel/images/png/$i.png"
    cp "$source/tests/fuzz/corpus/decode/webp_17x33_0.webp" "$root/wheel/images/webp/$i.webp"
  done
  chmod -R a+rX "$root/wheel"
  unshare --mount --pid --ipc --fork --kill-child "$here/run.sh" --inside "$root"
  cleanup
done
