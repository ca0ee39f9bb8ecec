# SPDX-License-Identifier: Apache-2.0
"""Installs a build into an empty directory and uses it from there as a stranger would: the programs, C through pkg-config, Python."""
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = r"""
#include <pinfeed/pinfeed.h>
int main(void) { return pf_version() == PF_VERSION ? 0 : 1; }
"""


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    cmake, build, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        for name in ("pinfeedd", "pinfeed"):
            run(prefix / "bin" / name, "--version")
        library = next(prefix.rglob("libpinfeed.so")).parent
        source, program = pathlib.Path(folder) / "consumer.c", pathlib.Path(folder) / "consumer"
        source.write_text(PROGRAM)
        flags = run("pkg-config", "--cflags", "--libs", "pinfeed", PKG_CONFIG_PATH=str(library / "pkgconfig")).split()
        run(compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program, *flags, f"-Wl,-rpath,{library}")
        run(program)
        package = next(prefix.rglob("pinfeed/__init__.py")).parent.parent
        run(sys.executable, "-c", "import pinfeed", PYTHONPATH=str(package), PINFEED_LIBRARY=str(library / "libpinfeed.so"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
