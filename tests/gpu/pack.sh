#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packs what run.sh needs of a build into a folder that can be carried to a machine with a GPU: stripped programs, the client library, the
# Python package, and the shared libraries that a bare machine lacks.
#
#   pack.sh BUILD FOLDER
#
# BEFORE: a commit, whose Python package is packed too, for latency.py to compare.
set -eu -o pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
folder=$2
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/python"
for program in server/pinfeedd client/cli/pinfeed tests/gpu/compare_backends tests/gpu/decode_images tests/gpu/feed_rate tests/gpu/staged_ceiling bench/decode_ceiling; do
  strip -o "$folder/bin/$(basename "$program")" "$build/$program"
done
strip -o "$folder/lib/libpinfeed.so.0" "$(readlink -f "$build"/client/libpinfeed.so)"
ln -s libpinfeed.so.0 "$folder/lib/libpinfeed.so"
cp "$source"/tests/gpu/{run.sh,make_inputs.py,batcher.py,bench.py,broadcast.py,builds.py,copies.py,every_gpu.py,decode_feeds.py,decode_rates.py,feeding.py,slots.py,costs.py,costs.cu,death.py,driver_memory.py,frameworks.py,latency.py,loader.py,loops.py,peers.py,resident.py,resident_feeds.py,resident_rates.py,several_gpus.py,traced.py,scribble.cu,wheel.py,wheels.sh} "$folder/"
cp "$source"/tests/bench/{report,grid,loader_rates,next_steps,batcher_rates,peers_report,settings,measure,pinfeed_side,tar_shards}.py "$folder/"
cp -r "$source/tests/gpu/contenders" "$folder/"
cp -r "$source/client/python/pinfeed" "$folder/python/"
[ ! -e "$build/client/_quick.abi3.so" ] || strip -o "$folder/python/pinfeed/_quick.abi3.so" "$build/client/_quick.abi3.so"
if [ -n "${BEFORE:-}" ]; then
  mkdir "$folder/before"
  git -C "$source" archive "$BEFORE" client/python/pinfeed | tar -x -C "$folder/before" --strip-components=2
fi
mkdir "$folder/accelerate"
cp "$source/tests/packaging/accelerate/accelerate_test.py" "$folder/accelerate/"
# The demo finds its build and its package where a checkout has them; settings.py finds the build there, too.
mkdir -p "$folder"/demo/{examples,client,build/server,build/client,build/bench}
cp "$source"/examples/*.py "$folder/demo/examples/"
ln -s ../../python "$folder/demo/client/python"
ln -s ../../../bin/pinfeedd "$folder/demo/build/server/pinfeedd"
ln -s ../../../lib/libpinfeed.so "$folder/demo/build/client/libpinfeed.so"
find "$folder/python" "$folder/contenders" -name __pycache__ -prune -exec rm -r {} +
# Everything but the C and C++ runtimes and what comes with the driver: those of the machine itself are newer.
for program in "$folder"/bin/* "$folder"/lib/libpinfeed.so.0; do ldd "$program"; done |
  awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libpinfeed|libcuda)\.so/ {print $3}' | sort -u |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
strip "$folder"/lib/*.so* 2>/dev/null || true
du -sh "$folder"
