"""The report page: its summary, its words, and in a real browser that it opens, fits and is legible."""

import re
from html import unescape

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="reports need costcert[report]")

import itertools

from test_report import percent

import costcert as cc
from browser import opened
from costcert.defenders import BUILTIN, find
from costcert.defenders.base import Defender
from costcert.reports import drawing, summary
from costcert.reports.examples import Bar
from costcert.reports.glossary import WORDS, Term
from costcert.reports.page import RunSection, page
from costcert.reports.results import read_results
from made_up_run import PATCHES


@pytest.fixture
def text(written):
    return (written.folder / "report.html").read_text()


@pytest.fixture
def address(written):
    return (written.folder / "report.html").as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_disk_and_fits(address, width):
    with opened(address, width=width) as (page, heard):
        assert [url for url in heard["requests"] if not url.startswith("data:")] == [address]
        assert heard["complaints"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        pictures = page.locator("svg image")
        assert pictures.count() > 3
        broken = "() => [...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        assert page.evaluate(broken) == 0
        shown = page.evaluate("() => [...document.images].map(image => image.currentSrc)")
        assert len(shown) == 5
        narrow = page.evaluate("() => [...document.querySelectorAll('source')].map(source => source.srcset)")
        assert (shown == narrow) == (width == 390)
        # Figures are images: put them into the page itself, to look at their texts.
        page.evaluate("""() => document.querySelectorAll('picture').forEach(picture => {
            const svg = new TextDecoder().decode(Uint8Array.from(
                atob(picture.querySelector('img').currentSrc.split(',')[1]), each => each.charCodeAt(0)));
            picture.outerHTML = svg.slice(svg.indexOf('<svg '));
        })""")
        # No text of a figure lies outside of it.
        outside = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
                const box = text.getBoundingClientRect();
                return box.width && (box.left < frame.left - 3 || box.right > frame.right + 3);
            }).map(text => text.textContent);
        })"""
        assert page.evaluate(outside) == []


def numbers(table):
    """The accuracies of a table of the page, row by row, without intervals."""
    rows = re.findall(
        r"<tr[^>]*>(.*?)</tr>", table.partition("</thead>")[2].partition("<tfoot>")[0], re.DOTALL
    )
    return [
        [
            re.sub(r"<.*", "", re.sub("</?strong>", "", cell)).strip()
            for cell in re.findall(r"<td>(.*?)</td>", row)
        ]
        for row in rows
    ]


def test_its_tables_are_the_certificates_with_certified_first(text, run_folder):
    certificates = cc.read_certificates(run_folder / "certs")
    short, complete = map(numbers, re.findall(r'<table class="paper-table">.*?</table>', text, re.DOTALL))
    expected = {
        k: [
            [
                percent((found(defender, patch) <= k).mean())
                for found in (certificates.min_k, certificates.rank)
                for patch in PATCHES
            ]
            for defender in certificates.defenders
        ]
        for k in range(1, 6)
    }
    assert complete == [row for rows in expected.values() for row in rows]
    assert short == expected[3]
    assert "3\u00a0×\u00a03\u00a0px (3.5\u00a0%)" in text


def test_the_summary_lists_the_weakest_classes_and_the_images_that_just_miss(text, run_folder):
    results = read_results(run_folder / "certs", votes=run_folder / "votes")
    found = summary.headline(results)
    certificates = cc.read_certificates(run_folder / "certs")
    votes = cc.read_votes(run_folder / "votes")
    min_k = certificates.min_k(found.defender, found.patch)
    top = text[text.index('id="summary"') : text.index('id="accuracy"')]
    certified = {
        name: (min_k[votes.truth == label] <= 1).mean() for label, name in enumerate(votes.class_names)
    }
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th><td><b>([\d.]+) %</b></td>', top)
    assert len(rows) == 5
    assert [share for _, share in rows] == [percent(share) for share in sorted(certified.values())[:5]]
    assert all(percent(certified[unescape(name)]) == share for name, share in rows)
    assert f"{np.count_nonzero(min_k == found.k + 1)} image" in top
    assert percent((min_k == results.num_classes).mean()) in top
    cards = dict(re.findall(r'<article class="card" id="([^"]+)">.*?class="reason">([^<]*)', text, re.DOTALL))
    linked = re.findall(r'href="#(image-[^"]+)"', top)
    assert linked
    assert {cards[anchor] for anchor in linked} == {f"just misses the top {found.k}"}


def test_every_link_inside_the_page_has_its_target_and_headings_are_in_order(text):
    targets = re.findall(r'\bid="([^"]+)"', text)
    assert len(targets) == len(set(targets))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(targets)
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in itertools.pairwise(levels))
    assert len(text.encode()) < 3_000_000
    assert all(re.findall(r'<img [^>]*alt="([^"]*)"', text))


def test_words_and_defenders_are_explained_where_they_occur_and_in_the_glossary(text):
    glossary = unescape(text[text.index('id="glossary"') :])
    # The run is of columns, which `patchcleanser` does not read, by all defenders that need not be named.
    shown = [each for each in BUILTIN if not find(each).reads_masks and not find(each).by_name_only]
    for name, meaning in {**WORDS, **{find(each).title: find(each).meaning for each in shown}}.items():
        assert f'<dt id="{Term(name, meaning).anchor}">{name}</dt><dd>{meaning}</dd>' in glossary
    table = unescape(
        text[text.index('class="paper-table"') : text.index("</table>", text.index('class="paper-table"'))]
    )
    for each in shown:
        term = Term(find(each).title, find(each).meaning)
        assert f'<a class="term" href="#{term.anchor}" title="{term.meaning}">{term.name}</a>' in table


def test_every_defender_says_what_it_does_and_a_plugin_need_not():
    meanings = [find(each).meaning for each in BUILTIN]
    assert len(set(meanings)) == len(BUILTIN)
    assert Defender.meaning
    assert all(meaning.endswith(".") and Defender.meaning != meaning for meaning in meanings)


def test_anchors_differ_where_words_do():
    names = ["PG", "PG♠", "PG⋆", "PG♠/CBN", "CostCert/masks", "costcert masks"]
    assert len({Term(name, "").anchor for name in names}) == len(names)


def test_a_min_k_of_all_classes_is_no_promise(text, run_folder):
    certificates = cc.read_certificates(run_folder / "certs")
    ids = list(certificates.image_ids)
    checked = 0
    for card in re.findall(r'<article class="card".*?</article>', text, re.DOTALL):
        row = ids.index(re.search(r'<span class="quiet">([^<]*)</span></header>', card)[1])
        shown = re.findall(r"<td[^>]*>([^<]*)</td>", card)
        expected = [
            int(certificates.min_k(defender, patch)[row])
            for defender in certificates.defenders
            for patch in PATCHES
        ]
        assert shown == ["no promise" if k == certificates.num_classes else str(k) for k in expected]
        checked += "no promise" in shown
        attacked = int(certificates.min_k("costcert", PATCHES[1])[row])
        end = (
            "there is no promise."
            if attacked == certificates.num_classes
            else f"the promise is the top {attacked}."
        )
        assert attacked == 1 or end in card
        assert f"top {certificates.num_classes}" not in card
    assert checked


@pytest.mark.parametrize(
    ("clean", "added", "shown"),
    [
        (21, 0, "21"),
        (20.6182, 0.5, "20.62 + 0.50"),
        (3.052e-05, 0, "<0.01"),
        (0, 7, "0 + 7"),
        (0.996, 9, "1.00 + 9"),
    ],
)
def test_votes_are_readable_numbers(clean, added, shown):
    assert drawing._count(Bar("a", clean, added, False)) == shown


def test_a_page_without_votes_says_how_to_get_the_rest(run_folder):
    text = page([RunSection(read_results(run_folder / "certs"), {})])
    assert "The weakest classes" not in text
    assert "costcert report CERTS --votes VOTES --data DATA" in text
    assert {*re.findall(r'href="#([^"]+)"', text)} <= {*re.findall(r'\bid="([^"]+)"', text)}


def test_soft_ballots_are_named(run_folder):
    assert "CostCert proves, from soft ballots, that no" in page(
        [RunSection(read_results(run_folder / "soft"), {})]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("width", "contents"), [(1280, "nav.side"), (390, ".folded-contents nav")])
def test_the_contents_lead_to_the_sections(address, width, contents):
    with opened(address, width=width) as (page, _):
        fold = page.locator(".folded-contents summary")
        assert fold.is_visible() == (width == 390)
        if width == 390:
            assert not page.locator(contents).is_visible()
            fold.click()
        links = page.locator(f"{contents} a")
        assert links.count() == 7
        for link in links.all():
            link.click()
            target = link.get_attribute("href")
            assert page.evaluate("location.hash") == target
            top = page.locator(target).evaluate("section => section.getBoundingClientRect().top")
            at_the_end = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2")
            assert -5 < top < 100 or at_the_end
            if width == 1280:
                assert link.is_visible()
                assert link.evaluate("link => link.getBoundingClientRect().top") >= 0


# The luminance of WCAG 2, and the contrast of each text with the paper.
CONTRASTS = """() => {
    const light = colour => {
        const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(each => each / 255)
            .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        const colour = getComputedStyle(element).backgroundColor;
        const above = element.parentElement;
        return colour !== 'rgba(0, 0, 0, 0)' || !above ? colour : behind(above);
    };
    return [...document.querySelectorAll('main *, nav *, footer')].filter(each => !each.closest('svg')
        && [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())).map(each => {
            const pair = [light(getComputedStyle(each).color), light(behind(each))];
            const [low, high] = pair.sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05);
        });
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_legible(address, scheme):
    from io import BytesIO

    from PIL import Image

    def brightness(locator):
        with Image.open(BytesIO(locator.screenshot())) as picture:
            return np.asarray(picture.convert("L")).mean()

    with opened(address, scheme=scheme) as (page, heard):
        assert heard["complaints"] == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert min(page.evaluate(CONTRASTS)) >= 4.5
        figure = brightness(page.locator("figure img").first)
        assert figure > 200 if scheme == "light" else figure < 60
        # Pixels of the data are never inverted.
        assert page.locator(".picture").first.evaluate("each => getComputedStyle(each).filter") == "none"
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


