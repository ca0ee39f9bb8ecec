#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An HTTP image classifier: POST an image to /classify and get its class.

    examples/classify_server.py model                # the model, one process per GPU
    examples/classify_server.py http --port 8000     # any number of these
    curl --data-binary @cat.jpg http://127.0.0.1:8000/classify

The "model" here tells the brightest colour channel, so that it needs nothing but pinfeed and NumPy.
"""

import argparse
import contextlib
import http.server

import numpy

import pinfeed

NAME = "classify-server"
CLASSES = ("red", "green", "blue")


def serve_model() -> None:
    transforms = [pinfeed.Resize(64), pinfeed.CenterCrop(64), pinfeed.ToDtype("float32", scale=True)]
    with pinfeed.Batcher(NAME, transforms=transforms, max_batch=64, max_delay=0.005, framework="numpy") as batcher:
        print("the model is ready", flush=True)
        for batch in batcher:
            scores = numpy.asarray(batch.inputs).mean(axis=(2, 3))  # of [requests, 3, 64, 64]
            batch.answer(scores.astype(numpy.float32))


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # connections that wait to be accepted: many clients may come at once


class Handler(http.server.BaseHTTPRequestHandler):
    client: pinfeed.BatcherClient
    deadline: float  # seconds from a request to its class
    timeout = 10  # seconds for each read: a client that sends no more is dropped

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", "0"))
            if not 0 < length <= 512 * 1024:
                return self.reply(413, "an image of 1 byte to 512 KiB is possible")
            image = self.rfile.read(length)
            if len(image) < length:
                return None  # the client has left
            if self.path != "/classify":
                return self.reply(404, "POST an image to /classify")
            scores = numpy.frombuffer(self.client.submit(image, deadline=self.deadline, timeout=0.5).result(), numpy.float32)
        except pinfeed.DeadlineExceededError as error:
            return self.reply(504, str(error))
        except (pinfeed.ResourceExhaustedError, pinfeed.UnavailableError) as error:
            return self.reply(503, str(error))
        except (pinfeed.Error, ValueError) as error:
            return self.reply(400, str(error))
        except ConnectionError:
            return None  # the client has left
        self.reply(200, CLASSES[int(scores.argmax())])

    def reply(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        with contextlib.suppress(ConnectionError):  # the client has left
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Logs nothing for each request."""


def serve_http(port: int, deadline: float) -> None:
    Handler.deadline = deadline
    with pinfeed.BatcherClient(NAME, in_flight=64) as Handler.client, Server(("127.0.0.1", port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/classify is ready", flush=True)
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("model", "http"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--deadline", type=float, default=2.0, metavar="SECONDS", help="a request that takes longer is given up (504)")
    arguments = parser.parse_args()
    if arguments.role == "model":
        serve_model()
    else:
        serve_http(arguments.port, arguments.deadline)


if __name__ == "__main__":
    main()
