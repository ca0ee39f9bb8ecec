#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The image of the Dockerfile, built on a Debian 12 that debootstrap makes and run by Podman as operators run it: without root, without a
# writable root, with the host's folder of sockets. In: a directory to keep base system, image layers and downloads in. Out: a line for
# each thing that holds. Needs root, Podman 4.3 (its own storage, in that directory; no network but the package archive's).
#
#   tests/packaging/container/run.sh /var/tmp/pinfeed-container
set -euo pipefail
here=$(realpath "$(dirname "$0")")
. "$here/../chroot/base.sh"
base_packages=ca-certificates
image=localhost/pinfeed:test
user=990 # of the Dockerfile
stranger=12345

fail() {
  echo "$name: FAILED: $*" >&2
  engine logs daemon 2>&1 | tail -20 >&2 || true
  exit 1
}
name=container
. "$here/../../support/steps.sh"
# Storage of its own; runc, as crun wants control groups of one version alone.
# No timer of systemd runs the health check: the script does.
engine() { DISABLE_HC_SYSTEMD=true podman --runtime runc --cgroup-manager cgroupfs --root "$cache/storage" --runroot "$cache/run" --storage-driver overlay --log-level error "$@"; }
in_image() { engine run "${limits[@]}" --rm --network none --entrypoint "" "$image" "$@"; }

