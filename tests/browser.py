"""A real browser for tests; where none is installed they are skipped."""

import shutil
from contextlib import contextmanager

import pytest

# Milliseconds for whatever a test waits for, far more than it takes on a busy machine.
LONG = 300_000


@contextmanager
def opened(address, *, width=1280, height=900, scheme="light"):
    """The page at this address, light or dark, and a record of its requests, console messages and errors."""
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("browser tests need Chromium: none is installed")
    quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=quiet, timeout=LONG)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(LONG)
            record = {"requests": [], "complaints": []}
            page.on("request", lambda request: record["requests"].append(request.url))
            page.on("console", lambda message: record["complaints"].append(message.text))
            page.on("pageerror", lambda error: record["complaints"].append(str(error)))
            page.goto(address)
            yield page, record
        finally:
            browser.close()
