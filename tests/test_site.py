"""The documentation as a site: built strictly, with the tutorial executed, and looked at in a browser."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from browser import opened
from costcert.cli.commands import COMMANDS, app
from places import ROOT
from waiting import HANGS

pytestmark = pytest.mark.slow

# A page of each kind: prose, figures, options, signatures, results of code, wide tables.
KINDS = ("index", "theory", "commands/train", "reference/votes", "tutorial", "gtsrb", "benchmarks")
RIGHT_EDGES = "[...document.querySelectorAll('article img')].map(img => img.getBoundingClientRect().right)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: the one that .ci/run has built, or a new one."""
    if "COSTCERT_SITE" in os.environ:
        return Path(os.environ["COSTCERT_SITE"])
    if not all(find_spec(name) for name in ("mkdocs", "material", "mkdocs_jupyter", "mkdocstrings", "torch")):
        pytest.skip("the site needs costcert[docs]")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it hides warnings from --strict.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=HANGS)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_shows_every_option_of_its_command(site, command):
    page = (site / "commands" / f"{command}.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    for argument in app[command].assemble_argument_collection():
        if argument.parse and argument.show:
            assert argument.name in text
    assert COMMANDS[command].EXAMPLES[0].splitlines()[0] in text.replace("&amp;", "&")


def test_the_tutorial_shows_its_results(site):
    page = (site / "tutorial.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<img[^>]+data:image/png", page)) >= 2
    assert "CostCert: top 2" in page
    assert "certified_low" in page
    assert "Traceback" not in page


def test_linked_files_of_the_repository_are_part_of_the_site(site):
    for name in ("examples/quickstart.py", "tools/gtsrb.py"):
        assert (site / name).read_bytes() == (ROOT / name).read_bytes()
    assert (site / "CHANGELOG.html").exists()
    assert not (site / "hooks").exists()


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_and_load_nothing_from_elsewhere(site, width):
    with opened((site / "index.html").as_uri(), width=width) as (page, record):
        for name in KINDS:
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            edges = page.evaluate(RIGHT_EDGES)
            assert all(edge <= width for edge in edges), name
        elsewhere = [url for url in record["requests"] if not url.startswith(("file:", "data:", "blob:"))]
        assert not elsewhere
