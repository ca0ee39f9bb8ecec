# SPDX-License-Identifier: Apache-2.0
"""What `import pinfeed` costs and loads, on which machines a wheel's binaries may run, and what the commands become."""

import ast
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pinfeed
import pytest
from pinfeed._base import built_for as _built_for, places

PACKAGE = pathlib.Path(pinfeed.__file__).parent
IMPORT_LIMIT_S = 0.05
MACHINE = os.uname().machine


def run_python(code, *arguments, package=PACKAGE):
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else []), *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_import_is_quick():
    code = "import time; begin = time.process_time(); import pinfeed; print(time.process_time() - begin)"
    assert min(float(run_python(code).stdout) for _ in range(5)) < IMPORT_LIMIT_S


def test_numpy_and_torch_are_imported_when_they_are_needed():
    code = "import sys, pinfeed; {}; print(*({{'numpy', 'torch', 'ctypes'}} & set(sys.modules)))"
    assert run_python(code.format("")).stdout.split() == []
    assert run_python(code.format("pinfeed.open, pinfeed.Feed, pinfeed.Error, pinfeed.Resize")).stdout.split() == ["ctypes"]


def test_every_public_name_is_known_to_type_checkers_and_leads_somewhere():
    (checked,) = (node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    declared = {(alias.name, alias.asname, node.module) for node in checked.body for alias in node.names}
    assert declared == {(name, name, module) for name, module in pinfeed._MODULE_OF_NAME.items()}
    for name in pinfeed.__all__:
        assert getattr(pinfeed, name) is getattr(importlib.import_module(f"pinfeed.{pinfeed._MODULE_OF_NAME[name]}"), name)
        assert name in dir(pinfeed)
    assert pinfeed.transforms.Resize is pinfeed.Resize
    with pytest.raises(AttributeError, match="module 'pinfeed' has no attribute 'opne'"):
        pinfeed.opne


def copy_of_package(folder, built_for=None):
    package = folder / "site-packages" / "pinfeed"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    if built_for:
        (package / "built-for").write_text(built_for)
    return package


def test_a_wheel_for_this_machine_is_imported(tmp_path):
    done = run_python("import pinfeed", package=copy_of_package(tmp_path, f"{MACHINE} 2.17\n"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("built_for", "said"),
    [
        (f"{MACHINE} 99.1\n", f"built for Linux on {MACHINE} with glibc 99.1 or later, and this system has glibc [0-9.]+; install one"),
        ("riscv128 2.34\n", f"built for Linux on riscv128 with glibc 2.34 or later, and this machine is {MACHINE}; install one"),
    ],
)
def test_a_wheel_for_another_machine_says_what_it_needs(tmp_path, built_for, said):
    done = run_python("import pinfeed", package=copy_of_package(tmp_path, built_for))
    assert re.search(f"^ImportError: .*{said}", done.stderr.splitlines()[-1])


def test_other_systems_and_c_libraries_are_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _built_for._fault(MACHINE, "2.17") == "this system is darwin"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert _built_for._fault(MACHINE, "2.17") == "this Python is a 32-bit program"
    monkeypatch.undo()

    def unknown(_name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    assert _built_for._fault(MACHINE, "2.17") == "this Python runs on another C library"


@pytest.mark.parametrize(("here", "fits"), [("2.33", False), ("2.34", True), ("2.4", False), ("2.100", True), ("3.0", True), ("2.34.9000", True)])
def test_versions_of_glibc_are_compared_as_numbers(monkeypatch, here, fits):
    monkeypatch.setattr(os, "confstr", lambda _name: f"glibc {here}")
    assert (_built_for._fault(MACHINE, "2.34") is None) == fits


def put_program(package, name, text):
    (package / "bin").mkdir(exist_ok=True)
    (package / "bin" / name).write_text("#!/bin/sh\n" + text)
    (package / "bin" / name).chmod(0o755)


def test_the_commands_become_the_programs(tmp_path):
    package = copy_of_package(tmp_path)
    put_program(package, "pinfeed", 'echo "$$ $*"; grep SigIgn /proc/$$/status; exit 7\n')
    put_program(package, "pinfeedd", "echo the daemon\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "pinfeed", "status", "--address", "a b"], env={"PYTHONPATH": str(package.parent)}, stdout=subprocess.PIPE, text=True
    )
    said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 7
    assert said[0] == f"{process.pid} status --address a b"
    ignored = int(said[1].split()[1], 16)
    assert not ignored & (1 << 12 | 1 << 24), "Python ignores SIGPIPE and SIGXFSZ; programs must not"
    assert run_python("from pinfeed.__main__ import daemon; daemon()", package=package).stdout == "the daemon\n"


def test_a_command_without_its_program_says_so(tmp_path):
    done = run_python("", "-m", "pinfeed", package=copy_of_package(tmp_path))
    assert done.returncode == 1
    assert re.fullmatch(r"pinfeed: the program is not in \S+/site-packages/pinfeed, .*install the wheel.*\n", done.stderr)


def test_programs_are_looked_for_in_installed_trees_but_not_among_the_commands_of_an_environment(tmp_path, monkeypatch):
    for folder, found in (("lib/python3/dist-packages", True), ("lib/python3.11/site-packages", False)):
        root = tmp_path / folder.replace("/", " ")
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "pinfeed").write_text("")
        monkeypatch.setattr(places, "PACKAGE", root / folder / "pinfeed")
        assert places.program("pinfeed") == (str(root / "bin" / "pinfeed") if found else None)


def test_the_package_declares_both_commands():
    pyproject = (places.source_tree() / "client" / "python" / "pyproject.toml").read_text()
    scripts = dict(re.findall(r'^(\w+) = "pinfeed\.__main__:(\w+)"$', pyproject, flags=re.MULTILINE))
    assert scripts == {"pinfeed": "tool", "pinfeedd": "daemon"}
    main = importlib.import_module("pinfeed.__main__")
    assert all(callable(getattr(main, name)) for name in scripts.values())


QUEUES = "import os; before = os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'); {}; import pinfeed; from pinfeed._feed import gpu_queues; \
print(before, os.environ['CUDA_DEVICE_MAX_CONNECTIONS']); gpu_queues.warn_of_few()"


def test_the_import_asks_for_all_hardware_queues_of_the_gpu():
    done = run_python(QUEUES.format("pass"))
    assert (done.stdout, done.stderr) == ("None 32\n", "")


def test_a_number_of_queues_that_the_user_chose_is_kept_and_named():
    done = run_python(QUEUES.format("os.environ.update(CUDA_DEVICE_MAX_CONNECTIONS='1'); before = '1'"))
    assert done.stdout == "1 1\n"
    assert "CUDA_DEVICE_MAX_CONNECTIONS is 1, so streams wait for one another" in done.stderr


@pytest.mark.parametrize("initialised", [False, True])
def test_an_import_after_cuda_was_initialised_says_so(tmp_path, initialised):
    (tmp_path / "cuda.c").write_text(f"int cuDeviceGetCount(int* count) {{ *count = 1; return {0 if initialised else 3}; }}\n")
    subprocess.run(["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    done = run_python(QUEUES.format(f"import ctypes; ctypes.CDLL({str(tmp_path / 'libcuda.so.1')!r}, ctypes.RTLD_GLOBAL)"))
    assert done.stdout == "None 32\n"
    assert ("CUDA had been initialised when pinfeed was imported" in done.stderr) == initialised
