"""`costcert certify`: shard by shard, so that memory does not grow with the data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from costcert.certification.accuracy import Tally
from costcert.certification.certificates import Certificates
from costcert.certification.certify import certify, concrete_patches
from costcert.cli.engine_options import EngineOptions, spread
from costcert.cli.progress import bar
from costcert.defenders import chosen
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError, SpellingError, StoreError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import as_image_size
from costcert.geometry.touch import touched
from costcert.reports.terminal import print_accuracy
from costcert.store.certificates import CertificatesFolder, begin_certificates, certificates_manifest
from costcert.store.exports import EXPORTS, Export
from costcert.store.locations import Location
from costcert.store.parquet import shard_path
from costcert.store.votes import VotesArchive, VotesFolder, VotesSource
from costcert.votes.defence import Defence
from costcert.votes.table import Votes
from costcert.votes.tuning import read_tuned

# Images between two movements of the progress bar.
_STEP = 512


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    votes: Location
    patches: str
    defenders: str
    out: Location | None
    ablation: str | None
    classes: int | None
    image_size: str | None
    ks: str
    ties: str
    hard: bool
    epsilon: str | None
    tau: int
    tuned: Location | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(request: Request) -> None:
    ks = parse_ks(request.ks)
    source = _open(request)
    work = _Work(request, source)
    # The first images are certified before anything is written, so that a bad request leaves no trace.
    work.certify(source.shard(0).take(slice(0, 1)))
    tally = Tally()
    if request.out is None:
        for certificates in work.shards(range(source.num_shards)):
            tally.add(certificates)
    elif request.out.suffix in EXPORTS:
        _export(request.out, work, tally, ks)
    else:
        _fill_folder(request, request.out, work, tally)
        if rank_and_world_size()[0] > 0:
            # Of many processes the first one speaks for all.
            return
    console = Console()
    print_accuracy(console, tally.accuracy(ks), work.headings())
    unread = source.unread() if isinstance(source, VotesFolder) else []
    if unread:
        console.print(
            f"{len(unread):,} of these images could not be read when they voted, and count as wrong: "
            f"{', '.join(unread[:10])}{', ...' if len(unread) > 10 else ''}",
            highlight=False,
        )
    if request.out is not None:
        console.print(f"Certificates: {request.out}", highlight=False)


class _Work:
    """The certificates of one request."""

    def __init__(self, request: Request, source: VotesSource) -> None:
        self.request = request
        self.source = source
        self.classifier = _classifier(request, source)
        self.ablation: Ablation = self.classifier.ablation
        self.image_size = as_image_size(tuple(source.manifest["image_size"]))
        self.patches: list[OnePatch | Several] = concrete_patches(
            parse_list(request.patches), self.image_size
        )
        self.epsilon, self.tau = self._distrust()
        # Adaptive voting may have evaluated all mutants of the first images, and few of others.
        partial = bool(source.manifest["made"].get("until")) or source.shard(0).known is not None
        names = parse_list(request.defenders)
        soft = self.classifier.soft is not None
        self.defenders = [each.name for each in chosen(names, soft=soft, partial=partial)]

    def certify(self, votes: Votes) -> Certificates:
        return certify(
            votes.under(self.classifier),
            self.patches,
            self.defenders,
            ties=self.classifier.ties,
            epsilon=self.epsilon,
            tau=self.tau,
        )

    def _distrust(self) -> tuple[float | None, int]:
        """Epsilon and tau as asked for, or as the voting machine was probed."""
        asked, soft = self.request.epsilon, self.classifier.soft is not None
        if asked == "probe":
            probe = self.source.manifest["made"].get("probe")
            if not probe:
                raise CostcertError(
                    f"{self.request.votes} holds no probe: add one by voting once more with --probe"
                )
            try:
                epsilon, tau = float(probe["epsilon"]), int(probe["tau"])
            except (KeyError, TypeError, ValueError):
                raise StoreError(f"the probe in {self.request.votes} is damaged: vote with --probe") from None
            return epsilon, max(tau if soft else 0, self.request.tau)
        try:
            return None if asked is None else float(asked), self.request.tau
        except ValueError:
            raise SpellingError(f"cannot read epsilon {asked!r}: write a number, or probe") from None

    def shards(self, numbers: Sequence[int]) -> Iterator[Certificates]:
        """Certificates of these shards, in order, with a progress bar on the error stream."""
        with bar("certifying") as on_progress:
            done = self.source.num_images - sum(self.source.shard_length(number) for number in numbers)
            for number in numbers:
                votes = self.source.shard(number)
                parts = []
                for start in range(0, len(votes), _STEP):
                    on_progress(done, self.source.num_images)
                    parts.append(self.certify(votes.take(slice(start, start + _STEP))))
                    done += len(parts[-1])
                yield Certificates.joined(parts)

    def manifest(self) -> dict[str, Any]:
        return certificates_manifest(
            self.source.manifest,
            self.source.digest(),
            self.classifier,
            defenders=self.defenders,
            patches=[str(patch) for patch in self.patches],
            epsilon=self.epsilon,
            tau=self.tau,
        )

    def headings(self) -> dict[str, str]:
        """What to say above each patch's rows."""
        mutants = self.ablation.count(self.image_size)
        return {
            str(patch): f"{patch}: touches at most "
            f"{touched(self.ablation, patch, self.image_size).delta} of {mutants} mutants"
            for patch in self.patches
        }


