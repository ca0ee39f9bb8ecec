# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors between this process's memory and its GPUs."""
