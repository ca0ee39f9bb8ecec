# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser: it shows what the daemon says, keeps up with it, runs nothing that a client says, and tells when the daemon is gone.

PINFEED_SCREENSHOTS=FOLDER keeps pictures of it.
"""
import os
import pathlib
import re
import signal
import threading

import numpy
import pinfeed
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from service_manager import stopped_thread, thread_of
from watched import Trainer, get, port_of, status

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("PINFEED_BUILD_DIR") or ROOT / "build" / "release")
DESKTOP, PHONE = (1280, 900), (390, 844)
HOSTILE = "<img src=x onerror=\"pwned=1\"><script>pwned=1</script>'\"&amp;\\u003cb\\u003e</div>"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def show(browser, daemon, size=DESKTOP, dark=False):
    """Opens the page as a window of that size would show it."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    browser.get_log("browser")
    browser.get(f"http://127.0.0.1:{port_of(daemon)}/")
    await_that(browser, lambda: text(browser, "state") == "ready")


def await_that(browser, holds):
    WebDriverWait(browser, 60, poll_frequency=0.1).until(lambda _: holds())


def text(browser, name):
    return browser.find_element(By.ID, name).text


def texts(browser, selector):
    return [node.text for node in browser.find_elements(By.CSS_SELECTOR, selector)]


def shown(browser, name):
    return browser.find_element(By.ID, name).is_displayed()


def picture(browser, name):
    folder = os.environ.get("PINFEED_SCREENSHOTS")
    if folder:
        height = browser.execute_script("return document.documentElement.scrollHeight")
        width = browser.execute_script("return innerWidth")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE[0]})
        browser.save_screenshot(f"{folder}/{name}.png")


def settled(daemon):
    """The status, once nothing changes any more: both trainers have stopped and every slot is lent."""
    before = status(daemon)
    while True:
        now = status(daemon)
        if now["uptime_seconds"] == before["uptime_seconds"]:  # the same page again: it is kept for a moment
            continue
        if len(now["feeds"]) == 2 and all(set(feed["slot_states"]) == {"l"} for feed in now["feeds"]) and totals_of(now) == totals_of(before):
            return now
        before = now


def slots(browser):
    return ["".join(cell.text for cell in feed.find_elements(By.CSS_SELECTOR, ".slots li")).lower() for feed in browser.find_elements(By.CSS_SELECTOR, ".feed")]


def totals_in(browser):
    return [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:batches|samples|bad samples|refusals)", text(browser, "totals"))]


def totals_of(now):
    return [now[name] for name in ("batches", "samples", "bad_samples", "refusals")]


def test_page_shows_the_numbers_of_the_daemon_and_keeps_up(browser, start, data):
    daemon = start("--gpus", "off")
    show(browser, daemon)
    await_that(browser, lambda: shown(browser, "none"))
    assert "ready" == text(browser, "state") and totals_in(browser) == [0, 0, 0, 0]
    photos, numbers = Trainer(daemon, data / "photos", "train.py", batch_size=8, images=True), Trainer(daemon, data / "numbers.npy", "eval.py", batch_size=16)
    assert (photos.take(3), numbers.take(2)) == (24, 32)
    for round_, trainer in enumerate((numbers, photos)):  # the page follows without being loaded again
        now = settled(daemon)
        await_that(browser, lambda: totals_in(browser) == totals_of(now))
        await_that(browser, lambda: slots(browser) == [feed["slot_states"] for feed in now["feeds"]])
        assert not shown(browser, "none")
        assert sorted(texts(browser, ".feed .name")) == sorted(["photos", "train.py", "numbers.npy", "eval.py"])
        for feed, card in zip(now["feeds"], browser.find_elements(By.CSS_SELECTOR, ".feed")):
            (session,) = feed["sessions"]
            line = card.find_element(By.CSS_SELECTOR, ".session .facts").text
            assert f"session {session['id']} " in line and f"pid {session['pid']} " in line and f"{session['batches']:,} batches" in line
            assert f"{session['slots_ready']} ready, {session['slots_held']} held" in line
        used = now["pool_used_bytes"]
        assert f"{used / 2**20:.1f} MiB of 256 MiB" == text(browser, "pool-text")
        assert "2 sessions on 2 feeds" in text(browser, "sessions") and text(browser, "workers") == "0 of 2 busy"
        # All slots are full: the daemon waits for the trainers. Within the window that is what the page says.
        await_that(browser, lambda: all("the trainer is the slower side" in line for line in texts(browser, ".verdict")))
        if round_ == 0:
            trainer.take(12)  # clients ring for several batches at once
            await_that(browser, lambda: settled(daemon)["batches"] > now["batches"])
    photos.leave()
    await_that(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, ".feed")) == 1)
    numbers.leave()
    await_that(browser, lambda: shown(browser, "none") and not slots(browser))
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    resources = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert set(resources) <= {f"http://127.0.0.1:{port_of(daemon)}/status.json", "data:,"}