@pytest.mark.slow
def test_a_phone_shows_certified_numbers_without_scrolling(address):
    with opened(address, width=390) as (page, _):
        cell = page.locator(".paper-table tbody td").first
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= 390
        heading = page.locator(".paper-table thead th[scope=colgroup]").first
        assert heading.inner_text() == "certified"
        caption = page.locator(".paper-table caption").first.bounding_box()
        assert caption["x"] >= 0
        assert caption["x"] + caption["width"] <= 390


@pytest.mark.slow
def test_the_dashed_line_crosses_no_number(address):
    with opened(address) as (page, _):
        crossed = """() => [...document.querySelectorAll('.bars svg')].flatMap(svg => {
            const line = svg.querySelector('.level').getBoundingClientRect();
            return [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()])
                .filter(([_, box]) => box.left <= line.right && line.left <= box.right
                    && box.top < line.bottom && line.top < box.bottom)
                .map(([text, _]) => text.textContent);
        })"""
        assert page.evaluate(crossed) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_prints_light_and_unfolded(address, scheme):
    with opened(address, scheme=scheme) as (page, _):
        assert len(page.pdf(format="A4")) > 20_000
        page.emulate_media(media="print", color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("figure img").first.evaluate("each => getComputedStyle(each).filter") == "none"
        folded = page.locator("details.fold:not([open])")
        assert folded.count() > 3
        for each in folded.locator(".paper-table, figure img").all():
            assert each.bounding_box()["height"] > 100
