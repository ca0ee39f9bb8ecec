#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The loader for Hugging Face Accelerate with Accelerate itself, from PyPI: the last release that works with Debian's PyTorch. In: the
# build, a directory for what comes from PyPI.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
[ $# -eq 2 ] || { echo "usage: $0 BUILD TOOLS_DIRECTORY" >&2 && exit 2; }
build=$(realpath "$1")
mkdir -p "$2"
tools=$(realpath "$2")

wanted=$(cat "$here/requirements.txt")
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "$wanted" ]; then
  /usr/bin/python3 -m venv --clear --system-site-packages "$tools/python"
  "$tools/python/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  echo "$wanted" >"$tools/requirements"
fi
export PYTHONPATH=$here/../../../client/python PYTHONDONTWRITEBYTECODE=1 ACCELERATE_USE_CPU=true
export PINFEED_LIBRARY=$build/client/libpinfeed.so PINFEED_DAEMON=$build/server/pinfeedd
exec "$tools/python/bin/python3" -m pytest -c "$here/../../python/pytest.ini" --rootdir "$here" -q "$here"
