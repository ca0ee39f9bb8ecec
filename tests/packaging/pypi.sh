#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests with packages from PyPI. In: the build, a directory for a virtual environment, a folder here with requirements.txt and tests, more
# tests. Without torch among the requirements, Debian's packages are used beside them. Remove the directory for newer releases.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
[ $# -ge 3 ] || { echo "usage: $0 BUILD DIRECTORY FOLDER [TEST...]" >&2 && exit 2; }
build=$(realpath "$1") tools=$(realpath -m "$2") tests=$here/$3
shift 3

wanted=$(cat "$tests/requirements.txt")
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "$wanted" ]; then
  mkdir -p "$tools"
  "${PYTHON:-/usr/bin/python3}" -m venv $(grep -qx torch <<<"$wanted" || echo --system-site-packages) "$tools/python"
  "$tools/python/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement "$tests/requirements.txt"
  echo "$wanted" >"$tools/requirements"
fi
"$tools/python/bin/python3" -m pip list --disable-pip-version-check 2>/dev/null | grep -E "^($(sed 's/=.*//' "$tests/requirements.txt" | paste -sd'|')) "
export PYTHONPATH=$here/../../client/python:$here/../python PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu
export HF_HUB_OFFLINE=1 ACCELERATE_USE_CPU=true
export PINFEED_BUILD_DIR=$build PINFEED_LIBRARY=$build/client/libpinfeed.so PINFEED_DAEMON=$build/server/pinfeedd
exec "$tools/python/bin/python3" -m pytest -c "$here/../python/pytest.ini" --rootdir "$here/.." -q --durations 5 "$tests" "$@"
