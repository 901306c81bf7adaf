"""Names of files do not become names of folders."""

from pathlib import Path

import pytest

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError
from costcert.store.folder_names import refuse_file_name

VOTES = cc.Votes([[0, 1, 0, 0]], [0], ablation="columns:1", num_classes=2, image_size=(1, 4))


@pytest.mark.parametrize("name", ["votes", "run.v2", "2024.11.18", "model.final"])
def test_other_names_with_a_dot_are_those_of_folders(tmp_path, name):
    refuse_file_name(tmp_path / name, "votes are")


def test_a_folder_that_is_there_keeps_its_name(tmp_path):
    (tmp_path / "old.npz").mkdir()
    refuse_file_name(tmp_path / "old.npz", "votes are")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([], "a.XLSX ends in .XLSX: votes are written to a folder"),
        ([".json"], "a.XLSX ends in .XLSX: votes are written to a file that ends in .json, or to a folder"),
        (
            [".a", ".b", ".c"],
            "a.XLSX ends in .XLSX: votes are written to a file that ends in .a, .b or .c, or to a folder",
        ),
    ],
)
def test_the_sentence_says_what_is_written(files, sentence):
    with pytest.raises(CostcertError) as raised:
        refuse_file_name(Path("a.XLSX"), "votes are", files)
    assert str(raised.value) == sentence


def test_python_functions_make_no_folder_of_such_a_name(tmp_path):
    certificates = cc.certify(VOTES, ["1"])
    with pytest.raises(
        CostcertError, match=r"ends in \.xlsx: votes are written to a file that ends in \.npz"
    ):
        cc.write_votes(VOTES, tmp_path / "v.xlsx")
    with pytest.raises(
        CostcertError, match=r"ends in \.npz: certificates are written to a file that ends in \.parq"
    ):
        cc.write_certificates(certificates, tmp_path / "c.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("vote --model shipped:fashion --data sample --out x.npz", "votes of a run are written to a folder"),
        (
            "attack --model shipped:fashion --data sample --patch 2 --out x.csv",
            "patched images are written to a folder",
        ),
        (
            "train --model strip:small --data folder:nowhere --ablation columns:4 --out x.pt",
            "a trained model is written to a folder",
        ),
        (
            "tune votes --patch 1 --out x.xlsx",
            "what tune found is written to a file that ends in .json, or to a folder",
        ),
    ],
)
def test_commands_make_no_folder_of_such_a_name(tmp_path, monkeypatch, words, what):
    monkeypatch.chdir(tmp_path)
    name = words.split()[-1]
    result = invoke(words.split())
    assert (result.exit_code, result.stderr) == (2, f"costcert: {name} ends in {name[1:]}: {what}\n")
    assert not list(tmp_path.iterdir())
