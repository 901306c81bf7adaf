"""The page of `costcert explore` in a browser: what its tests share."""

import time

from waiting import HANGS


def until(page, condition):
    """Wait for a condition; Playwright's own way evaluates strings in the page, which its policy forbids."""
    end = time.monotonic() + HANGS
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never true: {condition}"
        page.wait_for_timeout(20)


def ready(page):
    page.wait_for_selector("html[data-ready]")
    settled(page)
    # The curves are complete.
    page.wait_for_load_state("networkidle")


def settled(page):
    """The certificates of this sticker are loaded, for all images and for the one on the page."""
    until(page, "costcert.state.table && costcert.state.anywhere")


def state(page, name):
    return page.evaluate(f"costcert.state.{name}")


def slide(page, name, value):
    page.evaluate(
        """([id, value]) => { const s = document.getElementById(id); s.value = value;
            s.dispatchEvent(new Event("input", {bubbles: true})); }""",
        [name, str(value)],
    )
