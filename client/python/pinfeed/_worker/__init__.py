# SPDX-License-Identifier: Apache-2.0
"""What the worker processes of a loader do: samples, batches of them, and their places in the order."""
