"""Writes a command's help below `costcert COMMAND --help` on its page, from the command line itself."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from mkdocs.structure.pages import Page

from costcert.cli.commands import COMMANDS, app

HELP = re.compile(r"^```sh\ncostcert (\w+) --help\n```\n", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if not page.file.src_uri.startswith("commands/"):
        return markdown
    return HELP.sub(lambda found: f"{found[0]}\n{help_of(found[1])}\n", markdown)


def help_of(command: str) -> str:
    """Usage, description, examples and options of a command, as Markdown."""
    about, groups, options = sections()[command].partition("\n**")
    # Groups become headings, and the star of 2*square:16 is no emphasis.
    options = re.sub(r"^\*\*(.+)\*\*:$", r"## \1", groups.strip() + options, flags=re.MULTILINE)
    options = re.sub(r"(?<=\w)\*(?=\w)", r"\\*", options)
    examples = "\n".join(COMMANDS[command].EXAMPLES)
    return f"{about.strip()}\n\n## Examples\n\n```sh\n{examples}\n```\n\n{options}"


@cache
def sections() -> dict[str, str]:
    """What cyclopts writes about each command."""
    commands = re.split(r"^## costcert (\w+)$", app.generate_docs(), flags=re.MULTILINE)[1:]
    return dict(zip(commands[::2], commands[1::2], strict=True))
