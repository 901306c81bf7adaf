"""`costcert explore`: a local page on which certificates are understood by touching them."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from costcert.certification.certificates import Certificates
from costcert.cli.progress import bar
from costcert.defenders import find
from costcert.errors import CostcertError
from costcert.store.locations import Location
from costcert.store.runs import Run, open_run
from costcert.store.votes import VotesFolder, read_votes
from costcert.votes.table import Votes

if TYPE_CHECKING:
    from costcert.certification.deployment import Deployed
    from costcert.datasets.base import Dataset
    from costcert.explorer.pictures import Pictures
    from costcert.explorer.session import Session

# Ballots that fit into a laptop's memory; a soft one counts once for every label it names.
MOST_BALLOTS = 1 << 28


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    source: Location | None = None
    demo: bool = False
    votes: Location | None = None
    data: str | None = None
    split: str | None = None
    model: str | None = None
    checkpoint: Location | None = None
    limit: int | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    token: str | None = None
    seconds: float = 30.0
    megabytes: float = 10.0
    browser: bool = True


def run(request: Request) -> None:
    for package in ("fastapi", "uvicorn", "PIL"):
        if find_spec(package) is None:
            raise CostcertError(f"the page needs {package}: pip install 'costcert[explore]'")
    from costcert.explorer.access import LOOPBACK, Access
    from costcert.explorer.limits import Limits
    from costcert.explorer.service import create_app
    from costcert.explorer.serving import address, listening, server

    token = request.token
    if token is None and request.host not in LOOPBACK:
        # What others can reach asks who they are.
        token = secrets.token_urlsafe(16)
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 8):
        raise CostcertError("a token has at least 8 plain characters")
    session, deployed = opened(request)
    app = create_app(
        session,
        deployed=deployed,
        access=Access(request.host, token),
        limits=Limits(bytes=int(request.megabytes * 1e6), seconds=request.seconds),
    )
    socket = listening(request.host, request.port)
    where = address(socket, request.host) + (f"#token={token}" if token else "")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Explore {len(session.votes):,} images of {session.name}: {where}", markup=False)
    console.print("Stop with Ctrl-C.")
    if request.browser and _has_screen():
        webbrowser.open(where)
    server(app).run(sockets=[socket])


def opened(request: Request) -> tuple[Session, Deployed | None]:
    """What to show, and the model that takes pictures, where there is one."""
    from costcert.explorer.image import Terms
    from costcert.explorer.session import Session

    if request.demo == (request.source is not None):
        raise CostcertError("say what to show: a folder of votes or certificates, or --demo")
    if request.demo:
        return _demo(request)
    assert request.source is not None
    run = open_run(request.source, request.votes)
    votes = _limited(run.votes, request.limit)
    certificates, manifest = None, {}
    if run.certificates is not None:
        manifest = run.certificates.manifest
        votes = votes.under(run.classifier)
        certificates = Certificates.joined(list(run.certificates.shards())).select(slice(0, len(votes)))
        if not np.array_equal(certificates.image_ids, votes.image_ids):
            raise CostcertError(f"{request.source} names other images than its votes: certify them again")
    session = Session(
        votes,
        name=_name(votes, request.source),
        terms=Terms(run.classifier.ties, manifest.get("epsilon"), int(manifest.get("tau") or 0)),
        certificates=certificates,
        pictures=_pictures(votes, request),
    )
    return session, None if request.model is None else _deployed(run, request)


def _deployed(run: Run, request: Request) -> Deployed:
    """The classifier whose votes or certificates are shown, with the model that voted."""
    from costcert.certification.deployment import Deployed, model_of_run

    assert request.model is not None
    model = model_of_run(run, request.model, checkpoint=request.checkpoint)
    names = ["costcert"] if run.certificates is None else [name for name, _ in run.certificates.keys]
    # A masking defender is another classifier for each patch; the page compares them all by ballots.
    voting = [name for name in names if not find(name).masks]
    return Deployed.of(model, run.classifier_by(voting[0] if voting else None))


def _limited(folder: VotesFolder, limit: int | None) -> Votes:
    """The first images, or all of them where they fit."""
    if limit is not None and limit <= folder.shard_length(0):
        return folder.shard(0).take(slice(0, limit))
    spread = 1 if folder.classifier.soft is None else folder.classifier.soft.best
    if folder.num_images * folder.num_mutants * spread > MOST_BALLOTS:
        raise CostcertError(
            f"{folder.folder} holds more ballots than fit at once: pass --limit {folder.shard_length(0)}"
        )
    return read_votes(folder.folder).take(slice(0, limit))


def _pictures(votes: Votes, request: Request) -> Pictures | None:
    """The images, where the data are at hand, as the model saw them."""
    from costcert.datasets.parse import parse_dataset
    from costcert.explorer.pictures import Pictures
    from costcert.models.preprocessing import Preprocessing

    known = str((votes.provenance.get("data") or {}).get("name"))
    # The sample is always at hand, also where only part of it voted.
    spelling = request.data or ("sample" if known.partition(" ")[0] == "sample" else None)
    if spelling is None:
        return None
    data = parse_dataset(spelling, request.split or "test")
    if not set(data.ids).intersection(votes.image_ids.tolist()):
        raise CostcertError(f"{spelling} has none of the images that voted: pass the data of these votes")
    settings = (votes.provenance.get("model") or {}).get("preprocessing")
    preprocessing = Preprocessing.from_json(settings) if settings else Preprocessing(votes.image_size)
    return Pictures(data, preprocessing.prepare)


def _name(votes: Votes, source: Location) -> str:
    return str((votes.provenance.get("data") or {}).get("name") or source.name)


def _demo(request: Request) -> tuple[Session, Deployed]:
    from costcert.certification.deployment import Deployed
    from costcert.cli.demo import SOFT
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.subsets import limited
    from costcert.explorer.pictures import Pictures
    from costcert.explorer.session import Session
    from costcert.models.loading import load_model
    from costcert.votes.voting import vote

    data: Dataset = parse_dataset("sample")
    if request.limit is not None:
        data = limited(data, request.limit)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = load_model(folder)
    assert model.ablation is not None
    with bar("voting") as on_progress:
        votes = vote(model, data, model.ablation, soft=SOFT, progress=on_progress)
    session = Session(votes, name="the demo's clothes", pictures=Pictures(data, model.prepare))
    return session, Deployed(model, model.ablation, soft=SOFT)


def _has_screen() -> bool:
    """Without a screen a browser in text mode would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