def test_feeds_of_one_name_are_told_apart(browser, start, data, tmp_path):
    daemon = start("--gpus", "off")
    for kind, samples in (("imagenet", 640), ("cifar", 320)):
        folder = tmp_path / kind / "train"
        folder.mkdir(parents=True)
        numpy.save(folder / "image.npy", numpy.zeros((samples, 8), "u1"))
    trainers = []
    for kind, options in (("imagenet", {"batch_size": 64, "shuffle": True}), ("cifar", {"batch_size": 16}), ("cifar", {"batch_size": 16})):
        trainers.append(Trainer(daemon, tmp_path / kind / "train", "resnet.py", **options))
        trainers[-1].take(1)  # one after the other, so that the feeds' numbers are known
    show(browser, daemon)
    await_that(browser, lambda: len(slots(browser)) == 3)
    assert texts(browser, ".feed h2") == ["train"] * 3
    numbers = [feed["id"] for feed in status(daemon)["feeds"]]
    assert texts(browser, ".whose") == [f"feed {number} of resnet.py" for number in numbers] and len(set(numbers)) == 3
    facts = [line.split(" · ")[0] for line in texts(browser, ".feed > .row .facts")]
    assert facts == ["640 samples in batches of 64, shuffled"] + ["320 samples in batches of 16, in order"] * 2
    picture(browser, "feeds-of-one-name")
    for trainer in trainers:
        trainer.leave()


def test_a_batcher_without_requests_and_a_group_without_members_are_not_slow(browser, start, data):
    daemon = start("--gpus", "off")
    batcher = pinfeed.Batcher("model", input=("float32", (3,)), max_batch=32, framework="numpy", address=daemon.address)

    def consume():
        with pytest.raises(pinfeed.Error, match="closed by another thread"):
            next(iter(batcher))

    consumer = threading.Thread(target=consume)
    consumer.start()
    show(browser, daemon)
    await_that(browser, lambda: texts(browser, ".feed .verdict") == ["the batcher waits for requests"])
    assert texts(browser, ".feed > .row .facts")[0].startswith("0 requests in batches of at most 32 · queue")
    with pinfeed.open(data / "numbers.npy", batch_size=16, framework="numpy", address=daemon.address, share="broadcast", group="g", group_size=3):
        await_that(browser, lambda: texts(browser, ".feed .verdict") == ["the batcher waits for requests", "1 of 3 members are there"])
        picture(browser, "batcher-and-group")
    batcher.close()
    consumer.join()
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_nothing_that_a_client_says_is_run(browser, start, data):
    daemon = start("--gpus", "off")
    show(browser, daemon)
    trainer = Trainer(daemon, data / "numbers.npy", HOSTILE, batch_size=16)
    trainer.take(1)
    await_that(browser, lambda: HOSTILE in texts(browser, ".session .name"))
    assert not browser.find_elements(By.TAG_NAME, "img") and len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert browser.execute_script("return typeof window.pwned") == "undefined"
    # And were something to get into the page, the policy would keep it from running.
    browser.execute_script("""
        document.body.insertAdjacentHTML("beforeend", '<img src="/x" onerror="pwned=1"><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>');
        const script = document.createElement("script"); script.textContent = "pwned=1"; document.body.append(script);
    """)
    await_that(browser, lambda: len([entry for entry in browser.get_log("browser") if "Content Security Policy" in entry["message"]]) >= 1)
    assert browser.execute_script("return typeof window.pwned") == "undefined"
    with get(daemon, "/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Referrer-Policy"] == "no-referrer"
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    trainer.leave()


