"""Pages and links of the site that lie outside docs/; on GitHub the same links lead to the files."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site needs them; a linked file of the repository becomes part of the site."""
    here = page.file.src_uri
    home = posixpath.dirname(here if here in PAGES else f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(home, link[1]))
        if not (ROOT / target).is_file():
            return link[0]
        place = target.removeprefix("docs/")
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
        return f"]({posixpath.relpath(place, posixpath.dirname(here))}{link[2] or ''})"

    # `python torch` tells the tests what a block needs; the highlighter knows only the language.
    return LINK.sub(moved, re.sub(r"^```python \w+$", "```python", markdown, flags=re.MULTILINE))
