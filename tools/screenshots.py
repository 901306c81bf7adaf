"""Takes the screenshots docs/explorer*.png of `costcert explore --demo` in a headless Chromium.

python tools/screenshots.py
"""

from __future__ import annotations

import io
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from costcert.cli.explore import ExploreOptions, opened
from costcert.explorer.service import create_app
from costcert.explorer.serving import address, listening, server

DOCS = Path(__file__).parents[1] / "docs"
# Name, width and height of the window, colour scheme.
SHOTS = (
    ("explorer.png", 1280, 930, "light"),
    ("explorer-dark.png", 1280, 930, "dark"),
    ("explorer-phone.png", 390, 1060, "light"),
)


def main() -> None:
    session, deployed = opened(ExploreOptions(demo=True))
    socket = listening("127.0.0.1", 0)
    running = server(create_app(session, deployed=deployed))
    threading.Thread(target=running.run, kwargs={"sockets": [socket]}, daemon=True).start()
    while not running.started:
        time.sleep(0.05)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        for name, width, height, colours in SHOTS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            page.goto(address(socket, "127.0.0.1"))
            page.wait_for_selector("html[data-ready]")
            page.wait_for_load_state("networkidle")
            move_to_worst_position(page)
            write(page.screenshot(), DOCS / name)
            page.close()
        browser.close()
    running.should_exit = True


def move_to_worst_position(page: Any) -> None:
    """Move the patch to its worst position on the first image: a rival passes, but the label stays."""
    page.click("#worst")
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(400)


def write(shot: bytes, path: Path) -> None:
    """Write a PNG with a palette, which is much smaller and looks the same."""
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(200, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