[ $# -eq 1 ] || die "usage: $0 CACHE_DIRECTORY"
[ "$(id -u)" -eq 0 ] || die "needs root, to make a base system and to run containers as an engine does"
command -v podman >/dev/null || die "needs podman: deploy/install-deps test-container"
mkdir -p "$1/archives/partial"
cache=$(realpath "$1")
source=$(realpath "$here/../../..")
scratch=$(mktemp -d)
chmod 755 "$scratch"
# The engine's own limits may exceed what it can set here.
limits=(--ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=4096:4096)
trainer=
finish() {
  [ -z "$trainer" ] || kill "$trainer" 2>/dev/null || true
  # With what a build that was ended has left.
  engine ps --all --external --quiet | while read -r each; do engine rm --force --time 0 "$each" >/dev/null 2>&1 || true; done
  rm -rf "$scratch"
  [ -z "${root-}" ] || cleanup
}
trap finish EXIT

# 1. The bases: Debian as debootstrap makes it, and what the build takes of a CUDA Toolkit, when this machine has one.
if ! engine image exists localhost/pinfeed-base; then
  make_root "$cache"
  trap finish EXIT
  printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-exclude /usr/share/man/*' 'path-exclude /usr/share/locale/*' >"$root/etc/dpkg/dpkg.cfg.d/slim"
  rm -rf "$root"/usr/share/{doc,man,locale}/* "$root"/var/lib/apt/lists/* # as Debian's own slim images
  tar -C "$root" -c . | engine import --quiet - localhost/pinfeed-base >/dev/null
fi
cuda=localhost/pinfeed-base
toolkit=$(realpath -q "${CUDA_HOME:-/usr/local/cuda}" || true)
if [ -e "$toolkit/bin/nvcc" ]; then
  cuda=localhost/pinfeed-cuda
  engine image exists $cuda ||
    tar -C / --transform "s|^${toolkit#/}|usr/local/$(basename "$toolkit")|" -ch "${toolkit#/}"/{bin,nvvm,include} | engine import --quiet - $cuda >/dev/null
fi

# 2. The build. Compilers run through this machine's ccache; packages come from the cache.
started=$SECONDS
printf 'cache_dir = /ccache\nbase_dir = /source\nhash_dir = false\n' >"$scratch/ccache.conf"
build() {
  engine build --isolation chroot --quiet --layers --format docker --network host --file "$source/Dockerfile" --ignorefile "$source/.dockerignore" \
    --volume "$(ccache --get-config cache_dir):/ccache" --volume "$scratch/ccache.conf:/etc/ccache.conf:ro" \
    --volume "$cache/archives:/var/cache/apt/archives" \
    --build-arg BUILD_BASE=localhost/pinfeed-base --build-arg RUNTIME_BASE=localhost/pinfeed-base --build-arg CUDA=$cuda \
    --build-arg VERSION=1.2.3-test --build-arg REVISION=abc "$@" "$source"
}
build --target build --tag localhost/pinfeed-build:test >"$cache/build.log" 2>&1 || die "the build failed: $(tail -30 "$cache/build.log")"
build --tag "$image" >>"$cache/build.log" 2>&1 || die "the build of the final stage failed: $(tail -30 "$cache/build.log")"
holds "built in $((SECONDS - started)) s, GPU path $([ $cuda = localhost/pinfeed-cuda ] && echo with || echo without) CUDA Toolkit"

# 3. What is in the image, and what is not.
in_image sh -c 'for each in cc gcc g++ c++ ld as make cmake ninja nvcc git; do if command -v $each; then exit 1; fi; done' || fail "a compiler is in the image"
in_image sh -c 'dpkg-query -W -f "\${Package}\n" | grep -e "-dev\$"' && fail "a -dev package is in the image"
[ "$(engine image inspect --format '{{.Config.User}}' $image)" = $user:$user ] || fail "the image's user is not $user, by number"
[ "$(in_image id -un)" = pinfeed ] || fail "user $user is not pinfeed"
label() { engine image inspect --format "{{index .Labels \"org.opencontainers.image.$1\"}}" $image; }
[ "$(label licenses) $(label version) $(label revision)" = "Apache-2.0 1.2.3-test abc" ] || fail "labels: $(label licenses) $(label version) $(label revision)"
size() { echo $(($(engine image inspect --format '{{.Size}}' "$1") / 1000000)); }
added=$(($(size $image) - $(size localhost/pinfeed-base)))
[ $added -le 60 ] || fail "the image adds $added MB to its base"
holds "the image is $(size $image) MB, $added MB more than its base; no compiler, user $user, labels"

# 4. What goes wrong first: the folder is not mounted, or is not the daemon's.
refused() {
  local want=$1 status=0
  shift
  engine run --rm "${limits[@]}" --read-only --network none "$@" $image >"$scratch/refused" 2>&1 || status=$?
  [ $status -eq 2 ] && [ "$(wc -l <"$scratch/refused")" -eq 1 ] && grep -q -- "$want" "$scratch/refused" ||
    fail "status $status, and not one line with '$want': $(cat "$scratch/refused")"
}
refused "in a container, mount the host's"
mkdir "$scratch/roots"
refused "Permission denied" --volume "$scratch/roots:/run/pinfeed"
holds "without its folder, or with one of root's, it says so in one line and ends with status 2"

# 5. A daemon as operators start it; trainers outside, from the packages of the build.
engine create --name packages localhost/pinfeed-build:test true >/dev/null
engine cp packages:/source/build/packages "$scratch/packages"
for each in libpinfeed0 python3-pinfeed; do dpkg-deb -x "$scratch"/packages/${each}_*.deb "$scratch/client"; done
mkdir "$scratch/data"
install -d -o $user -g $user -m 0750 "$scratch/sockets"
/usr/bin/python3 -c 'import numpy, sys; numpy.save(sys.argv[1], numpy.arange(4000).reshape(1000, 4))' "$scratch/data/x.npy"
cat >"$scratch/read.py" <<'END'
import pinfeed

with pinfeed.open("/data", batch_size=10, framework="numpy") as feed:
    while True:
        for batch in feed:
            print(int(batch.x[0, 0]), flush=True)
END
start_daemon() {
  local name=$1
  shift
  engine run --detach --name "$name" "${limits[@]}" --read-only --cap-drop all --security-opt no-new-privileges --memory 1g --stop-timeout 40 \
    --volume "$scratch/sockets:/run/pinfeed" --volume "$scratch/data:/data:ro" "$@" $image \
    --allowed-roots /data --http-listen 127.0.0.1:0 >/dev/null
  await engine healthcheck run "$name"
}
# A process outside of every container, for which the folder is /run/pinfeed; its groups decide whether it is served.
outside() {
  local groups=$1
  shift
  exec unshare --mount bash -c 'mount -t tmpfs none /run && mkdir /run/pinfeed && mount --bind "$1" /run/pinfeed && shift && exec "$@"' mount "$scratch/sockets" \
    setpriv --reuid $stranger --regid $stranger --groups "$groups" env PYTHONPATH="$scratch/client/usr/lib/python3/dist-packages" \
    PINFEED_ADDRESS=/run/pinfeed/pinfeed.sock PINFEED_LIBRARY="$(find "$scratch/client" -name libpinfeed.so.0)" "$@"
}

# A trainer in a container of its own.
bench_in_container() {
  engine run --rm "${limits[@]}" --read-only --network none --volume "$scratch/sockets:/run/pinfeed:ro" --user $stranger --group-add $user "$@" \
    --entrypoint pinfeed $image bench /data --batch-size 10 --batches 50 >"$scratch/bench" 2>&1 || fail "a trainer in a container: $(cat "$scratch/bench")"
}

start_daemon alone --network none
(outside $user timeout 60 /usr/bin/python3 "$scratch/read.py") >"$scratch/alone" 2>&1 && fail "a trainer whose end the daemon cannot see was served"
grep -q 'PID namespace' "$scratch/alone" || fail "the trainer is not told about the PID namespace: $(tail -3 "$scratch/alone")"
bench_in_container --pid container:alone
engine rm --force --time 40 alone >/dev/null
holds "a trainer that the daemon's PID namespace does not show is refused, and told why; one in a container that shares it is served"

start_daemon daemon --pid host --network host
(outside $stranger timeout 60 /usr/bin/python3 "$scratch/read.py") >"$scratch/strange" 2>&1 && fail "a user who is not in group $user is served"
grep -qi 'permission denied' "$scratch/strange" || fail "a user who is not in group $user is told: $(tail -3 "$scratch/strange")"
mkfifo "$scratch/batches"
outside $user /usr/bin/python3 "$scratch/read.py" >"$scratch/batches" 2>"$scratch/reader.log" &
trainer=$!
exec 5<"$scratch/batches"
next=0
# Reads $1 batches of the running trainer: each the one behind the last.
read_batches() {
  local i line
  for i in $(seq "$1"); do
    read -r -t 60 line <&5 || fail "the trainer got no batch: $(cat "$scratch/reader.log")"
    [ "$line" -eq $next ] || fail "the trainer got the batch that begins with $line, not $next"
    next=$(((next + 40) % 4000))
  done
}
read_batches 250
holds "a trainer outside, in group $user, reads through the mounted folder; others are not served"

engine exec daemon pinfeed status >"$scratch/status" || fail "pinfeed status in the container: $(cat "$scratch/status")"
grep -q 'read\.py' "$scratch/status" || fail "pinfeed status shows no session of the trainer's: $(cat "$scratch/status")"
engine exec daemon pinfeed doctor >"$scratch/doctor" || fail "pinfeed doctor in the container: $(cat "$scratch/doctor")"
grep -q 'memfd seals, pidfd, openat2' "$scratch/doctor" || fail "pinfeed doctor: $(cat "$scratch/doctor")"
available=$(engine exec daemon pinfeed status --json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["pool_capacity_bytes"])')
[ "$available" -le $((1 << 28)) ] || fail "the pool, 25%, is $available bytes in a container of 1 GiB"
url=http://127.0.0.1:$(cat "$scratch/sockets/http.port")
/usr/bin/python3 -c 'import sys, urllib.request as r; [r.urlopen(sys.argv[1] + each).read() for each in ("/healthz", "/readyz", "/metrics")]' "$url" || fail "$url does not answer"
holds "status, doctor, health check and probes answer; the pool is a share of the container's memory"

bench_in_container
holds "so does a trainer in another container, with the folder read-only and a PID namespace below the daemon's"

# 6. SIGTERM drains; the trainer goes on with the next container, in the same folder.
engine stop --time 60 daemon >/dev/null
[ "$(engine inspect --format '{{.State.ExitCode}}' daemon)" = 0 ] || fail "exit status after SIGTERM: $(engine inspect --format '{{.State.ExitCode}}' daemon)"
engine logs daemon 2>&1 | grep -i drain >/dev/null || fail "it did not drain"
engine rm daemon >/dev/null
start_daemon daemon --pid host --network none
read_batches 30000
kill "$trainer"
wait "$trainer" || true
trainer=
holds "SIGTERM drains and ends with status 0; the trainer missed no batch"

pid=$(engine inspect --format '{{.State.Pid}}' daemon)
kill -STOP "$pid"
engine healthcheck run daemon >/dev/null 2>&1 && fail "a stopped daemon counts as healthy"
kill -CONT "$pid"
engine healthcheck run daemon >/dev/null || fail "a daemon that goes on does not count as healthy"
holds "the health check fails while the daemon does not answer"

engine image prune --force >/dev/null # layers of earlier builds
