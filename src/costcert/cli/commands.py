"""The command line. Each command is a thin face over the library and imports it only when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from costcert import __version__
from costcert.errors import CostcertError
from costcert.store.locations import Location, locate

# What only models, data and training need.
_MODELS = ("torch", "torchvision", "timm", "safetensors", "accelerate", "PIL", "onnxruntime")

# What every command asks that loads a model and images.
WhichMutants = Annotated[
    str | None, typer.Option("--ablation", help="What each mutant keeps; a trained model knows its own.")
]
Weights = Annotated[
    str | None, typer.Option("--checkpoint", help="Weights: .safetensors, or a weights-only torch file.")
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained", help="Use timm's own weights (fetched if need be).")
]
Hiding = Annotated[
    str | None,
    typer.Option("--hide", help="How hidden pixels are shown: zero, black, mean, drop-tokens or crop."),
]
Split = Annotated[str | None, typer.Option("--split", help="Which part of the data; test by default.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Random subset size.")]
Ids = Annotated[str | None, typer.Option("--ids", help="A file of image ids, one a line.")]
Classes = Annotated[int | None, typer.Option("--classes", min=1, help="Number of classes.")]
InputSize = Annotated[str | None, typer.Option("--image-size", help="At the model's input.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Mutants at once.")]
ShardSize = Annotated[int | None, typer.Option("--shard-size", min=1, help="Images per shard.")]
# What every command asks whose shards may be made elsewhere.
EngineName = Annotated[str, typer.Option("--engine", help="Who makes the shards: local, ray or slurm.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that the engine uses.")]
Cpus = Annotated[int | None, typer.Option("--cpus", min=1, help="Cores of each of them.")]
Gpus = Annotated[float | None, typer.Option("--gpus", min=0, help="GPUs of each of them.")]
EngineOptions = Annotated[
    list[str] | None, typer.Option("--engine-option", help="For the engine, as in partition=gpu; repeatable.")
]

app = typer.Typer(
    name="costcert",
    help="Proves whether an image classifier's top-k answer survives an adversarial patch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _located(text: str | None) -> Location | None:
    return None if text is None else locate(text)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """What the user can put right is one sentence and exit code 2; a traceback is a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _MODELS:
            raise
        typer.echo(f"costcert: {error.name} is not installed: pip install 'costcert[models]'", err=True)
        raise typer.Exit(2) from None
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
    votes: Annotated[str, typer.Argument(help="A folder of votes, or an .npz with ballots and truth.")],
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
        str | None,
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
        str | None,
        typer.Option(
            "--epsilon",
            help="Treat mutants with at most this margin as touched by every patch; or probe, as measured by "
            "vote --probe.",
        ),
    ] = None,
    tau: Annotated[
        int, typer.Option("--tau", min=0, help="Units by which soft ballots may be off, per label.")
    ] = 0,
    tuned: Annotated[
        str | None, typer.Option("--tuned", help="Vote as `costcert tune` chose: its .json file.")
    ] = None,
    engine: EngineName = "local",
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    engine_option: EngineOptions = None,
) -> None:
    """Certify votes: the rank and min-k of every image, for each defender and patch."""
    from costcert.cli.certify import Request, run
    from costcert.cli.engine_options import EngineOptions

    with _in_one_sentence():
        run(
            Request(
                votes=locate(votes),
                patches=patch,
                defenders=defender,
                out=_located(out),
                ablation=ablation,
                classes=classes,
                image_size=image_size,
                ks=k,
                ties=ties,
                hard=hard,
                epsilon=epsilon,
                tau=tau,
                tuned=_located(tuned),
                engine=EngineOptions(engine, workers, cpus, gpus, engine_option or ()),
            )
        )


@app.command()
def demo(
    out: Annotated[
        str, typer.Option("--out", "-o", help="Folder for votes, certificates and the page about them.")
    ] = "costcert-demo",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only so many of the images.")] = None,
) -> None:
    """Certify clothes that come with the package, from pixels to proof, in plain words."""
    with _in_one_sentence():
        from costcert.cli.demo import Request, run

        run(Request(out=locate(out), limit=limit))


