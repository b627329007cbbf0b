"""A web server of the test project in a process of its own, and a headless browser that looks at it."""

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.support.browsers import installed
from tests.support.databases import ROOT

ARTIFACTS = ROOT / "artifacts" / "browser"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
USER, PASSWORD = "operator", "secret"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Site:
    """`manage.py runserver` on a database."""

    def __init__(self, url, folder, **environment):
        self.url = url
        self.address = f"127.0.0.1:{free_port()}"
        self.log = Path(folder) / "site.log"
        given = {"DJANGO_SETTINGS_MODULE": "tests.browser.settings", "DATABASE_URL": url}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "django",
                    "runserver",
                    "--noreload",
                    "--insecure",
                    "--skip-checks",
                    self.address,
                ],
                cwd=ROOT,
                env={**os.environ, **given, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/admin/login/", timeout=5) as answer:
                    answer.read()
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.1)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Browser:
    """Headless Chromium. `see` and `find` wait; scripts of the pages are the only ones that run."""

    def __init__(self, folder):
        browser, driver = installed()
        options = Options()
        options.binary_location = browser
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(60)
        self.size("desktop")

    def quit(self):
        self.driver.quit()

    def size(self, name):
        width, height = SIZES[name]
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"},
        )

    def scheme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, name):
        """The whole page, into a folder that git does not see."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        (ARTIFACTS / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def open(self, site, path):
        self.driver.get(f"http://{site.address}{path}")

    def sign_in(self, site, user=USER, password=PASSWORD):
        """Unless that was done before."""
        self.open(site, "/admin/login/?next=/admin/outbox/")
        if not self.find("[name=username]"):
            return
        self.driver.find_element(By.NAME, "username").send_keys(user)
        self.driver.find_element(By.NAME, "password").send_keys(password)
        self.click("input[type=submit]")
        self.see("#site-name, #user-tools")

    def find(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def see(self, selector, text=""):
        """The first element that matches and has the text; waits for it."""
        return self.until(lambda: next((e for e in self.find(selector) if text in e.text), None), f"{selector} {text}")

    def click(self, selector, text=""):
        """Once more where the page has renewed the element meanwhile."""
        self.until(lambda: [self.see(selector, text).click()], f"a click on {selector}")

    def until(self, condition, what="", timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:  # the page has renewed itself meanwhile
                pass
            if time.monotonic() > deadline:
                self.screenshot("failed")
                raise AssertionError(f"{what or condition} was not seen on {self.driver.current_url}:\n{self.text}")
            time.sleep(0.05)

    @property
    def text(self):
        return self.driver.find_element(By.TAG_NAME, "body").text

    def complaints(self):
        """What the console of the browser says: errors of scripts, and what the policy has refused."""
        return [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
