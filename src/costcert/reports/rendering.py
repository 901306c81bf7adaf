"""HTML from the templates in `templates/`, which escape every value."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from costcert.errors import CostcertError


def render(template: str, **values: Any) -> str:
    """The text of a template with these values; a missing value is an error.

    The filter `explained` makes a word a link to its explanation, which is also its tooltip, if the page has
    `terms` and the word is one of them.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
        from markupsafe import Markup
    except ImportError:
        raise CostcertError("HTML reports need jinja2: pip install 'costcert[report]'") from None

    @pass_context
    def explained(context: Any, text: str, word: str | None = None) -> str:
        term = context.get("terms", {}).get(word or text)
        if term is None:
            return text
        return Markup('<a class="term" href="#{}" title="{}">{}</a>').format(term.anchor, term.meaning, text)

    environment = Environment(
        loader=PackageLoader("costcert.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["explained"] = explained
    return environment.get_template(template).render(**values)


def data_url(content: bytes, media_type: str) -> str:
    """A URL that contains the content itself."""
    return f"data:{media_type};base64,{b64encode(content).decode()}"
