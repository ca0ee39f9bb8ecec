#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel with everything in it, on Debian 12. In: the project's source tree; CMake options as arguments. Out:
# build/wheel/pinfeed-*.whl. Fails if the result needs a newer glibc than its tag says, if it is too large, or if a library in it is
# not the newest of Debian's archive.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
work=$root/build/wheel
binaries=$work/binaries
here=$root/deploy/wheel
glibc=2.34 # RHEL 9, Ubuntu 22.04, Debian 12
machine=$(uname -m)
export PINFEED_PLATFORM=manylinux_${glibc/./_}_$machine
max_bytes=25000000
python=/usr/bin/python3

mkdir -p "$work"
. "$here/archive.sh"
[ "$(. /etc/os-release && echo "${VERSION_CODENAME-}")" = bookworm ] ||
  die "wheels are built on Debian 12, whose libraries fit glibc $glibc; use a chroot or a container of it"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory='*' -C "$root" log -1 --format=%ct 2>/dev/null || echo 1577836800)}
export SOURCE_DATE_EPOCH

"$here/dependencies.sh" "$work"
cmake --fresh -S "$root" --preset wheel -DPython3_EXECUTABLE="$python" "$@" >"$work/configure.log" || die "configuring failed: $(tail -20 "$work/configure.log")"
grep 'GPU path' "$work/configure.log"
cmake --build "$binaries" --target wheel_binaries

# Every library is the newest that Debian has, with its security updates.
"$python" "$here/third_party.py" --packages "$binaries" "$work/deps" >"$work/packages" || die "see above"
stale=""
while read -r package version; do
  newest=$(newest_version "$package")
  [ "$newest" = "$version" ] || stale="$stale $package"
done <"$work/packages"
[ -z "$stale" ] || die "the archive has newer versions of libraries for the wheel: apt-get update && apt-get install$stale"

stage=$work/stage
rm -rf "$stage" "$work"/*.whl
mkdir -p "$stage/pinfeed/bin" "$stage/pinfeed/lib" "$stage/data"
cp "$root/LICENSE" "$root/client/python/pyproject.toml" "$here/setup.py" "$stage/"
(cd "$root/client/python" && find pinfeed -name '*.py' -o -name py.typed) | while read -r file; do
  install -D -m 0644 "$root/client/python/$file" "$stage/$file"
done
for program in pinfeed pinfeedd; do install -m 0755 -s "$binaries/deploy/wheel/bin/$program" "$stage/pinfeed/bin/$program"; done
install -m 0644 -s "$binaries/deploy/wheel/lib/libpinfeed.so.0" "$stage/pinfeed/lib/libpinfeed.so.0"
install -m 0644 -s "$binaries/client/_quick.abi3.so" "$stage/pinfeed/_quick.abi3.so"
"$python" "$root/deploy/help_pages.py" "$stage/pinfeed/bin/pinfeed" "$stage/pinfeed/bin/pinfeedd" "$stage/data"
mv "$stage/data/pinfeed.bash" "$stage/data/pinfeed"
echo "$machine $glibc" >"$stage/pinfeed/built-for"
"$python" "$here/third_party.py" "$binaries" "$work/deps" >"$stage/pinfeed/THIRD_PARTY"
(cd "$stage" && "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" .)

wheel=$(ls "$work"/pinfeed-*.whl)
"$python" "$root/tests/checks/check_exports.py" "$stage/pinfeed/lib/libpinfeed.so.0" "$root/client/include/pinfeed/pinfeed.h" pinfeed_run pinfeedd_run
[ -x "$work/venv/bin/auditwheel" ] || { "$python" -m venv "$work/venv" && "$work/venv/bin/pip" --quiet install -r "$here/requirements.txt"; }
"$work/venv/bin/auditwheel" show "$wheel" >"$work/auditwheel.log" || die "auditwheel: $(cat "$work/auditwheel.log")"
tr '\n' ' ' <"$work/auditwheel.log" | grep -q "following platform tag: \"$PINFEED_PLATFORM\"" || die "not what its tag says: $(cat "$work/auditwheel.log")"
[ "$(stat -c %s "$wheel")" -le $max_bytes ] || die "$wheel has $(stat -c %s "$wheel") bytes, more than $max_bytes"
echo "wheel: $wheel, $(stat -c %s "$wheel") bytes"
