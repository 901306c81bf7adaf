"""`costcert explore`: a local page for exploring certificates by dragging a patch over images."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from costcert.cli.options import AT_LEAST_1, BALLOTS, DATA, MODEL, RUN, SERVER, PathOrUrl
from costcert.cli.pictures import pictures_of
from costcert.errors import CostcertError
from costcert.models.together import spelled_together
from costcert.progress import bar

if TYPE_CHECKING:
    from costcert.certification.deployment import Deployed
    from costcert.datasets.base import Dataset
    from costcert.explorer.session import Session
    from costcert.store.locations import Location
    from costcert.store.runs import Run
    from costcert.store.votes import VotesSource
    from costcert.votes.table import Votes

# Ballots that fit into a laptop's memory; a soft one counts once per label.
MOST_BALLOTS = 1 << 28

EXAMPLES = (
    "costcert explore --demo",
    "costcert explore certs --votes votes --data folder:photos --model model",
)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class ExploreOptions:
    source: Annotated[
        PathOrUrl | None,
        Parameter(
            help="Votes or certificates: a folder, or a file of votes (.npz, .parquet, .csv or .json)."
        ),
    ] = None
    _: KW_ONLY
    demo: Annotated[bool, Parameter(help="Show the sample images of the package.")] = False
    votes: Annotated[
        PathOrUrl | None,
        Parameter(help="The votes of these certificates.", show_default="those beside the certificates"),
    ] = None
    data: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="The images, to show them.",
            show_default="the sample, or the array images of an .npz",
        ),
    ] = None
    split: Annotated[str | None, Parameter(group=DATA, help="Part of the dataset.", show_default="test")] = (
        None
    )
    limit: Annotated[
        int | None,
        Parameter(group=DATA, help="Number of images to show, from the first one on.", validator=AT_LEAST_1),
    ] = None
    models: Annotated[
        list[str] | None,
        Parameter(name=("--model", "-m"), group=MODEL, help="The model that voted, to try it on new images."),
    ] = None
    checkpoint: Annotated[
        PathOrUrl | None, Parameter(group=MODEL, help="Weights of a timm: or strip: model.")
    ] = None
    ablation: Annotated[
        str | None,
        Parameter(group=BALLOTS, help="What each mutant kept, as in columns:19 (for a file of votes)."),
    ] = None
    classes: Annotated[
        int | None,
        Parameter(group=BALLOTS, help="Number of classes (for a file of votes).", validator=AT_LEAST_1),
    ] = None
    image_size: Annotated[
        str | None,
        Parameter(
            group=BALLOTS, help="The model's input size: the side, or height x width (for a file of votes)."
        ),
    ] = None
    host: Annotated[
        str,
        Parameter(group=SERVER, help="Address to listen on; any but this machine's own needs the token."),
    ] = "127.0.0.1"
    port: Annotated[
        int | None,
        Parameter(
            group=SERVER,
            help="Port to listen on.",
            validator=Number(gte=0, lte=65535),
            show_default="8710, or any that is free",
        ),
    ] = None
    token: Annotated[
        str | None,
        Parameter(group=SERVER, env_var="COSTCERT_TOKEN", help="Token that every request must carry."),
    ] = None
    seconds: Annotated[
        float,
        Parameter(group=SERVER, help="Time limit per request, in seconds.", validator=Number(gte=0.1)),
    ] = 30.0
    megabytes: Annotated[
        float,
        Parameter(group=SERVER, help="Size limit of uploads, in megabytes.", validator=Number(gte=0.01)),
    ] = 10.0
    browser: Annotated[
        bool,
        Parameter(group=SERVER, negative="--no-browser", help="Open the page in a browser."),
    ] = True

    @property
    def model(self) -> str | None:
        """The spelling of the model."""
        return spelled_together(self.models) if self.models else None


def run(options: ExploreOptions = ExploreOptions()) -> int:
    """Open a local page to drag a patch over images.

    It shows what a patch can change in the prediction, and what it cannot.
    """
    try:
        _serve(options)
    except KeyboardInterrupt:
        print("costcert: stopped; the page no longer answers, and no file was changed", file=sys.stderr)
        return 130
    return 0


def _serve(options: ExploreOptions) -> None:
    from costcert.console import make_console

    for package in ("fastapi", "uvicorn", "PIL"):
        if find_spec(package) is None:
            raise CostcertError(f"the page needs {package}: pip install 'costcert[explore]'")
    from costcert.explorer.access import LOOPBACK, Access
    from costcert.explorer.limits import Limits
    from costcert.explorer.service import create_app
    from costcert.explorer.serving import address, listening, server

    token = options.token
    if token is None and options.host not in LOOPBACK:
        # A page that other machines can reach needs a token.
        token = secrets.token_urlsafe(16)
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 8):
        raise CostcertError("a token has at least 8 printable ASCII characters")
    session, deployed = opened(options)
    app = create_app(
        session,
        deployed=deployed,
        access=Access(options.host, token),
        limits=Limits(bytes=int(options.megabytes * 1e6), seconds=options.seconds),
    )
    with listening(options.host, options.port) as socket:
        where = address(socket, options.host) + (f"#token={token}" if token else "")
        console = make_console(soft_wrap=True)
        console.print(f"Explore {len(session.votes):,} images of {session.name}: {where}", markup=False)
        if others := session.not_on_the_page:
            console.print(
                f"Not on the page: certificates against {', '.join(others)}, because its stickers are "
                "squares and rectangles in pixels.",
                markup=False,
            )
        console.print("Stop with Ctrl-C.")
        if options.browser and _has_screen():
            webbrowser.open(where)
        server(app).run(sockets=[socket])


def opened(options: ExploreOptions) -> tuple[Session, Deployed | None]:
    """The page's session, and the deployed classifier for new images where a model is given."""
    import numpy as np

    from costcert.certification.certificates import Certificates
    from costcert.explorer.image import Terms
    from costcert.explorer.session import Session
    from costcert.store.runs import open_run

    if options.demo == (options.source is not None):
        raise CostcertError("pass what to show: votes or certificates, or --demo")
    if options.demo:
        return _demo(options)
    assert options.source is not None
    run = open_run(
        options.source,
        options.votes,
        ablation=options.ablation,
        classes=options.classes,
        image_size=options.image_size,
    )
    votes = _limited(run.votes, options.limit)
    certificates: Certificates | None = None
    manifest: Mapping[str, Any] = {}
    if run.certificates is not None:
        manifest = run.certificates.manifest
        votes = votes.under(run.classifier)
        certificates = Certificates.joined(list(run.certificates.shards())).select(slice(0, len(votes)))
        if not np.array_equal(certificates.image_ids, votes.image_ids):
            raise CostcertError(f"{options.source} names other images than its votes: certify them again")
    session = Session(
        votes,
        name=_name(votes, options.source),
        terms=Terms(run.classifier.ties, manifest.get("epsilon"), int(manifest.get("tau") or 0)),
        certificates=certificates,
        pictures=pictures_of(votes.image_ids.tolist(), run.votes, options.data, options.split),
    )
    return session, None if options.model is None else _deployed(run, options)


