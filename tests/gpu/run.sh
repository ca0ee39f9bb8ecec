#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# On a machine with a GPU: the promises of the GPU path on the real driver, then its rates. Run from a folder that pack.sh made.
#
#   run.sh [FOLDER FOR INPUTS]
#
# PARTS names what is run, of: compare decode decode_feeds resident resident_rates broadcast every_gpu death frameworks loader batcher copies loops sanitizer bench latency loader_rates wheel peers settings builds doctor trace demo (default: all but wheel, peers, settings and builds, in this order). Every part has a limit of time; a table
# of the parts comes last, and the exit status is 1 when one failed. OUT: where logs and results go. BENCH_PARTS names parts of bench (bench.py has the list), BENCH_GPUS how many GPUs its part gpus takes at once ("1 2 4 8").
# DEVICE: the GPU of the parts decode_feeds, resident, loader, batcher and copies (cuda:0).
# wheel needs the file's path in WHEEL. peers compares with other loaders: PEERS_SITE is the folder that wheels.sh installed them into, PEERS_ARGS are arguments of peers.py. builds compares the builds of the daemon that BUILDS names ("old=PINFEEDD new=PINFEEDD", and arguments of builds.py).
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
inputs=${1:-/tmp/pinfeed-inputs}
out=${OUT:-$here}
parts=${PARTS:-compare decode decode_feeds resident resident_rates broadcast every_gpu death frameworks loader batcher copies loops sanitizer bench latency loader_rates doctor trace demo}
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$out"
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PINFEED_LIBRARY=$here/lib/libpinfeed.so PYTHONPATH=$here/python
table=()
failed=0

chosen() { [[ " $parts " == *" $1 "* ]]; }
note() { table+=("$(printf '%-24s %-8s %5s s  %s' "$1" "$2" "$3" "${4:-}")"); }
# A part or piece of one: its name, its limit in seconds, its command. 124 and 137 mean that it took too long.
piece() {
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  echo "== $name"
  timeout -k 10 "$limit" "$@"
  status=$?
  if [ $status -eq 0 ]; then
    note "$name" ok $((SECONDS - start))
  else
    failed=1
    note "$name" FAILED $((SECONDS - start)) "exit status $status"
  fi
}

address=""
daemon=0
if [ "$parts" != death ] && [ "${parts%_rates}" != resident ]; then
  if { chosen compare || chosen decode || chosen decode_feeds || chosen sanitizer || chosen bench || chosen latency || chosen batcher || chosen broadcast || chosen every_gpu || chosen peers || chosen wheel || chosen settings || chosen builds || chosen trace; } && [ ! -d "$inputs" ]; then
    timeout -k 10 300 python3 "$here/make_inputs.py" "$inputs" || { rm -rf "$inputs"; exit 2; }
  fi
  mkdir -p "$inputs"
  sockets=$(mktemp -d)
  mkfifo "$sockets/ready"
  "$here/bin/pinfeedd" --socket-dir "$sockets" --allowed-roots "$inputs,/tmp" --http-listen off --gpus on --ready-fd 9 9> "$sockets/ready" 2> "$out/pinfeedd.log" &
  daemon=$!
  if ! read -r -t 60 _ < "$sockets/ready"; then cat "$out/pinfeedd.log"; kill "$daemon"; exit 1; fi
  address=$sockets/pinfeed.sock
fi

arrays='"dataset":{"path":"'$inputs'/arrays"},"order":"SHUFFLE"'
jpeg='"dataset":{"path":"'$inputs'/jpeg"},"order":"SHUFFLE"'
crop='{"random_resized_crop":{"size":[224]}},{"random_horizontal_flip":{}}'
normal='{"normalize":{"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}}'
tokens='"dataset":{"path":"'$inputs'/tokens.bin","sequence_length":2048},"order":"SHUFFLE"'
texts='"dataset":{"path":"'$inputs'/texts.jsonl"},"order":"SHUFFLE"'

