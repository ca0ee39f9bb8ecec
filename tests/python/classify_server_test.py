# SPDX-License-Identifier: Apache-2.0
"""examples/classify_server.py under load: its model and its HTTP server as processes of their own, and many clients."""

import concurrent.futures
import http.client
import io
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from conftest import ROOT

SERVER = ROOT / "examples" / "classify_server.py"
CLASSES = ("red", "green", "blue")
CLIENTS = 48
IN_FLIGHT = 64  # of the server
DEADLINE = 6  # of the server, in seconds: on a busy machine, two are too few for clients that all come at once
TIMEOUT = 20  # far more than the server's own deadlines, and than the test may take


def picture(seed):
    """(an encoded image of some size, its class)"""
    generator = np.random.default_rng(seed)
    kind = int(generator.integers(3))
    height, width = generator.integers(70, 300, 2)
    pixels = generator.integers(0, 120, (height, width, 3), np.uint8)
    pixels[:, :, kind] += 110
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).save(out, ("JPEG", "PNG")[seed % 2])
    return out.getvalue(), CLASSES[kind]


PICTURES = [picture(seed) for seed in range(30)]


def start(address, *arguments):
    """(the process, the first line that it prints)"""
    environment = {**os.environ, "PINFEED_ADDRESS": address}
    process = subprocess.Popen([sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    return process, process.stdout.readline()


class Server:
    def __init__(self, address):
        self.model, ready = start(address, "model")
        assert ready == "the model is ready\n"
        self.http, url = start(address, "http", "--port", "0", "--deadline", str(DEADLINE))
        self.port = int(url.split(":")[2].split("/")[0])

    def ask(self, body, path="/classify"):
        """(status, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        finally:
            connection.close()

    def is_right(self, number):
        content, kind = PICTURES[number % len(PICTURES)]
        answer = self.ask(content)
        assert answer == (200, kind)
        return True

    def begin(self, body, size=None):
        """A connection that has sent its request, of which `size` bytes are announced, and has not read the answer."""
        connection = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
        connection.sendall(f"POST /classify HTTP/1.1\r\nContent-Length: {size or len(body)}\r\n\r\n".encode() + body)
        return connection

    def stop(self):
        for process in (self.http, self.model):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="module")
def server(daemon):
    running = Server(daemon.address)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def clients():
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        yield pool


def test_each_of_many_clients_gets_the_class_of_its_picture(server, clients):
    assert all(clients.map(server.is_right, range(20 * CLIENTS)))


DAMAGED = {
    "a JPEG that is cut off": PICTURES[0][0][: len(PICTURES[0][0]) // 2],
    "a PNG that is cut off": PICTURES[1][0][: len(PICTURES[1][0]) // 2],
    "a PNG with other bytes": PICTURES[1][0][:100] + bytes(100) + PICTURES[1][0][200:],
    "no image": b"no image at all",
    "one byte": b"\xff",
}


def test_damaged_images_are_refused_with_the_reason_and_their_neighbours_are_not(server, clients):
    damaged = list(itertools.islice(itertools.cycle(DAMAGED.items()), 100))
    answers = clients.map(lambda job: server.ask(job[1]) if isinstance(job, tuple) else server.is_right(job), (*damaged, *range(100), *damaged))
    got = list(answers)
    assert all(got[100:200])
    for (what, _), (status, reason) in zip(damaged * 2, got[:100] + got[200:]):
        assert status == 400 and reason.startswith("request "), (what, status, reason)


def test_what_is_not_a_request_is_refused(server):
    assert server.ask(b"") == (413, "an image of 1 byte to 512 KiB is possible")
    assert server.ask(PICTURES[0][0], "/elsewhere")[0] == 404


def test_when_the_model_hangs_clients_are_told_soon_and_served_afterwards(server):
    server.model.send_signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(2 * IN_FLIGHT) as many:
            answers = list(many.map(lambda number: server.ask(PICTURES[number % 30][0]), range(2 * IN_FLIGHT)))
    finally:
        server.model.send_signal(signal.SIGCONT)
    statuses = [status for status, _ in answers]
    # What the server had taken ends at its deadline, and there was no room for the rest.
    assert set(statuses) == {503, 504} and statuses.count(504) >= IN_FLIGHT // 2, statuses
    assert all("in_flight" in reason for status, reason in answers if status == 503)
    assert all("deadline" in reason for status, reason in answers if status == 504)
    assert all(server.is_right(number) for number in range(30))


def leave(connection, reset):
    """As a process leaves that is killed, with an answer that it has not read (`reset`) or without."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_clients_that_leave_in_the_middle_take_no_place_from_others(server, clients):
    generator = random.Random(1)
    content = PICTURES[0][0]

    def come_and_go(number):
        cut = generator.choice((0, 1, len(content) // 2, len(content)))
        leave(server.begin(content[:cut], len(content)), reset=number % 2)
        return server.is_right(number)

    assert all(clients.map(come_and_go, range(4 * IN_FLIGHT)))
    assert server.http.poll() is None and server.model.poll() is None
    assert all(clients.map(server.is_right, range(2 * IN_FLIGHT)))
