"""``make screenshots`` runs this inside the devstack: it takes pictures of the admin's pages from the running demo.

The demo serves the site and harvests. Kafka really rejects the records that are shown as rejected, and the operator
acts in the browser. Only the samples of the last hour, and the ages of what is shown, are invented. The lists are those
that the admin names, so a new or renamed list needs no change here.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
NO_BROWSER = (
    "make screenshots did not find Chromium with chromedriver. Install both, and run it again "
    "(Debian: apt-get install chromium chromium-driver)."
)
START_S, WAIT_S, STOP_S = 180, 90, 30
RATE_S = 12  # the dashboard takes its rates over ten seconds at least


class Demo:
    """`demo.py --serve` in a process of its own."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        program = [sys.executable, "example_project/demo.py", "--heroes", "1000", "--serve", "--port", str(port)]
        self._process = subprocess.Popen(program, cwd=ROOT)

    def is_up(self, browser: Any) -> bool:
        from selenium.common.exceptions import WebDriverException

        if self._process.poll() is not None:
            sys.exit("screenshots: the demo has ended; its output above names the cause.")
        try:
            browser.open(self, "/admin/login/")
        except WebDriverException:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def wait(what: str, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"screenshots: the demo did not reach this state within {timeout_s} s: {what}.")
        time.sleep(0.2)


def take_all(camera: Any) -> None:
    """The operator acts first, because the lists show the results."""
    from example_project.screenshots import scene
    from outbox.models import DeadLetter, Hold

    invoices = Hold.objects.filter(topic="invoices")
    scene.stash_invoices()
    camera.pause("newsletters")
    wait(
        "Kafka has rejected an invoice of each customer twice",
        lambda: invoices.filter(attempts__gt=1).count() == len(scene.CUSTOMERS),
    )
    camera.skip(*scene.CUSTOMERS[:2])
    camera.edit(scene.CUSTOMERS[2], scene.shortened)
    scene.stash_others()
    wait(
        "two invoices are dead letters, one is delivered",
        lambda: DeadLetter.objects.count() == 2 and invoices.count() == 1,
    )
    wait(
        "a pause, a topic and a record without key are held",
        lambda: Hold.objects.exclude(topic="invoices").count() == 3,
    )
    scene.write_last_hour()
    time.sleep(RATE_S)
    scene.slow_down()
    camera.tour()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make screenshots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=IMAGES, help="the folder of the pictures (docs/images)")
    arguments = parser.parse_args()
    from tests.support.browsers import installed

    if installed() is None:
        sys.exit(NO_BROWSER)
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    import django

    django.setup()
    from example_project.screenshots import scene
    from example_project.screenshots.camera import Camera
    from outbox.devstack.ports import reserve
    from tests.browser.site import Browser

    with tempfile.TemporaryDirectory(prefix="outbox-screenshots-", ignore_cleanup_errors=True) as profile:
        demo, browser = Demo(reserve()), Browser(profile)
        try:
            wait("the site answers", lambda: demo.is_up(browser), START_S)
            scene.create_topics(os.environ["OUTBOX_BOOTSTRAP_SERVERS"])
            with scene.steady_flow():
                take_all(Camera(browser, demo, arguments.folder))
        finally:
            browser.quit()
            demo.stop()


if __name__ == "__main__":
    main()
