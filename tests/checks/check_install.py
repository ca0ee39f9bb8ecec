# SPDX-License-Identifier: Apache-2.0
"""Installs a build into an empty directory, moves that, and uses it from there as a stranger would: the programs, C and C++ through
pkg-config and CMake, Python.

    tests/checks/check_install.py CMAKE BUILD_FOLDER
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import numpy

CONSUMER = pathlib.Path(__file__).resolve().parents[1] / "packaging" / "consumer"
ROWS = 100
PYTHON = """
import sys, pinfeed
from pinfeed._base import abi, daemon as _daemon
_daemon.SYSTEM_SOCKET = "/nonexistent"  # this host may have a service; the tree's own daemon is wanted
tree, data = sys.argv[1:]
for path in (abi.load().path, _daemon.find_program()):
    assert path.startswith(tree), path + " is not of " + tree
with pinfeed.open(data, batch_size=7, framework="numpy", epochs=1) as feed:
    print(sum(len(batch.x) for batch in feed))
"""


def run(*command, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PINFEED_", "PYTHONPATH"))}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env={**kept, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect_rows(said, who):
    if said.split() != [str(ROWS)]:
        sys.exit(f"{who}: read {said.strip()} samples of {ROWS}")


def check_product(build):
    """The target `product`, of which packages are made on a new machine, has all that is installed."""
    made = set(re.findall(r"^(.+): ", run("ninja", "-C", build, "-t", "targets", "all"), re.MULTILINE))
    part = set(re.findall(r'label="([^"]+)"', run("ninja", "-C", build, "-t", "graph", "product")))
    named = re.findall(rf'"({re.escape(build)}/[^"]+)"', (pathlib.Path(build) / "cmake_install.cmake").read_text())
    installed = made.intersection(os.path.relpath(os.path.realpath(path), build) for path in named)  # links are made with what they lead to
    if not installed or installed - part:
        sys.exit(f"installed, but not part of `product`: {sorted(installed - part)}")


def check_documents(folder):
    """What operators are told to read and to copy is there, also what the documents for them link to."""
    for name in ("README.md", "docs/configuration.md", "docs/metrics.md", "deploy/prometheus/alerts.yml", "deploy/grafana/pinfeed.json"):
        if not (folder / name).stat().st_size:
            sys.exit(f"{folder / name} is empty")
    for name in ("prolog.sh", "epilog.sh", "task_prolog.sh"):
        if not os.access(folder / "deploy" / "slurm" / name, os.X_OK):
            sys.exit(f"{name}: Slurm cannot run it")
    for overlay in ("cpu", "gpu"):
        (folder / "deploy" / "kubernetes" / "overlays" / overlay / "kustomization.yaml").stat()
    for page in (folder / "docs").glob("*.md"):
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8")):
            of_the_sources = page.name == "protocol.md" and target.startswith(("../client/", "../common/", "../tests/"))
            if "://" not in target and not of_the_sources and not (page.parent / target).exists():
                sys.exit(f"{page}: {target} is not installed")


def use_tree(tree):
    """Uses what is installed in this folder."""
    for name in ("bin/pinfeedd", "bin/pinfeed"):
        run(tree / name, "--version")
    for name in ("share/man/man1/pinfeed.1", "share/man/man8/pinfeedd.8", "share/bash-completion/completions/pinfeed"):
        if not (tree / name).stat().st_size:
            sys.exit(f"{name} is empty")
    check_documents(tree / "share" / "doc" / "pinfeed")
    run("bash", "-n", tree / "share" / "bash-completion" / "completions" / "pinfeed")
    library = next(tree.rglob("libpinfeed.so")).parent
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rows").mkdir()
        numpy.save(folder / "rows" / "x.npy", numpy.arange(ROWS * 4).reshape(ROWS, 4))
        run("cmake", "-S", CONSUMER, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={tree}", "-G", "Ninja")
        run("cmake", "--build", folder / "build")
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "pinfeed", PKG_CONFIG_PATH=str(library / "pkgconfig")))
        run("cc", "-std=c11", CONSUMER / "consumer.c", "-o", folder / "by_pkg_config", *flags, f"-Wl,-rpath,{library}")
        ready, writer = os.pipe()
        os.mkdir(folder / "run", 0o700)
        daemon = subprocess.Popen(
            [tree / "bin" / "pinfeedd", "--socket-dir", folder / "run", "--allowed-roots", folder, "--http-listen", "off", "--pool-bytes", "64MiB"]
            + ["--gpus", "off", "--ready-fd", str(writer)],
            pass_fds=(writer,),
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writer)
        if os.read(ready, 64).strip() != b"ready":
            sys.exit(daemon.communicate()[1])
        for program in (folder / "build" / "in_c", folder / "build" / "in_cpp", folder / "by_pkg_config"):
            expect_rows(run(program, folder / "rows", folder / "run" / "pinfeed.sock"), program.name)
        daemon.terminate()
        said = daemon.communicate(timeout=60)[1]
        if daemon.returncode != 0:
            sys.exit(f"pinfeedd: exit {daemon.returncode}\n{said}")
        package = next(tree.rglob("pinfeed/__init__.py")).parent.parent
        environment = {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
        expect_rows(run(sys.executable, "-c", PYTHON, tree, folder / "rows", **environment), "Python")


def main():
    cmake, build = sys.argv[1:]
    check_product(build)
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder).resolve() / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        use_tree(prefix.rename(prefix.with_name("moved here")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