@app.command()
def vote(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="A folder that train made, shipped:NAME, timm:NAME or onnx:FILE."),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Images: folder:PATH, imagenet:PATH, torchvision:NAME@FOLDER, npz:FILE, idx:FOLDER, "
            "hf:NAME, sample.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the votes; continued if begun.")],
    ablation: WhichMutants = None,
    checkpoint: Weights = None,
    pretrained: Pretrained = False,
    hide: Hiding = None,
    soft: Annotated[
        str | None,
        typer.Option(
            "--soft", help="Also soft ballots: temperature and labels a ballot names, as in 0.35,4."
        ),
    ] = None,
    split: Split = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides which images a limit takes.")] = 0,
    ids: Ids = None,
    classes: Classes = None,
    image_size: InputSize = None,
    mean: Annotated[
        str | None, typer.Option("--mean", help="Of each channel, for models that do not say.")
    ] = None,
    std: Annotated[
        str | None, typer.Option("--std", help="Of each channel, for models that do not say.")
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = None,
    autocast: Annotated[bool, typer.Option("--autocast", help="Half precision where it is safe.")] = False,
    shard_size: ShardSize = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Count images that cannot be read as wrong, and list them.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Measure how far logits move on this machine, for --epsilon probe."),
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch data that are not there.")] = False,
    tuned: Annotated[
        str | None, typer.Option("--tuned", help="Vote as `costcert tune` chose: its .json file.")
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Ask each image only until --patch and --k are decided.")
    ] = False,
    patch: Annotated[
        str | None, typer.Option("--patch", "-p", help="Patches that --adaptive voting has to decide.")
    ] = None,
    ks: Annotated[str, typer.Option("--k", help="List lengths that it has to decide.")] = "1,5",
    engine: EngineName = "local",
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    engine_option: EngineOptions = None,
) -> None:
    """Ask a model about every mutant of every image, and keep the votes."""
    with _in_one_sentence():
        from costcert.cli.engine_options import EngineOptions
        from costcert.cli.vote import Request, run

        run(
            Request(
                model=model,
                data=data,
                out=locate(out),
                checkpoint=_located(checkpoint),
                pretrained=pretrained,
                classes=classes,
                image_size=image_size,
                mean=mean,
                std=std,
                hide=hide,
                device=device,
                batch_size=batch_size,
                autocast=autocast,
                split=split,
                download=download,
                limit=limit,
                seed=seed,
                ids=_located(ids),
                ablation=ablation,
                soft=soft,
                shard_size=shard_size,
                skip_corrupt=skip_corrupt,
                probe=probe,
                tuned=_located(tuned),
                adaptive=adaptive,
                patches=patch,
                ks=ks,
                engine=EngineOptions(engine, workers, cpus, gpus, engine_option or ()),
            )
        )


