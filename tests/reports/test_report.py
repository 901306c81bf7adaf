"""`costcert report`: what people read is what was certified."""

import json
import re
from base64 import b64decode

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="reports need costcert[report]")
pytest.importorskip("jinja2", reason="reports need costcert[report]")

import costcert as cc
from command_line import invoke
from costcert.defenders import find
from costcert.reports import patch_names
from costcert.reports.examples import choose, examples
from costcert.reports.figures import COLUMN, FIGURES, PAGE, figures
from costcert.reports.page import RunSection, page
from costcert.reports.results import Results, read_results
from costcert.store.certificates import CertificatesFolder
from costcert.store.votes import VotesFolder
from made_up_run import PATCHES, SIDE


def ran(*words):
    return invoke(["report", *map(str, words)])


def embedded(text):
    """The figures in a page, as SVG."""
    return [b64decode(each).decode() for each in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text)]


def percent(share):
    return f"{100 * share:.1f}"


def test_the_page_says_what_was_certified(run_folder, written):
    text = (written.folder / "report.html").read_text()
    certificates = cc.read_certificates(run_folder / "certs")
    shares = {d: (certificates.min_k(d, PATCHES[1]) <= 3).mean() for d in certificates.defenders}
    best = max(shares, key=lambda defender: shares[defender])
    sentence = (
        f"For {percent(shares[best])} % of the 90 test images {find(best).title} proves, from hard ballots, "
        "that no 3 × 3 pixel sticker"
    )
    text = text.replace("\u00a0", " ")
    assert sentence in text
    assert sentence in " ".join(written.stdout.split())
    for row in certificates.accuracy().itertuples():
        assert percent(row.certified) in text
        assert percent(row.clean) in text
    assert "<b>true</b>" not in text
    assert "&lt;b&gt;true&lt;/b&gt; &amp; right" in text
    assert sorted(path.name for path in written.folder.iterdir()) == ["figures", "report.html"]


