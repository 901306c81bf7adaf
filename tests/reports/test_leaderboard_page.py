"""A leaderboard in a real browser: what it is sorted by is in view, on a desktop and on a phone."""

import pytest

pytest.importorskip("jinja2", reason="reports need costcert[report]")

from test_tables import run

from browser import opened
from costcert.reports.leaderboard import leaderboard
from costcert.reports.page import table_page

SIDES = (14, 23, 32, 39, 64, 96, 112)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_certified_columns_are_in_view(tmp_path, width):
    defenders = ("costcert", "costcert-masks", "patchguard", "cbn", "drs")
    runs = [
        run(
            name,
            seed=seed,
            image_size=(224, 224),
            patches=[f"square:{side}" for side in SIDES],
            defenders=defenders,
        )
        for seed, name in enumerate(("baseline", "with a rather long name", "third"))
    ]
    out = tmp_path / "board.html"
    out.write_text(table_page(leaderboard(runs, range(1, 6)), "Leaderboard", runs=runs), encoding="utf-8")
    with opened(out.as_uri(), width=width) as (page, heard):
        assert heard["complaints"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        tables = page.locator(".paper-table")
        assert tables.count() == len(SIDES)
        heads = tables.first.locator("thead tr").first.locator("th[scope=colgroup]").all_inner_texts()
        assert heads == ["certified", "clean"]
        # The right edges of the fifth cell of each row, the last certified one.
        edges = page.evaluate("""() => [...document.querySelectorAll('.paper-table tbody tr')].map(
            row => row.querySelectorAll('td')[4].getBoundingClientRect().right)""")
        assert len(edges) == len(SIDES) * len(runs) * len(defenders)
        assert max(edges) <= width
        # No label is squeezed to a column of single letters.
        heights = page.evaluate("""() => [...document.querySelectorAll('.paper-table tbody tr')].map(
            row => row.getBoundingClientRect().height)""")
        assert max(heights) < 130
        # The names of defenders are explained, and not broken inside a word.
        explained = tables.first.locator("tbody th a.term", has_text="PatchGuard").first
        assert "window" in explained.get_attribute("title")
        assert explained.evaluate("each => each.getClientRects().length") == 1
        explained.click()
        assert page.locator("#glossary dt:target").inner_text() == "PatchGuard"
