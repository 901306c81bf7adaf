"""`costcert demo`: from images to certificates on the sample that comes with the package."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_1, DATA, OUTPUT, PathOrUrl
from costcert.cli.report import ReportOptions, write_report
from costcert.progress import bar

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.certification.certificates import Certificates
    from costcert.datasets.base import Dataset
    from costcert.geometry.patches import Square
    from costcert.store.locations import Location
    from costcert.votes.defence import Soft
    from costcert.votes.table import Votes

EXAMPLES = ("costcert demo", "costcert demo --limit 100 --out my-demo")

# The extra and its packages that a suggested command needs, beside those of the demo itself.
_NEEDED = {
    "explore": ("explore", ("fastapi", "uvicorn")),
    "report": ("report", ("jinja2", "matplotlib")),
}

# Sides of the square patches.
SIDES = (2, 4, 6)
# Masks along each axis: 136 mutants per image.
PER_AXIS = 4


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    limit: Annotated[int | None, Parameter(group=DATA, help="Random subset size.", validator=AT_LEAST_1)] = (
        None
    )
    out: Annotated[
        PathOrUrl, Parameter(alias="-o", group=OUTPUT, help="Folder for votes, certificates and their page.")
    ] = Path("costcert-demo")


class Run(NamedTuple):
    """Votes and what was certified of them, with their name on the page and that of their folder."""

    name: str
    folder: str
    votes: Votes
    certificates: Certificates


def soft_ballots() -> Soft:
    """Soft ballots of strips, chosen by mean certified accuracy on images held out of training."""
    from costcert.votes.defence import Soft

    return Soft(temperature=0.7, best=10)


def soft_ballots_of_pairs() -> Soft:
    """The same for double masking, which certifies most at a high temperature."""
    from costcert.votes.defence import Soft

    return Soft(temperature=8.0, best=10)


def soft_ballots_of_masks() -> Soft:
    """The same for masks."""
    from costcert.votes.defence import Soft

    return Soft(temperature=1.0, best=10)


def run(options: DemoOptions = DemoOptions()) -> None:
    """Certify sample images that come with the package.

    Votes, certificates and a page about them are written to a folder, and explained on the way.
    """
    import pandas as pd

    from costcert.console import make_console
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.subsets import limited
    from costcert.geometry.patches import Square
    from costcert.reports.terminal import print_accuracy

    console = make_console()
    patches = [Square(side) for side in SIDES]
    data = parse_dataset("sample")
    if options.limit is not None:
        data = limited(data, options.limit)
    hard, soft, pairs = _strips(console, data, patches)
    print_accuracy(console, hard.certificates.accuracy(), _strip_headings(hard, patches))
    _explain(console, hard.certificates, patches[1])
    masks = _masks(console, data, patches)
    console.print(
        "Strips with soft ballots, where each strip spreads its vote over its most likely labels, beside "
        "masks (PatchCleanser). Double masking leaves out the votes that a sticker could have changed, and "
        "those of any second place as well:\n"
    )
    both = pd.concat([each.certificates.accuracy() for each in (soft, pairs, *masks)])
    print_accuracy(console, both, {str(patch): _sticker(patch) for patch in patches}, explain=False)
    _suggest(console, options.out)
    _keep(console, options.out, [hard, soft, pairs, *masks])


def _strips(console: Console, data: Dataset, patches: Sequence[Square]) -> tuple[Run, Run, Run]:
    """The network of strips: its hard ballots, and its soft ones at two temperatures."""
    from costcert.certification.certify import certify
    from costcert.models.loading import load_model
    from costcert.votes.voting import vote

    model = load_model("shipped:fashion")
    ablation = model.ablation
    assert ablation is not None
    console.print(
        f"[bold]{len(data)} photographs of clothes[/bold] (Fashion-MNIST, 28 x 28 pixels, {data.num_classes} "
        f"kinds) and a small network that sees 4 of the 28 columns at a time. It is evaluated "
        f"{ablation.count(model.image_size)} times per image, once per strip; its answers are counted as "
        "votes.\n"
    )
    with bar("voting") as on_progress:
        votes = vote(model, data, ablation, soft=soft_ballots(), progress=on_progress)
    with bar("voting, at a higher temperature") as on_progress:
        flat = vote(model, data, ablation, soft=soft_ballots_of_pairs(), progress=on_progress)
    return (
        Run("one vote per strip", "certs", votes, certify(votes.hard(), patches)),
        Run(
            "soft ballots of strips", "certs-soft", votes, certify(votes, patches, ["costcert", "patchguard"])
        ),
        Run("pairs of windows", "certs-pairs", flat, certify(flat, patches, ["double-masking"])),
    )


def _masks(console: Console, data: Dataset, patches: Sequence[Square]) -> list[Run]:
    """The network of masks, for each patch: its masks depend on the patch."""
    from costcert.certification.certify import certify
    from costcert.geometry.ablations import Masks
    from costcert.models.loading import load_model
    from costcert.votes.voting import vote

    model = load_model("shipped:fashion-masks")
    count = Masks(PER_AXIS, patch=SIDES[0]).count(model.image_size)
    console.print(
        "\n[bold]The other way round: masks.[/bold] Instead of showing little, hide what a sticker could "
        "cover and show the rest. A second network sees each image with one or two squares hidden, "
        f"{count} times. A label counts by the square under which it stands best, whatever else is hidden: "
        "if that square hides the sticker, the sticker has changed nothing. The size of the sticker has to "
        "be known beforehand, so there is one set of masks for each.\n"
    )
    runs = []
    for patch in patches:
        with bar(f"voting, masks for {patch.side} px") as on_progress:
            votes = vote(
                model,
                data,
                Masks(PER_AXIS, patch=patch.side),
                soft=soft_ballots_of_masks(),
                progress=on_progress,
            )
        runs.append(
            Run(
                f"masks for {patch.side} px",
                f"certs-masks-{patch.side}",
                votes,
                certify(votes, [patch], ["patchcleanser"]),
            )
        )
    return runs


def _sticker(patch: Square) -> str:
    return f"A {patch.side} x {patch.side} px sticker, anywhere"


def _strip_headings(strips: Run, patches: Sequence[Square]) -> dict[str, str]:
    from costcert.geometry.touch import touched

    votes = strips.votes
    return {
        str(patch): f"{_sticker(patch)}: it touches at most "
        f"{touched(votes.ablation, patch, votes.image_size).delta} of {votes.num_mutants} strips"
        for patch in patches
    }


def _keep(console: Console, folder: Location, runs: Sequence[Run]) -> None:
    """Write votes and certificates, and their page where the packages that draw it are installed."""
    from costcert.store.sources import write_certificates, write_votes

    places: dict[int, Location] = {}
    for each in runs:
        if id(each.votes) not in places:
            places[id(each.votes)] = folder / each.folder.replace("certs", "votes")
            write_votes(each.votes, places[id(each.votes)])
        write_certificates(each.certificates, folder / each.folder, votes=places[id(each.votes)])
    console.print(f"\nVotes and certificates: {folder}", markup=False, soft_wrap=True)
    if not all(map(find_spec, _NEEDED["report"][1])):
        console.print(
            "For the page with figures: pip install 'costcert[report]', and run the demo again.", markup=False
        )
        return
    page = folder / "report.html"
    write_report(
        ReportOptions(
            tuple(folder / each.folder for each in runs),
            votes=tuple(places[id(each.votes)] for each in runs),
            names=tuple(each.name for each in runs),
            title=f"What a sticker cannot do to {len(runs[0].votes):,} photographs of clothes",
            out=page,
        )
    )
    console.print(f"The page about them: {page}", markup=False, soft_wrap=True)


def _explain(console: Console, certificates: Certificates, patch: Square) -> None:
    min_k, rank = certificates.min_k("costcert", patch), certificates.rank("costcert", patch)
    lost = int(((rank <= 3) & (min_k > 3)).sum())
    console.print(
        f"[bold]What this means.[/bold] For {100 * (min_k <= 3).mean():.1f} % of these images no "
        f"{patch.side}-pixel square sticker, anywhere, with any pixels, can push the right label out of "
        f"the top 3. That is proved, not just tested. Another {lost} images have the right label in the "
        "top 3, but some rewriting of the votes a sticker touches would push it out: no promise is made for "
        "them."
    )


def _suggest(console: Console, folder: Location) -> None:
    """Commands that run with what is installed, and what to install for the others."""
    votes, masks = (shlex.quote(str(folder / name)) for name in ("votes", f"votes-masks-{SIDES[-1]}"))
    suggestions = [
        (f"certify {votes} --patch 2%,rectangle:2x8,2*square:2", ""),
        (f"explore {votes}", "drag a sticker over these images"),
        (f"explore {masks}", "the same with masks"),
        ("report --help", "pages, tables and figures"),
        ("vote --help", "votes of your own model and images"),
        ("train --help", "train a network on strips"),
    ]
    console.print("\n[bold]What to try next.[/bold]")
    for words, meaning in suggestions:
        extra, packages = _NEEDED.get(words.split()[0], ("", ()))
        line = f"  costcert {words:<21}   {meaning}".rstrip()
        if not all(map(find_spec, packages)):
            line += f" (first: pip install 'costcert[{extra}]')"
        # A path may contain brackets or be long: no markup, and no line breaks inside a command.
        console.print(line, markup=False, soft_wrap=True)