def test_the_page_loads_nothing_from_elsewhere(written):
    text = (written.folder / "report.html").read_text()
    assert not re.findall(r'(?:src|href|action)="(?!#|data:)[^"]*"', text)
    assert not re.search(r"<script|@import|url\((?!#|[\"']?data:)", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("data:image/png;base64,") == text.count('class="card"') > 3


def test_examples_are_the_extremes_and_the_middle(run_folder):
    folder = CertificatesFolder(run_folder / "certs")
    certificates = cc.read_certificates(run_folder / "certs")
    product = np.prod([certificates.min_k("costcert", patch) for patch in PATCHES], axis=0)
    rank = certificates.rank("costcert", PATCHES[0])
    by_name = dict(zip(certificates.image_ids, product, strict=True))
    chosen = choose(folder, "costcert", "square:3", 3)
    min_k = dict(zip(certificates.image_ids, certificates.min_k("costcert", "square:3"), strict=True))
    clean = dict(zip(certificates.image_ids, certificates.rank("costcert", "square:3"), strict=True))
    just = [name for name, reason in chosen.items() if reason == "just misses the top 3"]
    assert len(just) == 2
    assert [min_k[name] for name in just] == sorted(
        min_k[name] for name in min_k if min_k[name] > 3 >= clean[name]
    )[:2]
    for name, reason in chosen.items():
        below, above = (product < by_name[name]).sum(), (product > by_name[name]).sum()
        if reason == "best":
            assert below <= 1
        elif reason == "typical":
            assert below <= 46
            assert above <= 45
        elif reason == "worst":
            assert above == 0
        elif name not in just:
            assert by_name[name] == product[rank == 1].max()


def test_an_example_shows_its_own_numbers(run_folder):
    results = read_results(run_folder / "soft", votes=run_folder / "votes")
    folder, votes = CertificatesFolder(run_folder / "soft"), VotesFolder(run_folder / "votes")
    chosen = choose(folder, "costcert", "square:3", 3)
    shown = examples(results, folder, votes, chosen, "square:3", {})
    assert [example.image_id for example in shown] == list(chosen)
    certificates = cc.read_certificates(run_folder / "soft")
    for example in shown:
        row = list(certificates.image_ids).index(example.image_id)
        for (defender, patch), (rank, min_k) in example.certified.items():
            assert certificates.rank(defender, patch)[row] == rank
            assert certificates.min_k(defender, patch)[row] == min_k
        assert example.attack.position == example.certified["costcert", "square:3"][1]
        bars = example.bars()
        assert bars[0].is_true
        assert sum(bar.added for bar in bars) <= len(example.attack.touched)
        level = bars[0].clean
        assert sum(bar.clean + bar.added >= level - 1e-9 for bar in bars[1:]) == min(
            example.lifted, len(bars) - 1
        )


@pytest.mark.parametrize("ending", [pytest.param("html", marks=pytest.mark.slow), "tex", "md", "csv", "json"])
def test_every_ending_holds_the_same_numbers(run_folder, tmp_path, ending):
    out = tmp_path / f"report.{ending}"
    assert ran(run_folder / "certs", "--out", out).exit_code == 0
    text = out.read_text()
    accuracy = cc.read_certificates(run_folder / "certs").accuracy()
    for share in accuracy["certified"]:
        assert (str(share) if ending in ("csv", "json") else percent(share)) in text


@pytest.mark.slow
def test_results_come_back_from_their_file(run_folder, tmp_path):
    out = tmp_path / "mine.json"
    ran(run_folder / "certs", "--out", out, "--name", "my run")
    back, there = read_results(out), read_results(run_folder / "certs", name="my run")
    assert back.name == there.name == "my run"
    assert back.accuracy(range(1, 13)).equals(there.accuracy(range(1, 13)))
    assert back.manifest == there.manifest
    assert back.passes == SIDE
    assert ran(out, "--out", tmp_path / "again.html").exit_code == 0


@pytest.mark.slow
def test_several_runs_and_the_leaderboard(run_folder, tmp_path):
    both = [run_folder / "certs", run_folder / "soft"]
    out = tmp_path / "both.html"
    assert ran(*both, "--name", "hard", "--name", "soft", "--out", out).exit_code == 0
    assert "Figures of soft" in out.read_text()
    for name in ("hard", "soft"):
        ran(both[name == "soft"], "--name", name, "--out", tmp_path / f"{name}.json")
    board = tmp_path / "board.html"
    files = [tmp_path / "hard.json", tmp_path / "soft.json"]
    assert ran(*files, "--leaderboard", "--k", "1,5", "--out", board).exit_code == 0
    text = board.read_text()
    assert "hard" in text
    assert "soft" in text
    for name in files:
        for share in read_results(name).accuracy([1, 5])["certified"]:
            assert percent(share) in text
    for text in (out.read_text(), board.read_text()):
        shown = [
            each
            for each in embedded(text)
            if "<title>Clean and certified accuracy for each k</title>" in each
        ]
        assert len(shown) == 2, "one for wide and one for narrow screens"
        assert all("hard: CostCert, 16 passes" in each for each in shown)
        assert text.count('alt="Clean and certified accuracy for each k. Bold: ') == 1
        named = re.findall(r' id="([^"]+)"', text)
        assert len(named) == len(set(named))
    alone = tmp_path / "alone.html"
    assert ran(files[0], "--leaderboard", "--out", alone).exit_code == 0
    assert "<img" not in alone.read_text()


def test_the_page_and_the_files_show_the_same_figures_each_drawn_once(written):
    assert sorted(written.drawn) == sorted((name, width) for name in FIGURES for width in (COLUMN, PAGE))
    files = [(written.folder / "figures" / f"{name}.svg").read_text() for name in FIGURES]
    # In the page each figure for wide screens follows the one for narrow screens.
    assert embedded((written.folder / "report.html").read_text())[1::2] == files


@pytest.mark.slow
def test_figures_are_svg_and_pdf_unless_others_are_asked_for(run_folder, tmp_path):
    result = ran(run_folder / "certs", "--out", tmp_path / "r.md", "--figures", tmp_path / "figures")
    assert result.exit_code == 0
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    names = {name.partition(".")[0] for name in found}
    assert "accuracy-by-size" in names
    assert found == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}


def test_figures_are_of_the_formats_that_were_asked_for(written):
    found = sorted(path.name for path in (written.folder / "figures").iterdir())
    assert "accuracy-by-size.svg" in found
    assert all(name.endswith(".svg") for name in found)


