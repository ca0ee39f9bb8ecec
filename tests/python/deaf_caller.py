# SPDX-License-Identifier: Apache-2.0
"""What a client of gRPC sends that asks and asks, confirms nothing and reads nothing: HTTP/2 by hand, as no library would do it."""

import struct

from raw_client import SERVICE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS = 1, 4
LARGEST = 2**31 - 1


def h2_frame(kind, flags, stream, payload=b""):
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header without indexing, in plain letters (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def many_calls(streams, method=SERVICE + "GetStatus"):
    """What a client sends that calls so often, for the status if nothing else is said, and lets the daemon answer without end."""
    head = b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        )
    )
    wide = h2_frame(4, 0, 0, struct.pack(">HI", 4, LARGEST)) + h2_frame(8, 0, 0, struct.pack(">I", LARGEST - 65535))
    calls = (h2_frame(1, END_HEADERS, 2 * index + 1, head) + h2_frame(0, END_STREAM, 2 * index + 1, bytes(5)) for index in range(streams))
    return PREFACE + wide + b"".join(calls)
