# SPDX-License-Identifier: Apache-2.0
"""Trainers to look at, and what a daemon says of them over HTTP."""
import json
import pathlib
import subprocess
import sys
import urllib.request

TRAINER = pathlib.Path(__file__).with_name("trainer.py")


class Trainer:
    """One trainer process. `take` returns the number of samples it got."""

    def __init__(self, daemon, data, name, **options):
        self.process = subprocess.Popen(
            [sys.executable, str(TRAINER), daemon.address, str(data), name, json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def take(self, batches):
        self.go(batches)
        word, samples = self.process.stdout.readline().split()
        assert word == "took"
        return int(samples)

    def go(self, batches=-1):
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()

    def leave(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


def port_of(daemon):
    return int((daemon.folder / "http.port").read_text())


def get(daemon, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{port_of(daemon)}{path}", timeout=20)


def status(daemon):
    return json.load(get(daemon, "/status.json"))