def test_figures_alone_write_no_report(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.html").write_text("mine")
    for name in [*FIGURES][1:]:
        monkeypatch.delitem(FIGURES, name)
    monkeypatch.setattr("costcert.cli.report._write", lambda *arguments: pytest.fail("a report was written"))
    result = ran(run_folder / "certs", "--figures", "figures", "--formats", "svg")
    assert result.exit_code == 0
    assert (tmp_path / "report.html").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "report.html"]
    assert "No report besides the figures: name one with --out" in result.stdout
    assert "Report:" not in result.stdout


def test_the_style_of_latex(run_folder, tmp_path):
    out = tmp_path / "table.tex"
    result = ran(run_folder / "certs", "--out", out, "--style", "narrow")
    assert r"It fits one column of a two-column article, and needs \usepackage{booktabs}." in result.stdout
    assert out.read_text().count(r"\begin{table}") == len(PATCHES)
    refused = ran(run_folder / "certs", "--out", tmp_path / "other.tex", "--style", "slim")
    assert refused.exit_code == 2
    assert refused.stderr == "costcert: unknown style 'slim': use narrow or wide\n"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_names_of_runs_stay_inside_the_folder_of_figures(run_folder, tmp_path):
    both = [run_folder / "certs", run_folder / "soft"]
    names = ["--name", "../../up", "--name", "/etc"]
    figures = tmp_path / "deep" / "figures"
    assert (
        ran(*both, *names, "--out", tmp_path / "r.md", "--figures", figures, "--formats", "svg").exit_code
        == 0
    )
    assert sorted(path.name for path in figures.iterdir()) == ["comparison.svg", "etc", "up"]


def test_published_numbers_stand_beside_ours(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 43, 50)
    ballots = np.where(rng.random((50, 32)) < 0.6, truth[:, None], rng.integers(0, 43, (50, 32)))
    votes = cc.Votes(
        ballots,
        truth,
        num_classes=43,
        ablation="columns:4",
        image_size=32,
        provenance={"data": {"name": "torchvision:GTSRB", "split": "test"}},
    )
    certificates = cc.certify(votes, [cc.Square(2), cc.Square(5)])
    cc.write_certificates(certificates, tmp_path / "certs", votes=votes)
    out = tmp_path / "r.md"
    assert ran(tmp_path / "certs", "--compare", "paper", "--out", out).exit_code == 0
    text = out.read_text()
    for published in ("47.3", "79.4", "66.8", "94.3"):
        assert published in text
    board = tmp_path / "board.html"
    assert ran(tmp_path / "certs", "--compare", "gtsrb", "--leaderboard", "--out", board).exit_code == 0
    assert all("Zhou et al., Table 2: CC, 224 passes" in each for each in embedded(board.read_text()))


@pytest.mark.parametrize(
    ("name", "classes", "side", "patch", "data", "shown"),
    [
        ("imagenet-peers", 1000, 224, 32, "folder:imagenet", ("64.9", "Salman et al. 2022, Table 1")),
        ("cifar10-peers", 10, 32, 5, "torchvision:CIFAR10", ("57.6", "Levine and Feizi 2020, abstract")),
    ],
)
def test_other_systems_stand_beside_ours(tmp_path, name, classes, side, patch, data, shown):
    truth = np.arange(6) % classes
    votes = cc.Votes(
        np.repeat(truth[:, None], side, axis=1),
        truth,
        num_classes=classes,
        ablation="columns:4",
        image_size=side,
        provenance={"data": {"name": data, "split": "test"}},
    )
    certificates = cc.certify(votes, cc.Square(patch))
    cc.write_certificates(certificates, tmp_path / "certs", votes=votes)
    for out in ("r.md", "r.csv", "r.json", "r.html"):
        assert ran(tmp_path / "certs", "--compare", name, "-k", "1", "--out", tmp_path / out).exit_code == 0
    text = (tmp_path / "r.md").read_text()
    assert all(each in text for each in shown)
    assert "Left out, because no run has such squares" in text
    assert "same pictures" not in text
    assert any(shown[1] in each for each in embedded((tmp_path / "r.html").read_text()))


