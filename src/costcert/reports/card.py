"""A model card: what is promised of a model, with the results in the header that model hubs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costcert.errors import CostcertError
from costcert.reports import summary
from costcert.reports.page import facts
from costcert.reports.results import Results
from costcert.reports.style import defender_title
from costcert.reports.tables import PaperTable, markdown
from costcert.reports.tables.as_markdown import escaped
from costcert.reports.tables.provenance import Data, model_name

_TASK = "image-classification"

_NOT_PROMISED = (
    "Nothing for larger patches, for more patches at once, for noise on the whole image, or for a rotated or "
    "bent patch that does not fit inside the certified shape.",
    "Nothing for images that are not certified, and nothing for single images that were not tested: the "
    "percentages are shares of the test images.",
    "Nothing about an image that may already contain a patch: a certificate is about a clean image whose "
    "label is known.",
    "Nothing for another prediction by the same network: what is certified are these mutants, these ballots, "
    "this defender and this rule for ties.",
)


def card(runs: Sequence[Results], table: PaperTable, ks: Sequence[int], *, title: str | None = None) -> str:
    """The card as Markdown with a YAML header; the headline and the facts are about the first run.

    Args:
        table: the accuracies of these runs.
        ks: the values of k in the header.
    """
    main = runs[0]
    found = summary.headline(main)
    parts = [
        f"---\n{_yaml(header(runs, ks))}---",
        f"# {escaped(title or _name(main))}",
        f"{escaped(summary.promise(main, found))} This is proved, not only tested.",
        "## Clean and certified accuracy",
        markdown(table).strip(),
        "*Clean*: the right label is in the top k without a patch. *Certified*: it stays there whatever "
        "pixels the patch has and wherever it lies inside the image.",
        "## The classifier that was certified",
        "\n".join(
            ["| | |", "|---|---|", *(f"| {escaped(name)} | {escaped(text)} |" for name, text in facts(main))]
        ),
        "The network classifies each mutant, a copy of the image of which only a part is visible. Wherever "
        "the patch lies, the ballots of the mutants it touches are the attacker's; a defender proves from "
        f"the others how far the right label can fall. {_TIES[main.classifier.ties]}",
        "## What is not promised",
        "\n".join(f"- {sentence}" for sentence in (*_NOT_PROMISED, _noise(main))),
        "## How to repeat it",
        "`MODEL` and `IMAGES` are those of the table above. `check` derives the certificates a second time.",
        f"```\n{_commands(main)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


_TIES = {
    "against": "Every tie counts as lost.",
    "lowest": "Ties go to the lowest label, in the prediction as in the proof.",
}


def header(runs: Sequence[Results], ks: Sequence[int]) -> dict[str, Any]:
    """The header, with a model-index: for each run the accuracies of the headline's defender."""
    return {
        "library_name": "costcert",
        "pipeline_tag": _TASK,
        "tags": [_TASK, "certified-robustness", "adversarial-patch"],
        "model-index": [{"name": _name(runs[0]), "results": [_result(results, ks) for results in runs]}],
    }


def _result(results: Results, ks: Sequence[int]) -> dict[str, Any]:
    defender = summary.headline(results).defender
    data = results.provenance.get("data") or {}
    accuracy = results.accuracy([k for k in ks if k <= results.num_classes])
    return {
        "task": {
            "type": _TASK,
            "name": f"{_line(results.name)}: image classification under adversarial patches",
        },
        "dataset": {
            "name": _line(Data.of(results)),
            "type": _line(data.get("name") or "unknown"),
            **({"split": _line(data["split"])} if data.get("split") else {}),
        },
        "metrics": [
            {
                "type": "accuracy",
                "name": f"{metric.capitalize()} top-{row['k']} accuracy of {defender_title(defender)} "
                f"against {row['patch']}",
                "value": float(row[metric]),
                "args": {"metric": metric, "k": int(row["k"]), "patch": row["patch"], "defender": defender},
            }
            for row in accuracy.to_dict(orient="records")
            if row["defender"] == defender
            for metric in ("certified", "clean")
        ],
    }


def _noise(results: Results) -> str:
    epsilon = results.manifest.get("epsilon")
    given = (
        "none of these were given to the attacker"
        if epsilon is None
        else f"those with a margin of at most {epsilon:.3g} were given to the attacker"
    )
    return f"Floating-point noise: on another device a ballot with nearly equal logits may change; {given}."


def _commands(results: Results) -> str:
    """The commands that make these certificates, as far as the manifest records them."""
    classifier = results.classifier
    soft = classifier.soft
    vote = ["costcert vote --model MODEL --data IMAGES", f"--ablation {classifier.ablation}"]
    vote += [f"--hide {classifier.hide}"] if classifier.hide else []
    if soft is not None and soft.temperature is not None:
        vote.append(f"--soft {soft.temperature:g},{soft.best}")
    certify = ["costcert certify votes", f"--patch '{','.join(results.patches)}'"]
    certify += [f"--defender {','.join(results.defenders)}", f"--ties {classifier.ties}"]
    if results.manifest.get("epsilon") is not None:
        certify.append(f"--epsilon {results.manifest['epsilon']!r}")
    if results.manifest.get("tau"):
        certify.append(f"--tau {results.manifest['tau']}")
    return "\n".join(
        [
            " ".join([*vote, "--out votes"]),
            " ".join([*certify, "--out certs"]),
            "costcert check certs --votes votes --all",
            "costcert report certs --votes votes --out card.md",
        ]
    )


def _name(results: Results) -> str:
    return _line(model_name(results) or results.name)


def _line(name: object) -> str:
    """A name on one line, so that none can end the header."""
    return " ".join(str(name).split())


def _yaml(content: dict[str, Any]) -> str:
    try:
        import yaml
    except ImportError:
        raise CostcertError("model cards need pyyaml: pip install 'costcert[report]'") from None
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))
