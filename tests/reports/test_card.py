"""Model cards: a header that model hubs read, and the same numbers as everywhere."""

import re
import shlex

import pytest

pytest.importorskip("matplotlib", reason="reports need costcert[report]")
pytest.importorskip("yaml", reason="model cards need costcert[report]")

import yaml
from test_report import percent, ran
from test_tables import UGLY, run

import costcert as cc
from command_line import parsed
from costcert.reports.card import card
from costcert.reports.tables import paper_table
from made_up_run import PATCHES


def header_and_text(content):
    _, header, text = content.split("---\n", 2)
    return yaml.safe_load(header), text


def made(runs, ks=(1, 5), **options):
    return card(runs, paper_table(runs, ks), ks, **options)


@pytest.mark.parametrize("name", ["card.md", "README.md"])
def test_the_report_is_a_card_by_its_name(run_folder, tmp_path, name):
    assert ran(run_folder / "soft", "--out", tmp_path / name, "-k", "1,5").exit_code == 0
    header, text = header_and_text((tmp_path / name).read_text())
    certificates = cc.read_certificates(run_folder / "soft")
    (entry,) = header["model-index"]
    assert entry["name"] == "made up"
    (result,) = entry["results"]
    assert result["task"]["type"] == header["pipeline_tag"] == "image-classification"
    assert result["dataset"] == {"name": "90 images of npz (test)", "type": "npz", "split": "test"}
    assert len(result["metrics"]) == 2 * 2 * len(PATCHES)
    accuracy = certificates.accuracy([1, 5]).set_index(["defender", "patch", "k"])
    for metric in result["metrics"]:
        args = metric["args"]
        assert metric["type"] == "accuracy"
        assert metric["value"] == accuracy.loc[(args["defender"], args["patch"], args["k"]), args["metric"]]
    for row in accuracy.itertuples():
        assert percent(row.certified) in text
    for words in (
        "# made up",
        "soft ballots of 2 labels",
        "Every tie counts as lost",
        "What is not promised",
    ):
        assert words in text
    assert "For " in text
    assert " % of the 90 test images" in text


def test_other_markdown_is_a_table(run_folder, tmp_path):
    for words in (["--out", tmp_path / "table.md"], ["--leaderboard", "--out", tmp_path / "README.md"]):
        assert ran(run_folder / "certs", *words).exit_code == 0
        assert not words[-1].read_text().startswith("---")
        assert "model-index" not in words[-1].read_text()


def test_a_model_hub_reads_the_header():
    hub = pytest.importorskip("huggingface_hub", reason="compared with huggingface_hub where it is installed")
    content = made([run(UGLY), run("other", seed=1)])
    read = hub.ModelCard(content)
    assert read.data.model_name == "strip:small"
    assert len(read.data.eval_results) == 2 * 2 * 2 * 2
    values = {
        (each.metric_args["patch"], each.metric_args["k"], each.metric_args["metric"]): each.metric_value
        for each in read.data.eval_results[: 2 * 2 * 2]
    }
    defender = read.data.eval_results[0].metric_args["defender"]
    for row in run(UGLY).accuracy([1, 5]).itertuples():
        if row.defender == defender:
            assert values[row.patch, row.k, "certified"] == row.certified
            assert values[row.patch, row.k, "clean"] == row.clean
    assert read.text.lstrip().startswith("# ")


def test_names_cannot_break_out_of_the_header():
    evil = 'x"\n---\nlicense: mit # <script>'
    results = run(evil, data=evil)
    header, text = header_and_text(made([results], title=evil))
    assert set(header) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert header["model-index"][0]["results"][0]["dataset"]["type"] == " ".join(evil.split())
    assert "<script>" not in text


def test_its_commands_can_be_run():
    (block,) = re.findall(r"```\n(.*?)\n```", made([run()]), re.DOTALL)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert [line[:2] for line in lines] == [
        ["costcert", name] for name in ("vote", "certify", "check", "report")
    ]
    options = {line[1]: parsed(line[1:]) for line in lines}
    assert options["certify"].patches == "square:2,square:4"
    assert options["certify"].defenders == "costcert,patchguard"
    assert options["vote"].ballots.ablation == "columns:4"