def test_a_figure_that_cannot_be_drawn_leaves_no_trace(run_folder, tmp_path):
    both = [run_folder / "certs", run_folder / "soft"]
    out = tmp_path / "r.csv"
    result = ran(*both, "--defender", "cnb", "--out", out, "--figures", tmp_path / "figures")
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "these runs have no defender 'cnb'" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}/certs", "--defender", "cbn", "--out", "{tmp}/r.html"], "pass more runs, or --compare"),
        (["{run}/certs", "--out", "{tmp}/report.docx"], "ends in .docx: a report ends in .html"),
        (["{run}/nothing", "--out", "{tmp}/r.html"], "is not there"),
        (["{run}/votes", "--out", "{tmp}/r.html"], "is not the manifest of certificates"),
        (["{run}/certs", "--votes", "{run}/certs", "--out", "{tmp}/r.html"], "is not the manifest of votes"),
        (["{run}/certs", "--name", "a", "--name", "b", "--out", "{tmp}/r.html"], "got 2 --name for 1 runs"),
        (["{run}/certs", "--compare", "paper", "--out", "{tmp}/r.html"], "the paper has no numbers on npz"),
        (["{run}/certs", "--compare", "paper", "--out", "{tmp}/r.html"], "imagenet-peers, cifar10-peers"),
        (["{run}/certs", "--compare", "gtrsb", "--out", "{tmp}/r.html"], "gtsrb"),
        (["{run}/certs", "--k", "0", "--out", "{tmp}/r.html"], "cannot read k"),
        (["{run}/images.npz", "--out", "{tmp}/r.html"], "certificates in one file end in .parquet"),
        (
            [
                "{run}/certs",
                "--data",
                "npz:{run}/none.npz",
                "--votes",
                "{run}/votes",
                "--out",
                "{tmp}/r.html",
            ],
            "none",
        ),
        (["{run}/certs", "--figures", "{tmp}/f", "--formats", "gif", "--out", "{tmp}/r.html"], "gif"),
    ],
)
def test_bad_input_is_one_sentence(run_folder, tmp_path, words, said):
    result = ran(*(word.format(run=run_folder, tmp=tmp_path) for word in words))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_damaged_results_are_refused(run_folder, tmp_path):
    out = tmp_path / "r.json"
    ran(run_folder / "certs", "--out", out)
    whole = json.loads(out.read_text())
    for damage in (
        {"images": 91},
        {"counts": []},
        {"manifest": {}},
        {"version": 9},
        {"counts": [{"defender": "costcert", "patch": "square:1", "rank": {"99": 90}, "min_k": {"1": 90}}]},
    ):
        out.write_text(json.dumps({**whole, **damage}))
        result = ran(out, "--out", tmp_path / "r.html")
        assert result.exit_code == 2
        assert not (tmp_path / "r.html").exists()


def test_votes_of_other_images_are_refused(run_folder, tmp_path):
    votes = cc.read_votes(run_folder / "votes")
    cc.write_votes(votes.take(slice(0, 5)), tmp_path / "few")
    result = ran(run_folder / "certs", "--votes", tmp_path / "few", "--out", tmp_path / "r.html")
    assert result.exit_code == 2
    assert "their digests differ): pass the votes that were certified" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_fifty_thousand_images_fit_into_three_megabytes():
    rng = np.random.default_rng(0)
    votes = cc.Votes(
        np.where(rng.random((50_000, 28)) < 0.7, 5, rng.integers(0, 1000, (50_000, 28))),
        np.full(50_000, 5),
        num_classes=1000,
        ablation="columns:4",
        image_size=28,
    )
    certificates = cc.certify(votes, [1, 2, 3, 4, 5, 6, 7])
    from costcert.certification.accuracy import Tally

    tally = Tally()
    tally.add(certificates)
    manifest = {
        "classifier": certificates.classifier.to_json(),
        "votes": {"num_classes": 1000, "image_size": [28, 28]},
    }
    results = Results("large", manifest, tally)
    text = page([RunSection(results, figures(results))])
    assert "of the 50,000 test images" in text
    assert len(text.encode()) < 3_000_000


def test_patches_in_words():
    def words(function, patch):
        return function(patch, (28, 28)).replace("\u00a0", " ")

    for patch, sentence, size in (
        ("square:4", "4 × 4 pixel sticker", "4 × 4 px (2.0 %)"),
        ("rectangle:2x8", "2 × 8 pixel sticker", "2 × 8 px (2.0 %)"),
        ("2*square:3", "2 stickers at once, each a 3 × 3 pixel sticker", "2 of 3 × 3 px (2.3 %)"),
        ("shape:010/111", "sticker of this shape of 4 pixels", "shape of 4 px (0.5 %)"),
    ):
        assert words(patch_names.sticker, patch) == sentence
        assert words(patch_names.size_and_share, patch) == size