if chosen compare; then
  piece "same bytes, both backends" 180 "$here/bin/compare_backends" "$address" 20 \
    "{$arrays,\"batch_size\":256}" \
    "{$arrays,\"batch_size\":100,\"image_layout\":\"HWC\",\"transforms\":[{\"random_horizontal_flip\":{}},$normal,{\"to_dtype\":{\"dtype\":\"float16\"}}]}" \
    "{$arrays,\"batch_size\":33,\"transforms\":[{\"random_horizontal_flip\":{}},$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
    "{$jpeg,\"batch_size\":64,\"sample_ids\":true,\"transforms\":[$crop,$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
    "{$jpeg,\"batch_size\":31,\"image_layout\":\"HWC\",\"transforms\":[{\"random_resized_crop\":{\"size\":[121,99]}},{\"random_horizontal_flip\":{}},$normal]}" \
    "{$jpeg,\"batch_size\":16,\"transforms\":[{\"resize\":{\"size\":[97,101]}}]}" \
    "{$texts,\"batch_size\":200}" \
    "{$texts,\"batch_size\":37,\"pad\":[{\"field\":\"list\",\"rows\":8}]}" \
    "{$jpeg,\"batch_size\":100,\"sample_path\":true,\"transforms\":[$crop,$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
    "{$tokens,\"batch_size\":8}"
fi

# The client's decoder without a daemon.
if chosen decode; then piece "JPEG engines" 240 "$here/bin/decode_images" "$inputs/jpeg"; fi

# Images that the GPU decodes, beside the workers'.
if chosen decode_feeds; then piece "feeds that the GPU decodes" 240 python3 "$here/decode_feeds.py" "$address" "$inputs"; fi

# With daemons of its own.
if chosen resident; then piece "resident samples" 180 python3 "$here/resident.py" "$here/bin/pinfeedd"; fi
if chosen resident_rates; then piece "resident samples: rates" 300 python3 "$here/resident_rates.py" "$here/bin/pinfeedd" "$out"; fi

# On all GPUs at once, where there are several.
if chosen broadcast; then piece "one broadcast to all GPUs" 240 python3 "$here/broadcast.py" "$address" "$inputs"; fi

# In one process, whichever GPU is the current one.
if chosen every_gpu; then PINFEED_DAEMON=$here/bin/pinfeedd piece "every GPU at once" 240 python3 "$here/every_gpu.py" "$address" "$inputs"; fi

if chosen death; then
  scribble=()
  nvcc=$(command -v nvcc || echo "$cuda/bin/nvcc")
  if timeout -k 10 120 "$nvcc" -cubin -arch=native -o "$out/scribble.cubin" "$here/scribble.cu"; then
    scribble=(--scribble "$out/scribble.cubin")
  else
    failed=1
    note "kernel of the deaths" FAILED 0 "it does not build: the slots are written by copies instead"
  fi
  piece "promises of death" 300 python3 "$here/death.py" "$here/bin/pinfeedd" "$out" "${scribble[@]}"
fi

if chosen frameworks; then piece "frameworks" 240 python3 "$here/frameworks.py" "$address" "$out"; fi

if chosen loader; then PINFEED_DAEMON=$here/bin/pinfeedd piece "DataLoader" 120 python3 "$here/loader.py"; fi

# An inference server's batches: kills and stops of either side, rates, latency.
if chosen batcher; then piece "Batcher" 300 python3 "$here/batcher.py" "$here/bin/pinfeedd" "$address" "$inputs" "$out"; fi

if chosen copies; then piece "copies" 240 python3 "$here/copies.py" "$out/copies.json"; fi

# In Lightning, beside torchvision v2, in Accelerate: releases that Debian does not have.
if chosen loops; then
  piece "loops of others" 240 python3 "$here/loops.py" "$address" "$inputs"
  PINFEED_DAEMON=$here/bin/pinfeedd ACCELERATE_USE_CPU=true piece "Accelerate" 240 python3 -m pytest -q -p no:cacheprovider "$here/accelerate"
