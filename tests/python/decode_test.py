# SPDX-License-Identifier: Apache-2.0
"""The argument `decode` of `open`, and what a state remembers of it, where there is no GPU."""

import logging

import numpy
import pytest
from PIL import Image

import pinfeed

OPTIONS = dict(batch_size=4, transforms=[pinfeed.Resize((6, 6))], framework="numpy")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    random = numpy.random.default_rng(0)
    for number in range(12):
        Image.fromarray(random.integers(0, 256, (30, 40, 3), numpy.uint8)).save(folder / f"{number:02}.jpg")
    return tmp_path


def refused(*args, **options):
    with pytest.raises(pinfeed.Error) as caught:
        pinfeed.open(*args, **{**OPTIONS, **options}).close()
    return str(caught.value)


def test_images_are_decoded_by_the_cpu_unless_asked_otherwise(feeds, photos):
    for options in ({}, {"decode": None}, {"decode": "cpu"}):
        with pinfeed.open(photos, **OPTIONS, **options) as feed:
            assert (feed.decode, feed.decoder) == ("cpu", "")
            assert "decode" not in feed.state_dict()


def test_auto_without_a_gpu_is_the_cpu_and_says_so(feeds, photos, caplog):
    with caplog.at_level(logging.WARNING, "pinfeed"), pinfeed.open(photos, decode="auto", **OPTIONS) as feed:
        assert feed.decode == "cpu"
        assert len(next(iter(feed))) == 2
    assert "images are decoded by the CPU, not by the GPU: the client names no GPU" in caplog.text


@pytest.mark.parametrize("wrong", ["GPU", "auto:", "auto:0", "auto:1001", "auto:7x", "gpu:500", "auto:٣", "", 3, ["gpu"]])
def test_what_it_may_be_is_said(feeds, photos, wrong):
    assert f"decode: {wrong!r} is not " in refused(photos, decode=wrong)
    assert '"auto:787"' in refused(photos, decode=wrong)


def test_gpu_needs_one(feeds, photos):
    text = refused(photos, decode="gpu", zero_copy=True)
    assert 'decode: "gpu" needs a device that gets the batches' in text
    assert "zero_copy: True is not possible" in text
    assert 'decode: "auto:500" needs a device' in refused(photos, decode="auto:500"), "what was decided before is not decided again"


def test_skip_is_refused_with_the_reason(feeds, photos):
    assert "on_bad_sample: skip is not possible" in refused(photos, decode="auto", on_bad_sample="skip")


@pytest.fixture
def state(feeds, photos):
    """As of a feed on a GPU."""
    with pinfeed.open(photos, **OPTIONS) as feed:
        next(iter(feed))
        return {**feed.state_dict(), "decode": "auto:700", "decoder": "nvJPEG on NVIDIA H100"}


def test_state_goes_on_as_it_was_or_not_at_all(photos, state):
    for decode in (None, "auto", "auto:700"):
        text = refused(photos, state=state, decode=decode)
        assert 'decode: "auto:700" needs a device' in text and 'pass decode="cpu" and any_decoder=True' in text
    text = refused(photos, state=state, decode="cpu")
    assert "decode: 'cpu' is not what the state was taken with, 'auto:700'" in text and "any_decoder=True" in text
    with pinfeed.open(photos, **OPTIONS) as feed:
        with pytest.raises(pinfeed.Error, match="'auto:700 by nvJPEG on NVIDIA H100', and this feed has 'cpu'"):
            feed.load_state_dict(state)
        assert len(list(feed)) == 3, "it has not moved"


def test_another_decoder_may_be_allowed(photos, state):
    with pinfeed.open(photos, state=state, decode="cpu", any_decoder=True, **OPTIONS) as feed:
        assert feed.decode == "cpu"
        assert len(list(feed)) == 2
    text = refused(photos, state=state, decode="cpu", any_decoder="yes")
    assert "any_decoder" in text


def test_state_of_the_cpu_stays_with_the_cpu(feeds, photos):
    with pinfeed.open(photos, **OPTIONS) as feed:
        state = feed.state_dict()
    for decode in (None, "auto", "cpu"):
        with pinfeed.open(photos, state=state, decode=decode, **OPTIONS) as feed:
            assert feed.decode == "cpu"
    assert "decode: 'auto:5' is not what the state was taken with, 'cpu'" in refused(photos, state=state, decode="auto:5")


def test_status_says_how_images_are_decoded(daemon, feeds, photos):
    with pinfeed.open(photos, name="decoded", **OPTIONS):
        (feed,) = [feed for feed in pinfeed.status(daemon.address)["feeds"] if any(session["client_name"] == "decoded" for session in feed["sessions"])]
        assert feed["decode"] == "cpu"
