"""The documentation is executed: its code runs, its commands parse, its links and pictures are there."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import costcert as cc
from command_line import invoke, parsed
from costcert.cli.commands import COMMANDS
from places import ROOT
from waiting import HANGS

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


class Block(NamedTuple):
    """What stands between two fences: its language, what it needs, its first line's number, its text."""

    language: str
    needs: list[str]
    line: int
    text: str


def blocks(page):
    found = re.finditer(
        r"^```([^\n`]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for block in found:
        language, *needs = block[1].split() or [""]
        yield Block(language, needs, block.string[: block.start(2)].count("\n"), block[2])


def without_blocks(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def script(path):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(name):
    return importlib.util.find_spec(name) is not None


def named(pages):
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


def given(page):
    """What a page's code takes for granted: the README has just made ballots with bench/ballots.py."""
    if page.name != "README.md" or page.parent != ROOT:
        return {}
    ballots, truth = script(ROOT / "bench" / "ballots.py").hard(30)
    return {"ballots": ballots, "truth": truth}


@pytest.mark.parametrize(
    "page", named(page for page in PAGES if any(block.language == "python" for block in blocks(page)))
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """Blocks of a page share their names; `python torch` needs torch, and what follows may need the block."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem, **given(page)}
    left_out, ran = [], 0
    for block in blocks(page):
        if block.language != "python":
            continue
        missing = [need for need in block.needs if not installed(need)]
        if missing:
            left_out.append(f"line {block.line} needs {', '.join(missing)}")
            continue
        # Empty lines before it make a traceback name the line of the page.
        exec(compile("\n" * block.line + block.text, page.name, "exec"), names)
        ran += 1
    assert ran, f"no block of {page.name} could run"
    if left_out:
        pytest.skip(f"{page.name}: ran {ran} blocks, but {'; '.join(left_out)}")


def commands():
    """Every line that calls costcert, as the shell would split it."""
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("", "sh", "bash", "console"):
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                for part in re.sub(r"^\s*\$ ", "", line).split("&&"):
                    words = part.split()
                    if len(words) > 1 and words[0].rpartition("/")[2] == "costcert":
                        place = page.relative_to(ROOT).as_posix()
                        yield pytest.param(
                            shlex.split(part, comments=True)[1:], id=f"{place}: {part.strip()}"
                        )


@pytest.mark.parametrize("words", list(commands()))
def test_commands_parse(words):
    """Against the real command line, without running anything; what is spelled in them can be read too."""
    assert words[0] in COMMANDS, f"there is no costcert {words[0]}"
    if "--help" in words:
        assert words[1:] == ["--help"]
        return
    options = parsed(words)
    patches = getattr(options, "patches", None) or getattr(options, "patch", None) or ""
    for patch in patches.split(","):
        assert not patch or cc.parse_patch(patch)
    ablation = getattr(getattr(options, "ballots", options), "ablation", None)
    assert not ablation or cc.parse_ablation(ablation)


def test_pages_have_commands_and_wrong_ones_are_noticed():
    assert len(list(commands())) >= 20
    assert "unknown option --pach" in invoke(["certify", "votes", "--pach", "2"]).stderr


def anchors(page):
    """What GitHub makes of a page's headings."""
    found = {}
    for heading in re.findall(r"^#{1,6} (.*)$", without_blocks(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {slug if not at else f"{slug}-{at}" for slug, times in found.items() for at in range(times)}


@pytest.mark.parametrize("page", named([*PAGES, ROOT / "CHANGELOG.md"]))
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("folder", ["", "commands", "reference"])
def test_index_names_every_page(folder):
    index = DOCS / folder / "README.md"
    linked = set(re.findall(r"\]\(([\w-]+\.(?:md|ipynb))\)", index.read_text(encoding="utf-8")))
    there = {page.name for page in index.parent.iterdir() if page.suffix in (".md", ".ipynb")}
    assert there - {index.name} == linked - {index.name}


def test_every_command_has_a_page_that_shows_its_help():
    """docs/hooks/commands.py writes the help below this block; the site's navigation lists all pages."""
    pages = {page.stem: page for page in (DOCS / "commands").glob("*.md") if page.name != "README.md"}
    assert pages.keys() == COMMANDS.keys()
    for command, page in pages.items():
        assert f"\n```sh\ncostcert {command} --help\n```\n" in page.read_text(encoding="utf-8")


def test_reference_describes_every_public_name():
    described = []
    for page in (DOCS / "reference").glob("*.md"):
        described += re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(described) == len(set(described))
    missing = {f"costcert.{name}" for name in cc.__all__} - set(described)
    assert not missing, f"add `::: NAME` to a page of docs/reference for each of {sorted(missing)}"
    for name in described:
        if name.count(".") == 1:
            assert name.removeprefix("costcert.") in cc.__all__


def test_the_tutorial_is_kept_without_results():
    """tests/test_site.py executes it; here its code can be read, and it holds nothing but code and text."""
    cells = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    for number, cell in enumerate(code):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        compile("".join(cell["source"]), f"tutorial, code cell {number}", "exec")


def test_pictures_are_up_to_date():
    drawn = script(DOCS / "figures.py").figures()
    for name, picture in drawn.items():
        assert picture == (DOCS / name).read_text(encoding="utf-8"), f"draw {name} again"
    shown = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("theory.md", "guide.md"))
    assert all(f"]({name})" in shown for name in drawn)


def run_example(name, tmp_path, *flags):
    return subprocess.run(
        [sys.executable, *flags, str(ROOT / "examples" / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS,
        env={**os.environ, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
        check=True,
    )


def test_quickstart_needs_no_torch(tmp_path):
    result = run_example("quickstart.py", tmp_path, "-X", "importtime")
    assert "top-1" in result.stdout
    assert "counts as lost" in result.stdout
    assert not re.search(r"\| +(torch|PIL)$", result.stderr, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_demo_model_certifies_and_shows_an_attack(tmp_path):
    if not installed("torch"):
        pytest.skip("examples/demo_model.py needs torch")
    result = run_example("demo_model.py", tmp_path)
    shares = [float(share) for share in re.findall(r"([\d.]+) % certified", result.stdout)]
    assert len(shares) == 3
    assert 50 < shares[-1] == max(shares)
    assert "is proved" in result.stdout
    assert "The deployed classifier predicts" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_extending_registers_is_found(tmp_path, monkeypatch):
    """The page's classes as an installed package, with the page's own entry points."""
    if not installed("PIL"):
        pytest.skip("the data set of docs/extending.md needs Pillow")
    page = list(blocks(DOCS / "extending.md"))
    code = "\n".join(block.text for block in page if block.language == "python")
    (tmp_path / "my_package.py").write_text(code, encoding="utf-8")
    (toml,) = (block.text for block in page if block.language == "toml")
    points = re.sub(r'\[project.entry-points."(.*)"\]', r"[\1]", toml).replace('"', "")
    package = tmp_path / "my_package-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (package / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)

    assert len(cc.parse_dataset("greys:7")) == 7
    ballots, truth = np.zeros((2, 16), int), [0, 1]
    votes = cc.Votes(ballots, truth, num_classes=3, ablation="columns:2", image_size=16)
    certificates = cc.certify(votes, 3, ["top-one", "costcert"])
    assert certificates.min_k("top-one", 3).tolist() == [1, 3]
    assert certificates.rank("top-one", 3).tolist() == [1, 2]


def resizing():
    if not installed("PIL"):
        pytest.skip("docs/resizing.py needs Pillow")
    return script(DOCS / "resizing.py")


@pytest.mark.slow
def test_what_resizing_does_is_as_the_page_says():
    printed = "\n".join(resizing().rows())
    page = (DOCS / "soundness.md").read_text(encoding="utf-8")
    assert f"\n\n{printed}\n\n" in page, "run python docs/resizing.py"
    # The sentence that the table is about.
    assert "| 2 px of 32 | `2/32`: 14 px | bicubic | 24 to 34 |" in printed
    assert "up to 34 × 34, or 40 × 40" in page


def changed_side(how, patch, original, rng):
    """The largest side of what changes at the input, with the patch at any place at all."""
    from PIL import Image

    largest = 0
    clean = rng.integers(100, 156, (original, original), dtype=np.uint8)
    before = how.prepare(Image.fromarray(clean))
    for top, left in np.ndindex((original - patch + 1,) * 2):
        rewritten = clean.copy()
        rewritten[top : top + patch, left : left + patch] = rng.choice([0, 255])
        changed = (how.prepare(Image.fromarray(rewritten)) != before).any(axis=2)
        for axis in (0, 1):
            where = np.flatnonzero(changed.any(axis=axis))
            largest = max(largest, 0 if len(where) == 0 else where[-1] - where[0] + 1)
    return largest


@pytest.mark.parametrize("seed", range(12))
def test_no_patch_of_an_original_reaches_further_than_is_said(seed):
    """Pictures that grow and such that shrink, of all interpolations, whole and cut."""
    rng, tool = np.random.default_rng(seed), resizing()
    interpolation = list(tool.REACH)[seed % 6]
    original, side = int(rng.integers(4, 18)), int(rng.integers(6, 40))
    patch, part = int(rng.integers(1, min(4, original))), float(rng.choice([0.7, 0.875, 0.9, 1.0]))
    how = tool._fitted(side, "center", part, interpolation)
    limit = tool.at_most(how, patch, original)
    found = changed_side(how, patch, original, rng)
    assert tool.measured(how, patch, original)[1] <= limit
    assert limit - 2 <= found <= limit
