"""A real browser for tests; where none is installed they are skipped, and say so."""

import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def opened(address, *, width=1280, height=900):
    """The page at this address, and what it asked for and complained about."""
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("browser tests need Chromium: none is installed")
    quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=quiet)
        try:
            shown = browser.new_page(viewport={"width": width, "height": height})
            heard = {"requests": [], "complaints": []}
            shown.on("request", lambda request: heard["requests"].append(request.url))
            shown.on("console", lambda message: heard["complaints"].append(message.text))
            shown.on("pageerror", lambda error: heard["complaints"].append(str(error)))
            shown.goto(address)
            yield shown, heard
        finally:
            browser.close()
