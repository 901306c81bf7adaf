"""Figures as files and as part of a page: the same results give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from costcert.errors import CostcertError
from costcert.reports.style import house_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")

# Only tags are rewritten, never the words between them, in which < and > are escaped.
_TAG = r"<[^<>]+>"
_REFERENCE = r'(?:href="#|url\(#)([^")]+)'


def check_formats(formats: Iterable[str]) -> list[str]:
    wanted = list(dict.fromkeys(formats))
    for each in wanted:
        if each not in FORMATS:
            raise CostcertError(f"figures are written as {', '.join(FORMATS)}, got {each!r}")
    return wanted


def as_bytes(figure: Figure, kind: str) -> bytes:
    if kind == "svg":
        return svg(figure).encode()
    about = {"Title": _words(figure)[0], "Creator": "costcert", "CreationDate": None}
    return _saved(figure, kind, about if kind == "pdf" else {"Software": None}, dpi=200)


def svg(figure: Figure, *, prefix: str | None = None) -> str:
    """One `<svg>` element, whole as a file and ready to stand in an HTML page among others.

    Args:
        prefix: what ids begin with; by default a digest of the drawing, so that figures do not mix.
    """
    drawing = _saved(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None}).decode()
    drawing = drawing[drawing.index("<svg") :].strip()
    # Comments repeat the texts; the style sheet would reach every element of a page, so the root says it.
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("'DejaVu Sans', sans-serif", "sans-serif")
    drawing = _renamed(_leaner(drawing), "PREFIX")
    drawing = _renamed(drawing, prefix or f"f{sha256(drawing.encode()).hexdigest()[:8]}")
    title, note = _words(figure)
    head, _, body = drawing.partition(">")
    size = re.findall(r'(?:width|height|viewBox)="[^"]*"', head)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{" ".join(size)} role="img" aria-label="{escape(title)}" '
        'style="max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(note)}</desc>\n{body.strip()}\n"
    )


def _saved(figure: Figure, kind: str, about: dict[str, Any], **options: Any) -> bytes:
    with house_settings():
        file = BytesIO()
        figure.savefig(file, format=kind, metadata=about, **options)
    return file.getvalue()


def _words(figure: Figure) -> tuple[str, str]:
    """Title and note, which the sheet puts first."""
    words = [text.get_text().replace("\n", " ") for text in figure.texts[:2]]
    return words[0] if words else "Figure", words[1] if len(words) > 1 else ""


def _leaner(drawing: str) -> str:
    """Without groups that say nothing, digits that nobody sees and names that nothing refers to."""
    used = set(re.findall(_REFERENCE, drawing))
    drawing = re.sub(_TAG, lambda tag: _lean_tag(tag[0], used), drawing)
    drawing = re.sub(r">\s+<", ">\n<", _without_idle_groups(drawing))
    # Neighbours of one style say it once; opacity is left alone, for a group has it as a whole.
    return re.sub(
        r'<(?:path|use) [^<>]*( style="(?![^"]*opacity)[^"]*")/>\n(?:<(?:path|use) [^<>]*\1/>\n)+',
        lambda found: f"<g{found[1]}>\n{found[0].replace(found[1], '')}</g>\n",
        drawing,
    )


def _lean_tag(tag: str, used: set[str]) -> str:
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(
        r'(?<= )(?:d|x|y|transform|width|height)="[^"]*"',
        lambda found: re.sub(r"-?\d+\.\d+", lambda number: _rounded(float(number[0])), found[0]),
        tag,
    )
    tag = re.sub(r' d="([^"]*)"', lambda found: f' d="{_shorter(found[1])}"', tag)
    tag = re.sub(r'style="[^"]*"', lambda found: found[0].replace(": ", ":").replace("; ", ";"), tag)
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", tag)


def _rounded(number: float) -> str:
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _shorter(path: str) -> str:
    """Lines by how far they go instead of where to, from rounded point to rounded point: nothing adds up."""
    if re.search(r"[^MLz\d\s.-]", path):
        return " ".join(path.split())
    parts, x, y = [], 0.0, 0.0
    for command, *point in re.findall(r"([MLz])\s*(-?[\d.]+)?\s*(-?[\d.]+)?", path):
        if command == "z":
            parts.append("z")
            continue
        right, down = (float(number) for number in point)
        if command == "M":
            parts.append(f"M{_rounded(right)} {_rounded(down)}")
        elif down == y:
            parts.append(f"h{_rounded(right - x)}")
        elif right == x:
            parts.append(f"v{_rounded(down - y)}")
        else:
            parts.append(f"l{_rounded(right - x)} {_rounded(down - y)}")
        x, y = right, down
    return "".join(parts)


def _without_idle_groups(drawing: str) -> str:
    kept: list[str] = []
    speaks: list[bool] = []
    for part in re.split(r"(</?g\b[^>]*>)", drawing):
        if part == "</g>":
            keep = speaks.pop()
        elif part.startswith("<g") and not part.endswith("/>"):
            keep = part != "<g>"
            speaks.append(keep)
        else:
            keep = part != "<g/>"
        if keep:
            kept.append(part)
    return "".join(kept)


def _renamed(drawing: str, prefix: str) -> str:
    """Every id as the prefix and a number, in the order of appearance."""
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return found[1] + names.setdefault(found[2], f"{prefix}-{len(names) + 1}")

    return re.sub(_TAG, lambda tag: re.sub(r'( id="|href="#|url\(#)([^")]+)', renamed, tag[0]), drawing)
