#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# On a machine with a GPU: the backends against each other, then the rates of a feed. Run from a folder that pack.sh made.
#
#   run.sh [FOLDER FOR INPUTS]
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
inputs=${1:-/tmp/pinfeed-inputs}
out=${OUT:-$here}
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -d "$inputs" ] || python3 "$here/make_inputs.py" "$inputs" || exit 2

sockets=$(mktemp -d)
mkfifo "$sockets/ready"
"$here/bin/pinfeedd" --socket-dir "$sockets" --allowed-roots "$inputs" --http-listen off --gpus on --ready-fd 9 9> "$sockets/ready" 2> "$out/pinfeedd.log" &
daemon=$!
if ! read -r _ < "$sockets/ready"; then cat "$out/pinfeedd.log"; exit 1; fi
address=$sockets/pinfeed.sock
failed=0

arrays='"dataset":{"path":"'$inputs'/arrays"},"order":"SHUFFLE"'
jpeg='"dataset":{"path":"'$inputs'/jpeg"},"order":"SHUFFLE"'
crop='{"random_resized_crop":{"size":[224]}},{"random_horizontal_flip":{}}'
normal='{"normalize":{"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}}'
tokens='"dataset":{"path":"'$inputs'/tokens.bin","sequence_length":2048},"order":"SHUFFLE"'

echo "== the same bytes on both backends"
"$here/bin/compare_backends" "$address" 20 \
  "{$arrays,\"batch_size\":256}" \
  "{$arrays,\"batch_size\":100,\"image_layout\":\"HWC\",\"transforms\":[{\"random_horizontal_flip\":{}},$normal,{\"to_dtype\":{\"dtype\":\"float16\"}}]}" \
  "{$arrays,\"batch_size\":33,\"transforms\":[{\"random_horizontal_flip\":{}},$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
  "{$jpeg,\"batch_size\":64,\"sample_ids\":true,\"transforms\":[$crop,$normal,{\"to_dtype\":{\"dtype\":\"bfloat16\"}}]}" \
  "{$jpeg,\"batch_size\":31,\"image_layout\":\"HWC\",\"transforms\":[{\"random_resized_crop\":{\"size\":[121,99]}},{\"random_horizontal_flip\":{}},$normal]}" \
  "{$jpeg,\"batch_size\":16,\"transforms\":[{\"resize\":{\"size\":[97,101]}}]}" \
  "{$tokens,\"batch_size\":8}" || failed=1

echo "== beside the DataLoader and the ceilings"
PINFEED_LIBRARY=$here/lib/libpinfeed.so PYTHONPATH=$here/python python3 "$here/bench.py" "$address" "$inputs" "$out" ${BENCH_PARTS:-} || failed=1
echo "== whether pinning and overlapping pay here; a training loop traced"
"$here/bin/pinfeed" doctor --address "$address" --plot "$out/doctor.svg" || failed=1
PINFEED_LIBRARY=$here/lib/libpinfeed.so PYTHONPATH=$here/python python3 "$here/traced.py" "$address" "$inputs" "$out" || failed=1
"$here/bin/pinfeed" status --address "$address" --json > "$out/status.json"
kill "$daemon"
wait "$daemon" || { echo "pinfeedd ended with status $?"; failed=1; }
grep -E "pinned|feeds GPU|warning|error" "$out/pinfeedd.log"
exit $failed
