#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The documents as a site. In: a directory, which gets `site`, the pages that it is made of, and the tools from PyPI.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
[ $# -eq 1 ] || { echo "usage: $0 DIRECTORY" >&2 && exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")

if ! cmp -s "$here/requirements.txt" "$folder/requirements"; then
  /usr/bin/python3 -m venv --clear "$folder/python"
  "$folder/python/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  cp "$here/requirements.txt" "$folder/requirements"
fi
/usr/bin/python3 "$here/stage.py" "$folder/source"
cd "$here/../.."
NO_MKDOCS_2_WARNING=1 exec "$folder/python/bin/mkdocs" build --strict --site-dir "$folder/site"
