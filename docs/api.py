"""Writes docs/api.md from the docstrings and signatures of the public names.

python docs/api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import costcert as cc

SECTIONS = {
    "Votes and certificates": ("Votes", "certify", "Certificates"),
    "What mutants keep": ("Columns", "Rows", "Blocks", "Pooled", "parse_ablation"),
    "Where the attacker writes": (
        "Square",
        "Rectangle",
        "Shape",
        "AreaShare",
        "Scaled",
        "Several",
        "parse_patch",
    ),
    "Other promises, and the attack": (
        "exclusion",
        "stability",
        "min_k_all",
        "min_k_any",
        "bounds",
        "Bounds",
        "witness",
        "Witness",
    ),
    "From pictures to votes": ("load_model", "parse_dataset", "vote", "Soft", "Classifier"),
    "What is certified": ("Defence",),
    "In use": ("Deployed",),
    "Tables on disk": ("write_votes", "read_votes", "write_certificates", "read_certificates"),
    "Errors": ("CostcertError",),
}
# For those who add a part of their own (extending.md).
PARTS = (
    ("costcert.defenders", ("find",)),
    ("costcert.defenders.base", ("Defender",)),
    ("costcert.geometry.ablations", ("Segment", "Region", "Part")),
    ("costcert.geometry.touch", ("touched", "Touched")),
    ("costcert.datasets.base", ("Dataset", "ImageError")),
    ("costcert.datasets.arrays", ("ArrayDataset",)),
)
WIDTH = 100


def page() -> str:
    """The whole reference."""
    listed = {name for names in SECTIONS.values() for name in names}
    others = tuple(name for name in cc.__all__ if name not in listed)
    sections = {**SECTIONS, **({"Others": others} if others else {})}
    anchors = numbered([name for names in sections.values() for name in names])
    lines = [
        "# API reference",
        "",
        "The public names of `import costcert as cc`. This page is made by `python docs/api.py` from what",
        "the code says of itself; [guide.md](guide.md) shows how the names are used.",
        "",
        *(
            f"- [{title}](#{anchor(title)}): " + ", ".join(f"[`{name}`](#{anchors[name]})" for name in names)
            for title, names in sections.items()
        ),
        "- [Parts for extensions](#parts-for-extensions)",
    ]
    for title, names in sections.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += entry(name, getattr(cc, name))
    lines += [
        "",
        "## Parts for extensions",
        "",
        "Imported from their modules; see [extending.md](extending.md).",
    ]
    for module, names in PARTS:
        for name in names:
            lines += entry(f"{module}.{name}", getattr(import_module(module), name))
    return "\n".join(lines) + "\n"


def anchor(title: str) -> str:
    return re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")


def numbered(names: list[str]) -> dict[str, str]:
    """Anchors of headings that differ in case alone, as GitHub tells them apart."""
    anchors: dict[str, str] = {}
    for name in names:
        before = sum(other.lower() == name.lower() for other in anchors)
        anchors[name] = name.lower() + (f"-{before}" if before else "")
    return anchors


def entry(name: str, thing: Any) -> list[str]:
    """Heading, signature, docstring and documented members of one name."""
    short = name.rpartition(".")[2]
    lines = ["", f"### {name}", ""]
    if not (isinstance(thing, type) and issubclass(thing, Exception)):
        lines += signature(short, thing)
    lines += prose(thing)
    if isinstance(thing, type):
        for base in thing.__mro__[1:]:
            # Nobody meets a private base by itself, so what it says is said here.
            if base.__name__.startswith("_") and base.__doc__:
                lines += ["", *prose(base)]
        for member_name, member in members(thing):
            lines += ["", f"**`{short}.{member_name}`**", ""]
            if not isinstance(member, property):
                lines += signature(member_name, member)
            lines += prose(member)
    return lines


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """What the class itself documents: a method without a docstring is nobody's business but its own."""
    own = [home for home in reversed(cls.__mro__) if home is cls or home.__name__.startswith("_")]
    homes = {name: home for home in own for name in vars(home)}
    for name, home in homes.items():
        if name.startswith("_"):
            continue
        raw = vars(home)[name]
        member = raw if isinstance(raw, property) else getattr(cls, name)
        if (isinstance(raw, property | classmethod) or inspect.isfunction(raw)) and member.__doc__:
            yield name, member


def signature(name: str, thing: Any) -> list[str]:
    """`name(parameters) -> result`, one parameter a line where it is long."""
    found = inspect.signature(thing)
    result = "" if isinstance(thing, type) else f" -> {spelled(found.return_annotation)}"
    parameters, kind = [], None
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and kind is not parameter.KEYWORD_ONLY:
            parameters.append("*")
        kind = parameter.kind
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = stars.get(kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {spelled(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parameters.append(text)
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= WIDTH:
        return ["```py", line, "```", ""]
    return ["```py", f"{name}(", *(f"    {text}," for text in parameters), f"){result}", "```", ""]


def spelled(annotation: Any) -> str:
    """An annotation as the source spells it."""
    text = getattr(annotation, "__forward_arg__", annotation)
    return text if isinstance(text, str) else getattr(text, "__name__", str(text))


def prose(thing: Any) -> list[str]:
    """The docstring as Markdown, its arguments as a list."""
    lines: list[str] = []
    section = ""
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        found = re.fullmatch(r"    (\w[\w, ]*): (.*)", line) if section == "Args:" else None
        if line in ("Args:", "Returns:"):
            section = line
        elif found:
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"- {names}: {found[2]}")
        elif section == "Args:":
            lines.append(line and f"  {line.strip()}")
        else:
            lines.append(f"Returns {line.strip()}" if section == "Returns:" else line)
    return lines


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(page(), encoding="utf-8")
    print("wrote api.md")
