# SPDX-License-Identifier: Apache-2.0
"""`Batcher` and its clients: requests of other processes, in batches for one model."""