def _classifier(request: Request, source: VotesSource) -> Defence:
    """What is certified: the classifier these are the ballots of, or as much of it as was asked for."""
    cast = replace(source.classifier, ties=request.ties)
    if request.tuned is not None:
        if request.hard or request.ablation is not None:
            raise CostcertError(
                "--tuned says which mutants vote and how softly: leave --ablation and --hard out"
            )
        ablation, soft = read_tuned(request.tuned)
        tuned = replace(cast, ablation=ablation, soft=soft)
        return tuned.with_classes(int(source.manifest["num_classes"]))
    if request.ablation is not None:
        cast = replace(cast, ablation=parse_ablation(request.ablation))
    return replace(cast, soft=None) if request.hard else cast


def _open(request: Request) -> VotesSource:
    if request.votes.is_dir():
        for option, value in (("--classes", request.classes), ("--image-size", request.image_size)):
            if value is not None:
                raise CostcertError(f"{option} is for .npz files: a folder of votes says it in its manifest")
        return VotesFolder(request.votes)
    wanted = {
        "--ablation": request.ablation,
        "--classes": request.classes,
        "--image-size": request.image_size,
    }
    missing = [option for option, value in wanted.items() if value is None]
    if request.votes.exists() and missing:
        raise CostcertError(
            f"{request.votes} does not say how its votes were made: pass {', '.join(missing)}, "
            "as in --ablation columns:19 --classes 1000 --image-size 224"
        )
    return VotesArchive(
        request.votes,
        ablation=parse_ablation(request.ablation or "columns:1"),
        num_classes=request.classes or 1,
        image_size=as_image_size(request.image_size or 1),
    )


def _fill_folder(request: Request, folder: Location, work: _Work, tally: Tally) -> None:
    plan = begin_certificates(folder, work.manifest())
    if request.engine.is_spread:
        there = replace(request, votes=request.votes.resolve(), out=folder.resolve())
        spread(request.engine, CertifyJob(there), "certifying", begin=lambda: _Filling(plan, work.source))
    else:
        missing = plan.missing()
        for number, certificates in zip(missing, work.shards(missing), strict=True):
            plan.write(certificates, number)
        plan.seal(missing)
    if rank_and_world_size()[0] > 0:
        return
    for certificates in CertificatesFolder(folder).shards():
        tally.add(certificates)


@dataclass(frozen=True)
class CertifyJob:
    """Makes shards of certificates, anywhere."""

    request: Request

    def open(self) -> Callable[[int], None]:
        assert self.request.out is not None
        source = _open(self.request)
        work, plan = _Work(self.request, source), CertificatesFolder(self.request.out)
        return lambda number: plan.write(work.certify(source.shard(number)), number)

    def is_done(self, number: int) -> bool:
        assert self.request.out is not None
        return shard_path(self.request.out, number).exists()


class _Filling:
    """Certificates in the making, with what only their votes know."""

    def __init__(self, plan: CertificatesFolder, votes: VotesSource) -> None:
        self.folder, self.num_images = plan.folder, votes.num_images
        self.missing, self.seal, self.shard_length = plan.missing, plan.seal, votes.shard_length


def _export(path: Location, work: _Work, tally: Tally, ks: list[int]) -> None:
    with Export(path, work.manifest()) as export:
        for certificates in work.shards(range(work.source.num_shards)):
            export.add(certificates)
            tally.add(certificates)
        export.finish(tally.accuracy(ks))


def manifest_of(request: Request) -> dict[str, Any]:
    """What certificates that were asked for like this note about themselves."""
    return _Work(request, _open(request)).manifest()


def parse_list(text: str) -> list[str]:
    """What stands between commas, in `square:2, 2%`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_ks(text: str) -> list[int]:
    """The k of `1-5` or `1,5,10`."""
    ks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last or last - first > 100:
            raise SpellingError(f"cannot read k {text!r}: write 5, 1-5 or 1,5,10")
        ks.extend(range(first, last + 1))
    return list(dict.fromkeys(ks))
