"""The words of a report page, each explained in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from costcert.defenders import find
from costcert.errors import SpellingError
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.style import defender_title

WORDS: Mapping[str, str] = {
    "mutant": "A copy of the image of which only a small part, such as a strip of columns, is visible, or of "
    "which one or two masks are hidden; the network classifies every mutant by itself.",
    "ballot": "What one mutant votes for. A hard ballot is one vote for the most likely label.",
    "soft ballot": "A ballot that divides its one vote among the few most likely labels.",
    "patch": "The pixels that an attacker may rewrite, such as a sticker: of a known size, anywhere in the "
    "image, with any content.",
    "top k": "The k labels that the defender ranks highest, most of them by votes.",
    "rank": "The place of the right label without a patch: 1 is first.",
    "clean": "The right label is in the top k without a patch. Clean accuracy is the share of such images.",
    "certified": "It is proved that the right label stays in the top k, whatever the patch shows and "
    "wherever it lies. Certified accuracy is the share of such images.",
    "min-k": "The smallest k for which an image is certified: 1 is the strongest certificate.",
    "no promise": "No k below the number of classes is certified; that the list of all labels contains the "
    "right one says nothing.",
    "defender": "A rule that ranks labels by the ballots and proves how far a patch can push the right "
    "one down.",
}


class Term(NamedTuple):
    """A word, what it means, and the anchor of the explanation."""

    name: str
    meaning: str

    @property
    def anchor(self) -> str:
        """Letters and digits of the word; others by their code, so that anchors differ where words do."""
        return "meaning-" + "".join(
            each if each.isascii() and each.isalnum() else "-" if each in " -" else f"_{ord(each):x}"
            for each in self.name.lower()
        )


def glossary(runs: Sequence[Results], published: Published | None = None) -> list[Term]:
    """The words of every page, then the defenders of these runs and of the published numbers."""
    names = dict.fromkeys(defender for results in runs for defender in results.defenders)
    terms = {defender_title(name): _meaning(name) for name in names}
    where = "In the paper" if published is None or published.source.table is not None else "As published"
    for defender in () if published is None else published.defenders:
        terms.setdefault(defender.name, f"{where}: {defender.description}")
    return [Term(*each) for each in (*WORDS.items(), *terms.items())]


def by_name(terms: Iterable[Term]) -> dict[str, Term]:
    return {term.name: term for term in terms}


def _meaning(defender: str) -> str:
    try:
        return find(defender).meaning
    except SpellingError:
        return "A defender of a package that is not installed here."
