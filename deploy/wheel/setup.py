# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel in the folder that build.sh has filled: for one platform, but for every Python: the one binary
that uses Python is left alone by those before 3.11.

In: pyproject.toml; data/, from help_pages.py; $PINFEED_PLATFORM, the platform's tag.
"""
import os

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True  # else the binaries would be installed among files for every platform


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ["PINFEED_PLATFORM"]


DATA = {"bash-completion/completions": "pinfeed", "man/man1": "pinfeed.1", "man/man8": "pinfeedd.8"}
setup(
    distclass=PlatformDistribution,
    cmdclass={"bdist_wheel": PlatformWheel},
    data_files=[(f"share/{folder}", [f"data/{name}"]) for folder, name in DATA.items()],
)