class _OldSpellings(TyperCommand):
    """Takes the names that options of `train` had in 0.1.0."""

    names: ClassVar = {
        "--rate": "--lr",
        "--body": "--backbone-lr-scale",
        "--light": "--brightness-contrast",
        "--lead": "--margin",
        "--vote": "--vote-loss-weight",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = (argument.partition("=") for argument in args)
        new = [self.names.get(name, name) + equals + value for name, equals, value in given]
        return super().parse_args(ctx, new)


@app.command(cls=_OldSpellings)
def train(
    model: Annotated[
        str, typer.Option("--model", "-m", help="timm:NAME, or strip:small, base or tall for narrow strips.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Training images: folder:PATH, torchvision:NAME@FOLDER, npz:FILE, idx:FOLDER, hf:NAME.",
        ),
    ],
    ablation: Annotated[str, typer.Option("--ablation", help="What each mutant keeps, as in columns:19.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the model; continued if begun.")],
    split: Annotated[str, typer.Option("--split", help="Which part of the data to train on.")] = "train",
    validation: Annotated[
        str | None, typer.Option("--validation", help="Images to validate on; a part held out by default.")
    ] = None,
    holdout: Annotated[float, typer.Option("--holdout", help="The part held out for validation.")] = 0.1,
    preset: Annotated[
        str, typer.Option("--preset", help="default, paper-imagenet or paper-small; options below change it.")
    ] = "default",
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Passes over the images.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Images per step.")] = None,
    mutants: Annotated[
        int | None, typer.Option("--mutants", min=1, help="Mutants per image and step.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="The largest learning rate.")] = None,
    backbone_lr_scale: Annotated[
        float | None,
        typer.Option("--backbone-lr-scale", help="Multiplies it for all layers but the last."),
    ] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", help="Weight decay.")] = None,
    smoothing: Annotated[float | None, typer.Option("--smoothing", help="Label smoothing.")] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", min=0, help="Shift images by up to this many pixels.")
    ] = None,
    brightness_contrast: Annotated[
        float | None, typer.Option("--brightness-contrast", help="Vary brightness and contrast.")
    ] = None,
    colour: Annotated[float | None, typer.Option("--colour", help="The same for each channel.")] = None,
    warp: Annotated[
        float | None, typer.Option("--warp", help="Turn, slant and stretch images by up to this share.")
    ] = None,
    vote_loss_weight: Annotated[
        float | None, typer.Option("--vote-loss-weight", help="Weight of a loss on the mean ballot.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option("--margin", help="Share of ballots by which the truth should lead in it.")
    ] = None,
    warmup: Annotated[float | None, typer.Option("--warmup", help="Epochs until the largest rate.")] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help="Mirror images; wrong where left and right are classes."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Decides all that is random.")] = None,
    hide: Hiding = None,
    image_size: Annotated[
        str | None, typer.Option("--image-size", help="Side, or height x width, at the model's input.")
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            "--fit",
            help="Whole images: squash out of proportion, center without the border, border with padding.",
        ),
    ] = None,
    interpolation: Annotated[
        str | None, typer.Option("--interpolation", help="How to resize, as in bilinear or bicubic.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Weights to start from: .safetensors or weights-only.")
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Start from timm's own weights (fetched if need be).")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or mps.")] = "cpu",
    precision: Annotated[str, typer.Option("--precision", help="no, fp16 or bf16.")] = "no",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that read images.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Train on so many images only.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch data that are not there.")] = False,
) -> None:
    """Train a network on random mutants, so that it votes well on what little they keep."""
    with _in_one_sentence():
        from costcert.cli.train import Request, run

        run(
            Request(
                model=model,
                data=data,
                ablation=ablation,
                out=locate(out),
                split=split,
                validation=validation,
                holdout=holdout,
                preset=preset,
                settings={
                    "epochs": epochs,
                    "batch_size": batch_size,
                    "mutants": mutants,
                    "lr": lr,
                    "backbone_lr_scale": backbone_lr_scale,
                    "weight_decay": weight_decay,
                    "smoothing": smoothing,
                    "shift": shift,
                    "brightness_contrast": brightness_contrast,
                    "colour": colour,
                    "warp": warp,
                    "vote_loss_weight": vote_loss_weight,
                    "margin": margin,
                    "warmup": warmup,
                    "flip": flip,
                    "seed": seed,
                },
                hide=hide,
                image_size=image_size,
                fit=fit,
                interpolation=interpolation,
                checkpoint=_located(checkpoint),
                pretrained=pretrained,
                device=device,
                precision=precision,
                workers=workers,
                limit=limit,
                download=download,
            )
        )


@app.command()
def tune(
    votes: Annotated[str, typer.Argument(help="Votes of validation images, soft and of all mutants.")],
    patch: Annotated[str, typer.Option("--patch", "-p", help="Patches that count, as in 2,5 or 2%.")],
    ks: Annotated[str, typer.Option("--k", help="List lengths that count, as in 1,5.")] = "1,5",
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The .json file for the choice; beside the votes.")
    ] = None,
    most_passes: Annotated[
        int | None, typer.Option("--most-passes", min=1, help="Let at most so many mutants vote.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Of the soft ballots, if they do not say it.")
    ] = None,
) -> None:
    """Choose which mutants vote, and how softly, for the most certified accuracy; no model is asked."""
    with _in_one_sentence():
        from costcert.cli.tune import Request, run

        run(
            Request(
                votes=locate(votes),
                patches=patch,
                ks=ks,
                out=_located(out),
                most_passes=most_passes,
                temperature=temperature,
            )
        )


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of certificates, or .json files of results.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="The report: .html (a page), .tex, .md, .csv or .json (results)."),
    ] = "report.html",
    votes: Annotated[
        list[str] | None,
        typer.Option("--votes", help="Votes of each run, for single images and classes."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Where the images are, to show some.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which part of the data.")] = None,
    name: Annotated[list[str] | None, typer.Option("--name", help="What to call each run.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page.")] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", help="Published numbers beside: paper, or imagenet, gtsrb, cifar100."),
    ] = None,
    ks: Annotated[str, typer.Option("--k", help="List lengths, as in 1-5 or 1,5,10.")] = "1-5",
    figures: Annotated[str | None, typer.Option("--figures", help="Folder for the figures as files.")] = None,
    formats: Annotated[str, typer.Option("--formats", help="Of those files: svg, pdf.")] = "svg,pdf",
    defender: Annotated[
        str | None,
        typer.Option("--defender", help="Whom the figure of several runs shows: names, by default costcert."),
    ] = None,
    leaderboard: Annotated[bool, typer.Option("--leaderboard", help="All runs in one table.")] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Confidence intervals also in .tex and .md.")
    ] = False,
    mixed: Annotated[bool, typer.Option("--mixed", help="Allow runs on different data.")] = False,
) -> None:
    """Show what was certified: a page for people, tables and figures for a paper, a file to cite."""
    with _in_one_sentence():
        from costcert.cli.report import Request, run

        run(
            Request(
                runs=[locate(each) for each in runs],
                out=locate(out),
                names=name or (),
                votes=[locate(each) for each in votes or ()],
                data=data,
                split=split,
                compare=compare,
                figures=_located(figures),
                formats=formats,
                ks=ks,
                defenders=defender,
                leaderboard=leaderboard,
                intervals=intervals,
                mixed=mixed,
                title=title,
            )
        )


