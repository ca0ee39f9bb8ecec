# SPDX-License-Identifier: Apache-2.0
"""Where the files under test lie."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
