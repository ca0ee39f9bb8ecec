#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part of run.sh inside the system, as a user. In: /wheel, with the wheels and images. Out: a line for each thing that holds.
set -euo pipefail
. /wheel/steps.sh
name=wheel
fail() {
  echo "wheel: FAILED: $*" >&2
  exit 1
}
now() { date +%s%N; }
since() { echo $((($(now) - $1) / 1000000)); } # milliseconds
install_limit_ms=15000
batch_limit_ms=1000
import_limit_ms=50

cd "$HOME"
python3 -m venv environment
snapshot() { find environment -name __pycache__ -prune -o ! -type d -print | sort; } # pip leaves empty folders below share
snapshot >before
export PATH=$PWD/environment/bin:$PATH VIRTUAL_ENV=$PWD/environment PIP_DISABLE_PIP_VERSION_CHECK=1
system="$(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 --version)"

glibc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
if [ "$(printf '%s\n' "$glibc" 2.34 | sort -V | head -1)" != 2.34 ]; then
  pip install --no-index --no-deps /wheel/pinfeed-*.whl >said 2>&1 && fail "pip installs it with glibc $glibc"
  grep -q 'is not a supported wheel on this platform' said || fail "pip: $(cat said)"
  python3 -m zipfile -e /wheel/pinfeed-*.whl unpacked
  for command in "-c 'import pinfeed'" "-m pinfeed status"; do
    said=$(PYTHONPATH=unpacked eval "python3 $command" 2>&1 | tail -1) || true # it must fail
    case "$said" in
      "ImportError: this pinfeed is built for Linux on $(uname -m) with glibc 2.34 or later, and this system has glibc $glibc; "*) ;;
      *) fail "python3 $command: $said" ;;
    esac
  done
  holds "$system: pip refuses it. $said"
  exit 0
fi

started=$(now)
pip install --quiet --no-index --find-links /wheel /wheel/pinfeed-*.whl || fail "pip install"
took=$(since "$started")
[ "$took" -le $install_limit_ms ] || fail "pip install took $took ms"
holds "$system, $(nproc) processors: pip install, with NumPy, took $took ms"

python3 /wheel/ten_lines.py >/dev/null || fail "ten lines of Python" # compiles what pip has not
started=$(now)
first=$(python3 /wheel/ten_lines.py | sed -n 's/^first batch: //p')
took=$(since "$started")
[ "$first" -le $batch_limit_ms ] || fail "the first batch of arrays took $first ms"
holds "ten lines of Python: the first batch from a private daemon after $first ms, all in $took ms"

import_ms=$(for i in 1 2 3 4 5; do
  python3 -c 'import time; begin = time.perf_counter(); import pinfeed, sys; assert not {"numpy", "torch"} & set(sys.modules)
print(int((time.perf_counter() - begin) * 1000))' || fail import
done | sort -n | head -1)
[ "$import_ms" -lt $import_limit_ms ] || fail "import pinfeed takes $import_ms ms"
holds "import pinfeed takes $import_ms ms, and imports neither NumPy nor PyTorch"

python3 - <<'END' || fail "images, and the tool beside them"
import importlib.metadata
import subprocess
import pinfeed

def tool(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}"
    return done.stdout

with pinfeed.open("/wheel/images", batch_size=12, framework="numpy", transforms=[pinfeed.Resize(12), pinfeed.CenterCrop(8)]) as feed:
    images, labels = next(iter(feed))
    assert images.shape == (12, 3, 8, 8) and images.reshape(12, -1).any(1).all() and sorted(labels) == [0] * 4 + [1] * 4 + [2] * 4
    for command in (["pinfeed"], ["python3", "-m", "pinfeed"]):
        assert "/wheel/images" in tool(*command, "status", "--address", feed.address)
    assert len(pinfeed.status(feed.address)["feeds"]) == 1
    tool("pinfeed", "doctor", "--address", feed.address)
    tool("pinfeed", "peek", "/wheel/images", "--address", feed.address)
for program in ("pinfeed", "pinfeedd"):
    assert tool(program, "--version").strip().endswith(pinfeed.__version__)
licences = [file.read_text() for file in importlib.metadata.files("pinfeed") if file.name == "LICENSE"]
assert len(licences) == 1 and "Apache License" in licences[0]
END
holds "JPEG, PNG and WebP; pinfeed status, peek, doctor and python -m pinfeed"

mkdir -m 700 run
coproc pinfeedd --private --lifetime-fd 0 --ready-fd 1 --socket-dir "$PWD/run" 2>daemon.log
read -r -t 30 -u "${COPROC[0]}" said && [ "$said" = ready ] || fail "pinfeedd from the PATH: $(cat daemon.log)"
PINFEED_ADDRESS=$PWD/run/pinfeed.sock python3 /wheel/ten_lines.py >/dev/null || fail "ten lines with a daemon that was started by hand"
daemon=$COPROC_PID
eval "exec ${COPROC[1]}>&-"
wait "$daemon" || fail "pinfeedd ended with status $?: $(cat daemon.log)"
rm -rf run daemon.log
holds "pinfeedd on the PATH serves"

bash -c '. environment/share/bash-completion/completions/pinfeed && complete -p pinfeed' >/dev/null || fail "completion for bash"
[ -s environment/share/man/man1/pinfeed.1 ] && [ -s environment/share/man/man8/pinfeedd.8 ] || fail "manual pages"
grep -q '^  protobuf 3' environment/lib/python3*/site-packages/pinfeed/THIRD_PARTY || fail "the list of what others wrote"
holds "completion, manual pages and licences are there"

pip uninstall --quiet --yes pinfeed numpy
snapshot >after
diff before after || fail "uninstalling left or took something (> left, < taken)"
holds "uninstalled: no file is left"
