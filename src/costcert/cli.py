"""The command line. Each command is a thin face over the library and imports it only when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from costcert import __version__
from costcert.errors import CostcertError

app = typer.Typer(
    name="costcert",
    help="Proves whether an image classifier's top-k answer survives an adversarial patch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """What the user can put right is one sentence and exit code 2; a traceback is a bug."""
    try:
        yield
    except CostcertError as error:
        typer.echo(f"costcert: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("costcert: stopped; what was finished is kept, and a second run goes on", err=True)
        raise typer.Exit(130) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"costcert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def certify(
    votes: Annotated[Path, typer.Argument(help="A folder of votes, or an .npz with ballots and truth.")],
    patch: Annotated[
        str,
        typer.Option(
            "--patch",
            "-p",
            help="Patches, separated by commas: 32 (a square), rectangle:16x64, 2% of the area, "
            "2/32 (2 px of a 32 px original), 2*square:16 (two at once).",
        ),
    ],
    defender: Annotated[
        str,
        typer.Option(
            "--defender",
            "-d",
            help="Defenders, separated by commas: costcert, costcert-masks, patchguard, cbn, drs; or all.",
        ),
    ] = "all",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write: a folder (continued if begun), or a .parquet, .csv or .json."
        ),
    ] = None,
    ablation: Annotated[
        str | None,
        typer.Option(
            "--ablation",
            help="What each mutant kept, as in columns:19. Needed for an .npz; for a folder of votes it "
            "takes that subset of their mutants.",
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, help="Number of classes (for an .npz).")
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", help="Side, or height x width, at the model's input (for an .npz)."),
    ] = None,
    k: Annotated[str, typer.Option("--k", "-k", help="Columns of the table, as in 1-5 or 1,5,10.")] = "1-5",
    ties: Annotated[
        str,
        typer.Option("--ties", help="against: any tie counts as lost; lowest: ties go to the lowest label."),
    ] = "against",
    hard: Annotated[bool, typer.Option("--hard", help="Use the hard ballots of soft votes.")] = False,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="Treat mutants with at most this margin as touched by every patch."),
    ] = None,
    tau: Annotated[
        int, typer.Option("--tau", min=0, help="Units by which soft ballots may be off, per label.")
    ] = 0,
) -> None:
    """Certify votes: the rank and min-k of every image, for each defender and patch."""
    from costcert.commands.certify import Request, run

    with _in_one_sentence():
        run(
            Request(
                votes=votes,
                patches=patch,
                defenders=defender,
                out=out,
                ablation=ablation,
                classes=classes,
                image_size=image_size,
                ks=k,
                ties=ties,
                hard=hard,
                epsilon=epsilon,
                tau=tau,
            )
        )


def main() -> None:
    """The entry point."""
    app()
