#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `pinfeed.DataLoader` in frameworks for training, in their current releases from PyPI. In: the build, a directory for what comes from
# PyPI (several GB: PyPI has PyTorch with CUDA only). Remove the directory for newer releases.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
[ $# -eq 2 ] || { echo "usage: $0 BUILD TOOLS_DIRECTORY" >&2 && exit 2; }
build=$(realpath "$1")
mkdir -p "$2"
tools=$(realpath "$2")

wanted=$(cat "$here/requirements.txt")
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "$wanted" ]; then
  "${PYTHON:-/usr/bin/python3}" -m venv --clear "$tools/python"
  "$tools/python/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  echo "$wanted" >"$tools/requirements"
fi
"$tools/python/bin/python3" -m pip list --disable-pip-version-check 2>/dev/null | grep -E "^($(paste -sd'|' "$here/requirements.txt")) "
export PYTHONPATH=$here/../../../client/python:$here/../../python PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu
export HF_HUB_OFFLINE=1 ACCELERATE_USE_CPU=true
export PINFEED_BUILD_DIR=$build PINFEED_LIBRARY=$build/client/libpinfeed.so PINFEED_DAEMON=$build/server/pinfeedd
exec "$tools/python/bin/python3" -m pytest -c "$here/../../python/pytest.ini" --rootdir "$here" -q "$here"
