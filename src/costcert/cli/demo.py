"""`costcert demo`: the whole way on clothes that come with the package, in plain words."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from costcert.certification.certificates import Certificates
from costcert.certification.certify import certify
from costcert.cli import report
from costcert.cli.progress import bar
from costcert.cli.report import write_report
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.geometry.patches import Square
from costcert.geometry.touch import touched
from costcert.models.classifier import Soft
from costcert.models.loading import load_model
from costcert.reports.terminal import print_accuracy
from costcert.store.certificates import write_certificates
from costcert.store.locations import Location
from costcert.store.votes import write_votes
from costcert.votes.table import Votes
from costcert.votes.voting import vote

PATCHES = (Square(2), Square(4), Square(6))
# Chosen on images held out of training (best mean certified accuracy), not on these.
SOFT = Soft(temperature=0.25, best=4)


@dataclass(frozen=True)
class Request:
    """What was asked on the command line."""

    out: Location = Path("costcert-demo")
    limit: int | None = None


def run(request: Request) -> None:
    console = Console(highlight=False)
    data = parse_dataset("sample")
    if request.limit is not None:
        data = limited(data, request.limit)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = load_model(folder)
    ablation = model.ablation
    assert ablation is not None
    mutants = ablation.count(model.image_size)
    console.print(
        f"[bold]{len(data)} photographs of clothes[/bold] (Fashion-MNIST, 28 x 28 pixels, {data.num_classes} "
        f"kinds) and a small network that sees 4 of the 28 columns at a time. Each image is asked "
        f"{mutants} times, once per strip; the answers are counted as votes.\n"
    )
    with bar("voting") as on_progress:
        votes = vote(model, data, ablation, soft=SOFT, progress=on_progress)
    hard = certify(votes.hard(), PATCHES)
    soft = certify(votes, PATCHES, ["costcert"])
    headings = {
        str(patch): f"A {patch.side} x {patch.side} px sticker, anywhere: it touches at most "
        f"{touched(ablation, patch, model.image_size).delta} of {mutants} strips"
        for patch in PATCHES
    }
    print_accuracy(console, hard.accuracy(), headings)
    console.print(
        "The same with soft ballots, each strip spreading its vote over the labels it hesitates between:\n"
    )
    print_accuracy(console, soft.accuracy(), headings, explain=False)
    _explain(console, hard)
    _suggest(console, request.out)
    _keep(console, request.out, votes, hard, soft)


def _keep(console: Console, folder: Location, votes: Votes, hard: Certificates, soft: Certificates) -> None:
    """Votes and certificates, and the page about them where the packages that draw it are installed."""
    write_votes(votes, folder / "votes")
    write_certificates(hard, folder / "certs", votes=folder / "votes")
    write_certificates(soft, folder / "certs-soft", votes=folder / "votes")
    console.print(f"\nVotes and certificates: {folder}", markup=False, soft_wrap=True)
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        console.print("For the page with figures: pip install 'costcert[report]', and again.", markup=False)
        return
    page = folder / "report.html"
    write_report(
        report.Request(
            runs=[folder / "certs", folder / "certs-soft"],
            votes=[folder / "votes"] * 2,
            names=["one vote a strip", "soft ballots"],
            title=f"What a sticker cannot do to {len(votes):,} photographs of clothes",
            out=page,
        )
    )
    console.print(f"The page about them: {page}", markup=False, soft_wrap=True)


def _explain(console: Console, certificates: Certificates) -> None:
    patch = PATCHES[1]
    min_k, rank = certificates.min_k("costcert", patch), certificates.rank("costcert", patch)
    lost = int(((rank <= 3) & (min_k > 3)).sum())
    console.print(
        f"[bold]What this means.[/bold] For {100 * (min_k <= 3).mean():.1f} % of these images no "
        f"{patch.side}-pixel square sticker, anywhere, with any pixels, can push the right label out of "
        f"the top 3. That is proved, not tried out. Another {lost} images have the right label in the top 3, "
        "but some rewriting of the votes a sticker touches would push it out: no promise is made for them."
    )


def _suggest(console: Console, folder: Location) -> None:
    votes = shlex.quote(str(folder / "votes"))
    console.print("\n[bold]What to try next.[/bold]")
    # A path may hold brackets and be long: no markup, and no line breaks inside a command.
    console.print(
        f"  costcert certify {votes} --patch 2%,rectangle:2x8,2*square:2\n"
        f"  costcert explore {votes}   drag a sticker over these images\n"
        "  costcert report --help           pages, tables and figures\n"
        "  costcert vote --help             votes of your own model and images\n"
        "  costcert train --help            teach a network to vote on strips",
        markup=False,
        soft_wrap=True,
    )
