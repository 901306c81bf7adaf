"""What `vote` says: what was kept, what the probe found, and that mutants are not those of the training."""

import pytest

from command_line import invoke
from costcert.errors import CostcertError

pytest.importorskip("torch", reason="voting needs costcert[models]")

CLOTHES = ["vote", "--model", "shipped:fashion", "--data", "sample", "--limit", "7", "--shard-size", "2"]


def voted(*more):
    result = invoke([*CLOTHES, *more])
    assert result.exit_code == 0, result.output
    return result


def test_a_resumed_run_says_what_it_kept(tmp_path):
    out = tmp_path / "votes"
    assert "were there already" not in voted("--out", out).output
    assert "costcert: all 4 shards were there already, of 7 images\n" in voted("--out", out).stderr
    for number in (1, 3):
        (out / f"shard-{number:05d}.parquet").unlink()
    assert "costcert: 2 of 4 shards were there already: 4 of 7 images\n" in voted("--out", out).stderr
    other = invoke([*CLOTHES, "--soft", "0.5,2", "--out", out])
    assert other.exit_code == 2
    assert "holds another run" in other.stderr
    assert "were there already" not in other.stderr


def test_the_probe_is_reported_in_words_and_used_in_the_next_command(tmp_path):
    plain = voted("--out", tmp_path / "votes").stdout
    assert "Probe:" not in plain
    assert plain.endswith("--patch 2%\n")
    probed = voted("--out", tmp_path / "votes", "--probe").stdout
    assert "Probe: " in probed
    assert "epsilon" in probed
    assert probed.endswith("--patch 2% --epsilon probe\n")


@pytest.mark.parametrize(
    ("ablation", "warns"),
    [("rows:4", True), ("columns:4/stride=2", False), ("columns:4/span=3-9", False), (None, False)],
)
def test_mutants_that_the_model_was_not_trained_on_are_pointed_out(tmp_path, ablation, warns):
    more = [] if ablation is None else ["--ablation", ablation]
    result = voted("--out", tmp_path / "votes", *more)
    warning = f"shipped:fashion was trained on columns:4, not on {ablation}: certificates hold all the same"
    assert (warning in result.stderr) == warns
    assert ("was trained on" in result.output) == warns


def test_pooled_mutants_of_which_some_are_unknown(tmp_path):
    result = voted("--out", tmp_path / "votes", "--ablation", "columns:4+rows:4")
    assert "not on columns:4+rows:4" in result.stderr


@pytest.mark.parametrize(
    ("words", "half"), [((), False), (("--precision", "half"), True), (("--autocast",), True)]
)
def test_autocast_is_the_old_spelling_of_half_precision(tmp_path, monkeypatch, words, half):
    """Not every processor computes in half precision, so the network is not evaluated here."""
    asked = []

    def built(*_, autocast, **__):
        asked.append(autocast)
        raise CostcertError("stop")

    monkeypatch.setattr("costcert.models.loading.TorchClassifier", built)
    result = invoke([*CLOTHES, *words, "--out", tmp_path / "votes"])
    assert (result.exit_code, asked) == (2, [half])


def test_help_shows_the_new_spelling_only():
    shown = invoke(["vote", "--help"]).stdout
    assert "--precision" in shown
    assert "--calibration" in shown
    assert "autocast" not in shown
