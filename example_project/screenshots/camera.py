"""The operator in the browser, and the pictures that are taken on the way."""

import base64
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from selenium.webdriver.common.by import By

from example_project.screenshots.small_png import small_png
from tests.browser.site import Browser

USER, PASSWORD = "admin", "admin"  # the demo's
WIDTH, HEIGHT_MIN, HEIGHT_MAX = 1280, 500, 1850

# A lane shows its owner with the name of this machine, which the pictures replace.
_RENAME = """
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode())
    walker.currentNode.nodeValue = walker.currentNode.nodeValue.replaceAll(arguments[0], arguments[1]);
"""
_PIXELS = """
const [encoded, done] = arguments, image = new Image();
image.onload = () => {
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = new Blob([context.getImageData(0, 0, image.width, image.height).data]);
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.readAsDataURL(pixels);
};
image.src = "data:image/png;base64," + encoded;
"""


class Camera:
    """Signed in to the admin of a site."""

    def __init__(self, browser: Browser, site: object, folder: Path) -> None:
        self._browser, self._site, self._folder = browser, site, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics(HEIGHT_MIN)
        browser.sign_in(site, USER, PASSWORD)
        browser.open(site, "/admin/outbox/hold/")
        browser.click("#toggle-nav-sidebar")  # leaves the width to the page

    def _metrics(self, height: int) -> None:
        given = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)

    def shoot(self, name: str) -> None:
        driver = self._browser.driver
        driver.execute_script(_RENAME, f"{socket.gethostname()}_", "worker-1_")
        height = min(HEIGHT_MAX, driver.execute_script("return document.documentElement.scrollHeight"))
        given = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": given})
        pixels = base64.b64decode(driver.execute_async_script(_PIXELS, taken["data"]))
        (self._folder / f"admin-{name}.png").write_bytes(small_png(WIDTH, height, pixels))
        print(f"· admin-{name}.png", file=sys.stderr, flush=True)

    # ---- what the operator does

    def pause(self, topic: str) -> None:
        self._browser.open(self._site, "/admin/outbox/hold/pause/")
        self._browser.see("[name=topic]").send_keys(topic)
        self._submit("pause", "the mail provider asks for a break until 18:00")

    def skip(self, *keys: str) -> None:
        self._browser.open(self._site, "/admin/outbox/hold/")
        for key in keys:
            row = self._browser.see("#result_list tbody tr", key)
            row.find_element(By.NAME, "_selected_action").click()
        self._browser.driver.execute_script("document.querySelector('select[name=action]').value = 'skip'")
        self._browser.click("button[name=index]")
        self._submit("skip", "these customers get the document by mail")

    def edit(self, key: str, change: Callable[[str], str]) -> None:
        self._browser.open(self._site, "/admin/outbox/hold/")
        self._browser.click("#result_list tbody th a", key)
        self._browser.click(".outbox-actions a[href$='/edit/']")
        value = self._browser.see("[name=value]")
        changed = change(value.get_attribute("value"))
        self._browser.driver.execute_script("arguments[0].value = arguments[1]", value, changed)
        self._submit("edit", "a link in place of the document")

    def _submit(self, name: str, why: str) -> None:
        self._browser.see("#id_why").send_keys(why)
        self.shoot(name)
        self._browser.click(".submit-row input[type=submit]")
        self._browser.see(".messagelist .success")

    # ---- the other pages

    def tour(self) -> None:
        """Every list that the admin names, by the first word of its name, and the page of its first row.

        The demo has no consumers, so their lists are left out."""
        self._browser.open(self._site, "/admin/outbox/")
        links = self._browser.find("#content-main th a")
        lists = {
            link.text.split()[0].lower(): link.get_attribute("href")
            for link in links
            if "consumers" not in link.text.lower()
        }
        for name, address in lists.items():
            self._browser.driver.get(address)
            self.shoot(name)
            if rows := self._browser.find("#result_list tbody th a"):
                rows[0].click()
                self.shoot(f"{name}-one")
            if name == "dashboard":
                self._browser.scheme("dark")
                self.shoot(f"{name}-dark")
                self._browser.scheme("light")
