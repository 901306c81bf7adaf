"""The report in a real browser: it opens from disk, loads nothing else, fits and shows the accuracies."""

import pytest

pytest.importorskip("matplotlib", reason="reports need costcert[report]")

from test_report import PATCHES, percent, ran, run_folder  # noqa: F401

import costcert as cc
from browser import opened


@pytest.fixture(scope="module")
def address(run_folder, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("page") / "report.html"
    data = f"npz:{run_folder}/images.npz"
    assert (
        ran(run_folder / "certs", "--votes", run_folder / "votes", "--data", data, "--out", out).exit_code
        == 0
    )
    return out.as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_disk_and_fits(address, width):
    with opened(address, width=width) as (page, heard):
        assert [url for url in heard["requests"] if not url.startswith("data:")] == [address]
        assert heard["complaints"] == []
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


@pytest.mark.slow
def test_its_table_is_the_certificates(address, run_folder):  # noqa: F811
    certificates = cc.read_certificates(run_folder / "certs")
    with opened(address) as (page, _):
        rows = page.locator(".paper-table tbody tr")
        shown = [[cell.split()[0] for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
    expected = [
        [percent((found(defender, patch) <= k).mean()) for found in columns for patch in PATCHES]
        for columns in [(certificates.rank, certificates.min_k)]
        for k in range(1, 6)
        for defender in certificates.defenders
    ]
    assert shown == expected


@pytest.mark.slow
def test_it_prints(address):
    with opened(address) as (page, _):
        assert len(page.pdf(format="A4")) > 20_000
