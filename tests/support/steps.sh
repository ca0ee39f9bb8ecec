# SPDX-License-Identifier: Apache-2.0
# What scripts share that try things step by step; for `.`. In: $name, of the script, and its fail, which says what went wrong and ends it.

# Says what was seen to hold.
holds() { echo "$name: $*"; }
# Waits (up to 60 s) until a command succeeds.
await() {
  local try
  for try in $(seq 600); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "did not come: $*"
}
