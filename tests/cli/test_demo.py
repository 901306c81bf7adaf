"""What the demo says about itself is so."""

import re
import shlex
from pathlib import Path

import pytest

import costcert as cc
from command_line import invoke
from costcert.cli import demo

pytest.importorskip("torch", reason="the demo's model needs torch")
pytest.importorskip("matplotlib", reason="its page needs costcert[report]")


@pytest.mark.slow
def test_the_demo_names_its_own_folder_and_number_of_images(tmp_path):
    # Brackets would be markup, and spaces part a word in two.
    folder = tmp_path / "my [bold]demo"
    result = invoke(["demo", "--limit", "10", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    assert "costcert-demo" not in result.stdout
    assert "in % of 10 images" in result.stdout
    assert "What this means." in result.stdout
    # Only lines with a path may be longer.
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if str(tmp_path) not in line)
    page = (folder / "report.html").read_text()
    assert "What a sticker cannot do to 10 photographs of clothes" in page
    assert "500 photographs" not in result.stdout + page
    assert f"The page about them: {folder / 'report.html'}\n" in result.stdout
    explored = [shlex.split(path) for path in re.findall(r"costcert explore (.+?)   ", result.stdout)]
    assert explored == [[str(folder / "votes")], [str(folder / "votes-masks-6")]]
    # Both families, against the same stickers.
    for side in demo.SIDES:
        masks = cc.read_certificates(folder / f"certs-masks-{side}")
        assert (masks.defenders, [str(patch) for patch in masks.patches]) == (
            ["patchcleanser"],
            [f"square:{side}"],
        )
    assert result.stdout.count("PatchCleanser ") == len(demo.SIDES)
    assert page.count("masks for 6 px") > 1
    # What it suggests can be typed as it stands.
    (certify,) = re.findall(r"^ *costcert (certify .+)$", result.stdout, re.MULTILINE)
    certified = invoke(shlex.split(certify))
    assert certified.exit_code == 0, certified.output
    assert "in % of 10 images" in certified.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_suggestions_name_what_is_to_be_installed_first(monkeypatch, installed, capsys):
    from rich.console import Console

    missing = () if installed else ("fastapi", "matplotlib")
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in missing else object())
    demo._suggest(Console(), Path("my demo"))
    shown = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if "costcert" in line}
    assert set(shown) == {"certify", "explore", "report", "vote", "train"}
    for command, line in shown.items():
        needs = not installed and command in ("explore", "report")
        assert line.endswith(f"(first: pip install 'costcert[{command}]')") == needs
