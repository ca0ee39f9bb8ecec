# SPDX-License-Identifier: Apache-2.0
"""Feeds: the spec and session of `open`, the stream of batches, and the tensors that are made of them."""