fi

if chosen sanitizer; then
  sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
  if [ -x "$sanitizer" ]; then
    # initcheck takes what another process wrote for uninitialised: what it says of the slots is no fault of the kernel, so it is not run.
    for tool in memcheck racecheck; do
      piece "kernel under $tool" 150 "$sanitizer" --tool "$tool" --error-exitcode 9 "$here/bin/compare_backends" "$address" 2 \
        "{$arrays,\"batch_size\":9,\"transforms\":[{\"random_horizontal_flip\":{}},$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
        "{$arrays,\"batch_size\":5,\"image_layout\":\"HWC\",\"transforms\":[{\"center_crop\":{\"size\":[33,51]}},$normal]}" \
        "{$texts,\"batch_size\":40}" \
        "{$jpeg,\"batch_size\":3,\"transforms\":[{\"resize\":{\"size\":[97,101]}},{\"random_horizontal_flip\":{}}]}"
    done
  else
    echo "== compute-sanitizer is not installed: the kernel was NOT checked"
    note "kernel under sanitizer" SKIPPED 0 "no compute-sanitizer in PATH or $cuda/bin"
  fi
fi

# Beside the DataLoader and the ceilings; what feeding costs a trainer.
if chosen bench; then piece "rates" 900 python3 "$here/bench.py" "$address" "$inputs" "$out" ${BENCH_PARTS:-}; fi

# Where the time of next() goes.
if chosen latency; then piece "steps of next()" 240 python3 "$here/latency.py" "$address" "$inputs"; fi

if chosen loader_rates; then
  PINFEED_DAEMON=$here/bin/pinfeedd piece "rates of the DataLoader" 500 python3 "$here/loader_rates.py" ${LOADER_RATES:---workers 2,16 --device cuda:0} --out "$out/loader_rates.json"
fi

# Installed by pip, with its own daemon.
if chosen wheel; then piece "wheel" 120 python3 "$here/wheel.py" "${WHEEL:?}" "$inputs"; fi

# Beside other loaders, turn by turn.
if chosen peers; then piece "peers" 530 python3 "$here/peers.py" "$address" "$inputs" "$out" ${PEERS_ARGS:-}; fi

# Defaults beside the best values by hand, on daemons of its own.
if chosen settings; then
  piece "settings" 240 python3 "$here/settings.py" --build-dir "$here/demo/build" --inputs "$inputs" --device cuda:0 --rows arrays,jpeg,tokens,texts --rounds 2,5 --limit 180 --out "$out/settings.json" ${SETTINGS_ARGS:-}
fi

# Builds of the daemon in turns, on daemons of its own.
if chosen builds; then piece "builds" 480 python3 "$here/builds.py" "$inputs" "$out" ${BUILDS:?}; fi

# Whether pinning and overlapping pay here; a training loop traced.
if chosen doctor; then piece "doctor" 60 "$here/bin/pinfeed" doctor --address "$address" --plot "$out/doctor.svg"; fi
if chosen trace; then piece "trace" 120 python3 "$here/traced.py" "$address" "$inputs" "$out"; fi

if [ "$daemon" -ne 0 ]; then
  timeout 30 "$here/bin/pinfeed" status --address "$address" --json > "$out/status.json" || failed=1
  kill "$daemon"
  wait "$daemon"
  status=$?
  if [ $status -ne 0 ]; then failed=1; note "the daemon's end" FAILED 0 "status $status"; fi
  grep -E "pinned|feeds GPU|NVML|linger|warning|error" "$out/pinfeedd.log" | tail -40
fi

# With a daemon of its own.
if chosen demo; then
  piece "demo" 120 python3 "$here/demo/examples/demo.py" --build-dir "$here/demo/build"
  cp "$here/demo/build/demo/batch.png" "$out/" || failed=1
fi
echo
printf '%s\n' "${table[@]}"
exit $failed