def test_page_tells_when_the_daemon_is_gone_and_finds_the_next(browser, start, data):
    daemon = start("--gpus", "off")
    port = port_of(daemon)
    show(browser, daemon)
    trainer = Trainer(daemon, data / "numbers.npy", "train.py", batch_size=16)
    trainer.take(1)
    await_that(browser, lambda: len(slots(browser)) == 1)
    assert not shown(browser, "gone")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait(30)
    await_that(browser, lambda: shown(browser, "gone"))
    first = text(browser, "gone")
    assert re.fullmatch(r"disconnected since \d\d:\d\d:\d\d: the daemon cannot be reached. What is below is old.", first)
    assert text(browser, "state") == "disconnected"
    assert "stale" in browser.find_element(By.TAG_NAME, "body").get_attribute("class") and "disconnected" in browser.title
    picture(browser, "disconnected")
    trainer.process.kill()
    trainer.process.communicate()
    start("--gpus", "off", "--http-listen", f"127.0.0.1:{port}")
    await_that(browser, lambda: not shown(browser, "gone"))
    assert browser.title == "pinfeed" and text(browser, "state") == "ready" and not slots(browser)


def test_page_names_the_thread_that_hangs(browser, start, data):
    daemon = start("--gpus", "off", "--workers", "1", "--stuck-timeout", "1s")
    show(browser, daemon)
    trainer = Trainer(daemon, data / "numbers.npy", "train.py", batch_size=16)
    trainer.go()
    assert not shown(browser, "hung")
    with stopped_thread(thread_of(daemon.process.pid, "worker0"), in_read=True):
        await_that(browser, lambda: shown(browser, "hung"))
        assert re.fullmatch(r"worker0 hangs: at sample \d+ of feed \d+ for [\d.]+ s", text(browser, "hung"))
        assert text(browser, "state") == "ready" and "is-warn" in browser.find_element(By.ID, "state").get_attribute("class")
    await_that(browser, lambda: not shown(browser, "hung"))
    trainer.process.kill()
    trainer.process.communicate()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_fits_and_follows_the_colour_scheme(browser, start, data, size):
    daemon = start("--gpus", "off")
    name = "train.py --with a-very-long-name-that-has-no-place-to-break_" + "x" * 50
    trainers = [Trainer(daemon, data / "photos", name, batch_size=8, images=True, step_s=0.05 if size == DESKTOP else 0)]  # slower than the daemon, or faster
    group = {"share": "broadcast", "group": "g", "group_size": 3, "step_s": 0.02}
    trainers += [Trainer(daemon, data / "numbers.npy", f"rank {rank}", batch_size=16, **group) for rank in range(3)]
    for trainer in trainers:
        trainer.go()
    backgrounds = {}
    for dark in (False, True):
        show(browser, daemon, size, dark)
        await_that(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, ".session")) == 4)
        await_that(browser, lambda: "–" not in text(browser, "byte-rate"))
        await_that(browser, lambda: re.fullmatch(r"[3-9] s|10 s", text(browser, "window")) and "measuring" not in browser.find_element(By.TAG_NAME, "main").text)
        wide = browser.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == size[0]
        sticking_out = browser.execute_script("""
            return [...document.querySelectorAll("main *")].filter(node => node.getBoundingClientRect().right > innerWidth + 1).map(node => node.outerHTML.slice(0, 80))""")
        assert not sticking_out
        backgrounds[dark] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        picture(browser, f"{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}")
    assert backgrounds[False] != backgrounds[True]
    for trainer in trainers:
        trainer.leave()