@app.command()
def explore(
    source: Annotated[
        str | None, typer.Argument(help="A folder of votes or of certificates.", show_default=False)
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show the clothes that come with the package.")
    ] = False,
    votes: Annotated[
        str | None, typer.Option("--votes", help="Where the ballots of these certificates are.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Where the images are, to show them.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which part of the data.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model that voted, to ask it about new pictures.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Its weights.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first so many images.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; others than this machine need the token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="8710, or any that is free.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="COSTCERT_TOKEN", help="What every request must bring."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="The longest answer.")] = 30.0,
    megabytes: Annotated[float, typer.Option("--megabytes", min=0.01, help="The largest upload.")] = 10.0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page at once.")] = True,
) -> None:
    """Open a local page: drag a sticker over an image and see what it can do, and what it cannot."""
    with _in_one_sentence():
        from costcert.cli.explore import Request, run

        run(
            Request(
                source=_located(source),
                demo=demo,
                votes=_located(votes),
                data=data,
                split=split,
                model=model,
                checkpoint=_located(checkpoint),
                limit=limit,
                host=host,
                port=port,
                token=token,
                seconds=seconds,
                megabytes=megabytes,
                browser=browser,
            )
        )


@app.command()
def check(
    certificates: Annotated[
        str, typer.Argument(help="A folder of certificates, or a .parquet, .csv or .json of certify.")
    ],
    votes: Annotated[
        str | None, typer.Option("--votes", help="The votes they came from, to derive them again.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Derive for so many images; 50 by default.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Derive for every image.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides which images a sample takes.")] = 0,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model, to compare its weights with those noted.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Weights of a timm: or strip: model.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="The images, for --replay.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which part of the data.")] = None,
    replay: Annotated[
        int | None, typer.Option("--replay", min=1, help="Ask the model again about so many images.")
    ] = None,
    ablation: Annotated[
        str | None, typer.Option("--ablation", help="As certify was told, for a .csv, which does not say it.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="As certify was told, for a .csv.")] = None,
    image_size: Annotated[
        str | None, typer.Option("--image-size", help="As certify was told, for a .csv.")
    ] = None,
    ties: Annotated[str | None, typer.Option("--ties", help="As certify was told, for a .csv.")] = None,
    hard: Annotated[bool, typer.Option("--hard", help="As certify was told, for a .csv.")] = False,
    epsilon: Annotated[str | None, typer.Option("--epsilon", help="As certify was told, for a .csv.")] = None,
    tau: Annotated[int | None, typer.Option("--tau", help="As certify was told, for a .csv.")] = None,
    tuned: Annotated[str | None, typer.Option("--tuned", help="As certify was told, for a .csv.")] = None,
) -> None:
    """Check certificates: every byte by its digest, and what they say by a second, plain derivation."""
    with _in_one_sentence():
        if everything and sample is not None:
            raise CostcertError("--all and --sample say how many images to derive for: pass one of them")
        from costcert.cli.check import Asked, Request, run

        good = run(
            Request(
                certificates=locate(certificates),
                votes=_located(votes),
                sample=None if everything else sample or 50,
                seed=seed,
                model=model,
                checkpoint=_located(checkpoint),
                data=data,
                split=split,
                replay=replay,
                asked=Asked(ablation, classes, image_size, ties, hard, epsilon, tau, _located(tuned)),
            )
        )
        if not good:
            raise typer.Exit(1)


@app.command()
def attack(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="A folder that train made, timm:NAME or strip:SIZE."),
    ],
    data: Annotated[str, typer.Option("--data", help="Images, spelled as for vote.")],
    patch: Annotated[str, typer.Option("--patch", "-p", help="One patch, spelled as for certify.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for what is found; continued if begun.")],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="The list the true label is to leave.")] = 1,
    run_folder: Annotated[
        str | None,
        typer.Option("--run", help="Attack the classifier of these votes or certificates, as it is there."),
    ] = None,
    defender: Annotated[
        str | None,
        typer.Option("--defender", "-d", help="Who predicts and certifies; costcert by default."),
    ] = None,
    soft: Annotated[
        str | None, typer.Option("--soft", help="Soft ballots: temperature and labels, as in 0.35,4.")
    ] = None,
    places: Annotated[
        int, typer.Option("--places", min=1, help="Places tried on each image, the worst ones first.")
    ] = 32,
    restarts: Annotated[int, typer.Option("--restarts", min=0, help="Full runs at the best of them.")] = 4,
    steps: Annotated[
        int, typer.Option("--steps", min=0, help="Gradient steps of a run; 0 for random pixels only.")
    ] = 40,
    random: Annotated[int, typer.Option("--random", min=0, help="Random patches for each image.")] = 32,
    universal: Annotated[
        str | None, typer.Option("--universal", help="Also one patch for all: at a fixed or a random place.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try as hard on certified images as on the others.")
    ] = False,
    ablation: WhichMutants = None,
    checkpoint: Weights = None,
    pretrained: Pretrained = False,
    hide: Hiding = None,
    split: Split = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides the images and all chance.")] = 0,
    ids: Ids = None,
    classes: Classes = None,
    image_size: InputSize = None,
    device: Device = "auto",
    batch_size: BatchSize = None,
    shard_size: ShardSize = None,
    engine: EngineName = "local",
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    engine_option: EngineOptions = None,
) -> None:
    """Try to break top-k predictions with patches of real pixels, beside what is certified."""
    with _in_one_sentence():
        from costcert.attacks.effort import Effort
        from costcert.cli import vote as voting
        from costcert.cli.attack import Request, run
        from costcert.cli.engine_options import EngineOptions

        code = run(
            Request(
                voting.Request(
                    model=model,
                    data=data,
                    out=locate(out),
                    checkpoint=_located(checkpoint),
                    pretrained=pretrained,
                    classes=classes,
                    image_size=image_size,
                    hide=hide,
                    device=device,
                    batch_size=batch_size,
                    split=split,
                    limit=limit,
                    seed=seed,
                    ids=_located(ids),
                    ablation=ablation,
                    soft=soft,
                    shard_size=shard_size,
                    engine=EngineOptions(engine, workers, cpus, gpus, engine_option or ()),
                ),
                patch=patch,
                k=k,
                defender=defender,
                run=_located(run_folder),
                universal=universal,
                effort=Effort(places, restarts, steps, random, thorough),
            )
        )
    raise typer.Exit(code)


def main() -> None:
    """The entry point."""
    app()
