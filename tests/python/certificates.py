# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, by the openssl command: authorities, and what they sign, of any name and any dates."""
import datetime
import pathlib
import subprocess
from typing import NamedTuple

CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
copy_extensions = copy
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Pair(NamedTuple):
    cert: pathlib.Path
    key: pathlib.Path


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


def self_signed(folder, name, san=None, new_key=NEW_KEY, usage=None):
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    extra = [word for text in (f"subjectAltName={san}" if san else None, usage) if text for word in ("-addext", text)]
    openssl("req", "-x509", *new_key, "-keyout", pair.key, "-out", pair.cert, "-days", 30, "-subj", f"/CN={name}", *extra)
    return pair


class Authority:
    """`of`: the authority above it, if it is not one of its own."""

    def __init__(self, folder, name, of=None, days=(-1, 30)):
        self.folder = folder / name
        self.folder.mkdir()
        (self.folder / "index").touch()
        (self.folder / "config").write_text(CONFIG.format(folder=self.folder))
        usage = "keyUsage=critical,keyCertSign"
        self.cert, self.key = of.sign(name, None, days, "basicConstraints=critical,CA:TRUE", usage) if of else self_signed(self.folder, "ca", usage=usage)

    def sign(self, name, san=None, days=(-1, 30), *extensions):
        """A certificate for the CN `name`, valid from and until so many days from now."""
        stem = f"{name.replace('/', '_')}-{len(list(self.folder.iterdir()))}"
        pair, request = Pair(self.folder / f"{stem}.pem", self.folder / f"{stem}.key"), self.folder / f"{stem}.csr"
        extra = [word for text in ([f"subjectAltName={san}"] if san else []) + [*extensions] for word in ("-addext", text)]
        openssl("req", "-new", *NEW_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}", *extra)
        now = datetime.datetime.now(datetime.timezone.utc)
        start, end = ((now + datetime.timedelta(days=day)).strftime("%Y%m%d%H%M%SZ") for day in days)
        openssl("ca", "-batch", "-notext", "-config", self.folder / "config", "-cert", self.cert, "-keyfile", self.key,
                "-in", request, "-out", pair.cert, "-startdate", start, "-enddate", end)
        return pair
