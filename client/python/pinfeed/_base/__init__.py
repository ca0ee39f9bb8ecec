# SPDX-License-Identifier: Apache-2.0
"""What all other parts need: the C ABI, errors, checks of arguments, and the daemon that is used."""
