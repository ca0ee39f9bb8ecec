# SPDX-License-Identifier: Apache-2.0
"""Loaders that peers.py puts side by side: what each is, and the process that runs one and measures it."""
