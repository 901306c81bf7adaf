"""`costcert demo`: from images to certificates on the sample that comes with the package."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_1, DATA, OUTPUT, PathOrUrl
from costcert.cli.report import ReportOptions, write_report
from costcert.progress import bar

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.certification.certificates import Certificates
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    limit: Annotated[int | None, Parameter(group=DATA, help="Random subset size.", validator=AT_LEAST_1)] = (
        None
    )
    out: Annotated[
        PathOrUrl, Parameter(alias="-o", group=OUTPUT, help="Folder for votes, certificates and their page.")
    ] = Path("costcert-demo")


def soft_ballots() -> Soft:
    """Soft ballots, chosen by mean certified accuracy on images held out of training, not on the sample."""
    from costcert.votes.defence import Soft

    return Soft(temperature=0.25, best=4)


def run(options: DemoOptions = DemoOptions()) -> None:
    """Certify sample images that come with the package.

    Votes, certificates and a page about them are written to a folder, and explained on the way.
    """
    from costcert.certification.certify import certify
    from costcert.console import make_console
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.subsets import limited
    from costcert.geometry.patches import Square
    from costcert.geometry.touch import touched
    from costcert.models.loading import load_model
    from costcert.reports.terminal import print_accuracy
    from costcert.votes.voting import vote

    console = make_console()
    patches = [Square(side) for side in SIDES]
    data = parse_dataset("sample")
    if options.limit is not None:
        data = limited(data, options.limit)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = load_model(folder)
    ablation = model.ablation
    assert ablation is not None
    mutants = ablation.count(model.image_size)
    console.print(
        f"[bold]{len(data)} photographs of clothes[/bold] (Fashion-MNIST, 28 x 28 pixels, {data.num_classes} "
        f"kinds) and a small network that sees 4 of the 28 columns at a time. It is evaluated "
        f"{mutants} times per image, once per strip; its answers are counted as votes.\n"
    )
    with bar("voting") as on_progress:
        votes = vote(model, data, ablation, soft=soft_ballots(), progress=on_progress)
    hard = certify(votes.hard(), patches)
    soft = certify(votes, patches, ["costcert"])
    headings = {
        str(patch): f"A {patch.side} x {patch.side} px sticker, anywhere: it touches at most "
        f"{touched(ablation, patch, model.image_size).delta} of {mutants} strips"
        for patch in patches
    }
    print_accuracy(console, hard.accuracy(), headings)
    console.print(
        "The same with soft ballots, where each strip spreads its vote over its most likely labels:\n"
    )
    print_accuracy(console, soft.accuracy(), headings, explain=False)
    _explain(console, hard, patches[1])
    _suggest(console, options.out)
    _keep(console, options.out, votes, hard, soft)


def _keep(console: Console, folder: Location, votes: Votes, hard: Certificates, soft: Certificates) -> None:
    """Write votes and certificates, and their page where the packages that draw it are installed."""
    from costcert.store.sources import write_certificates, write_votes

    write_votes(votes, folder / "votes")
    write_certificates(hard, folder / "certs", votes=folder / "votes")
    write_certificates(soft, folder / "certs-soft", votes=folder / "votes")
    console.print(f"\nVotes and certificates: {folder}", markup=False, soft_wrap=True)
    if not all(map(find_spec, _NEEDED["report"][1])):
        console.print(
            "For the page with figures: pip install 'costcert[report]', and run the demo again.", markup=False
        )
        return
    page = folder / "report.html"
    write_report(
        ReportOptions(
            (folder / "certs", folder / "certs-soft"),
            votes=(folder / "votes",) * 2,
            names=("one vote per strip", "soft ballots"),
            title=f"What a sticker cannot do to {len(votes):,} photographs of clothes",
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
    votes = shlex.quote(str(folder / "votes"))
    suggestions = [
        (f"certify {votes} --patch 2%,rectangle:2x8,2*square:2", ""),
        (f"explore {votes}", "drag a sticker over these images"),
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
