"""Where the browser of the tests is. Known without its client, which only those tests need."""

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> tuple[str, str] | None:
    """The browser and its driver; None when one of them is missing."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None
