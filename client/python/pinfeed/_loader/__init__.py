# SPDX-License-Identifier: Apache-2.0
"""`DataLoader`: its arguments, iterators and worker processes, and the feed that these fill."""
