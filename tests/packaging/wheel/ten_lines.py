# SPDX-License-Identifier: Apache-2.0
import tempfile, time
import numpy
import pinfeed
with tempfile.TemporaryDirectory() as folder:
    numpy.save(f"{folder}/x.npy", numpy.arange(4000).reshape(1000, 4))
    begin = time.perf_counter()
    with pinfeed.open(folder, batch_size=100, shuffle=True, framework="numpy", epochs=1) as feed:
        batches = iter(feed)
        seen = next(batches).x.sum()
        print(f"first batch: {(time.perf_counter() - begin) * 1000:.0f}")
        assert seen + sum(batch.x.sum() for batch in batches) == sum(range(4000))