def _deployed(run: Run, options: ExploreOptions) -> Deployed:
    """The classifier whose votes or certificates are shown, with the model that voted."""
    from costcert.certification.deployment import Deployed, model_of_run
    from costcert.defenders import find

    assert options.model is not None
    model = model_of_run(run, options.model, checkpoint=options.checkpoint)
    names = ["costcert"] if run.certificates is None else [name for name, _ in run.certificates.keys]
    # A masking defender is another classifier for each patch, so one that votes is deployed if there is any.
    voting = [name for name in names if not find(name).masks]
    return Deployed.of(model, run.classifier_by(voting[0] if voting else None))


def _limited(source: VotesSource, limit: int | None) -> Votes:
    """Votes of the first images, or of all where they fit into memory."""
    from costcert.votes.table import Votes

    soft = source.classifier.soft
    most = max(1, MOST_BALLOTS // (source.num_mutants * (1 if soft is None else soft.best)))
    images = min(source.num_images, limit or source.num_images)
    if images > most:
        raise CostcertError(f"{source.path} holds more ballots than fit at once: pass --limit {most}")
    shards: list[Votes] = []
    while sum(map(len, shards)) < images:
        shards.append(source.shard(len(shards)))
    return Votes.joined(shards).take(slice(0, images))


def _name(votes: Votes, source: Location) -> str:
    return str((votes.provenance.get("data") or {}).get("name") or source.name)


def _demo(options: ExploreOptions) -> tuple[Session, Deployed]:
    from costcert.certification.deployment import Deployed
    from costcert.cli.demo import soft_ballots
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.subsets import limited
    from costcert.explorer.pictures import Pictures
    from costcert.explorer.session import Session
    from costcert.models.loading import load_model
    from costcert.votes.voting import vote

    data: Dataset = parse_dataset("sample")
    if options.limit is not None:
        data = limited(data, options.limit)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = load_model(folder)
    assert model.ablation is not None
    soft = soft_ballots()
    with bar("voting") as on_progress:
        votes = vote(model, data, model.ablation, soft=soft, progress=on_progress)
    session = Session(votes, name="the demo's clothes", pictures=Pictures(data, model.prepare))
    return session, Deployed(model, model.ablation, soft=soft)


def _has_screen() -> bool:
    """Whether there is a screen; without one a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
