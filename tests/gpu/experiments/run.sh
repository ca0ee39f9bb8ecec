#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the experiments and runs all of them, or those named ("run.sh visibility identity"), on the first GPU. Needs root for other users
# and namespaces, nvcc and a C++20 compiler. Prints a table last; with OUT set, writes findings.jsonl, the table and the programs' errors there.
# Fails if something on which pinfeed relies did not hold or could not be tried.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$(mktemp -d /tmp/pinfeed-experiments.XXXXXX)}
cuda=${CUDA_HOME:-/usr/local/cuda}
results=${OUT:-$build}
mkdir -p "$build" "$results"
chmod 755 "$build"  # other users run the programs too

# program:arguments, the ones that end contexts with errors last
all=(copy_overlap arena_cost client_killed:vmm-fd client_killed:cuda-ipc exporter_killed dead_recorder identity handle_reuse stopped_client context_cost
     visibility:vmm-fd:small visibility:cuda-ipc:small visibility:vmm-fd:large visibility:cuda-ipc:large read_only)
chosen=()
for run in "${all[@]}"; do
  if [ $# -eq 0 ] || [[ " $* " == *" ${run%%:*} "* ]]; then chosen+=("$run"); fi
done
if [ ${#chosen[@]} -eq 0 ]; then echo "no such experiment: $*; there are: ${all[*]}" >&2; exit 2; fi

flags=(-std=c++20 -O2 -Wall "-I$here" "-I$cuda/include")
libraries=("-L$cuda/lib64/stubs" -lcuda -ldl -pthread)
mapfile -t programs < <(printf '%s\n' "${chosen[@]%%:*}" | sort -u)
{
  "$cuda/bin/nvcc" -cubin -arch=native -o "$build/kernels.cubin" "$here/kernels.cu" &&
  printf '%s\n' gpu worker feed "${programs[@]}" | xargs -P 8 -I{} g++ "${flags[@]}" -c "$here/{}.cc" -o "$build/{}.o" &&
  printf '%s\n' "${programs[@]}" | xargs -P 8 -I{} g++ "$build/{}.o" "$build/gpu.o" "$build/worker.o" "$build/feed.o" "${libraries[@]}" -o "$build/{}"
} || { echo "the experiments do not build" >&2; exit 2; }

export KERNELS=$build/kernels.cubin
failed=0
: > "$results/findings.jsonl"
: > "$results/errors.txt"
for run in "${chosen[@]}"; do
  IFS=: read -r -a words <<< "$run"
  start=$SECONDS
  timeout -k 5 60 "$build/${words[0]}" "${words[@]:1}" >> "$results/findings.jsonl" 2> "$build/errors"
  status=$?
  cat "$build/errors" >> "$results/errors.txt"
  if [ $status -ne 0 ]; then
    failed=1
    echo "$run: exit status $status (1: something does not hold; 3: could not be tried; 124: took over 60 s)"
    cat "$build/errors"
  fi
  echo "$run took $((SECONDS - start)) s"
done

table() {
  sed -E 's/^\{"experiment": "([^"]*)", "case": "([^"]*)", "what": "([^"]*)", "seen": "([^"]*)", "verdict": "([^"]*)"\}$/\1 | \2 | \3 | \4 | \5/' \
    "$results/findings.jsonl"
}
echo
table | tee "$results/table.txt"
exit $failed
