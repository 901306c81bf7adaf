"""`costcert certify`: shard by shard, so that memory does not grow with the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from costcert.cli.engine_options import EngineOptions, spread
from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, BALLOTS, OUTPUT, RUN, PathOrUrl
from costcert.cli.spellings import parse_ks, parse_list
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError, SpellingError, StoreError
from costcert.geometry.sizes import as_image_size, shown
from costcert.progress import bar

if TYPE_CHECKING:
    from costcert.certification.accuracy import Tally
    from costcert.certification.certificates import Certificates
    from costcert.geometry.patches import Certified, Original
    from costcert.geometry.preparation import Preparation
    from costcert.geometry.sizes import ImageSize
    from costcert.store.certificates import CertificatesFolder
    from costcert.store.locations import Location
    from costcert.store.votes import VotesSource
    from costcert.votes.defence import Defence
    from costcert.votes.originals import Images, SameSize
    from costcert.votes.table import Votes

# The most images between two updates of the progress bar.
_STEP = 512

EXAMPLES = (
    "costcert certify votes --patch 2%,rectangle:16x64 --out certs",
    "costcert certify ballots.npz --ablation columns:19 --classes 1000 \\\n"
    "  --image-size 224 --patch 32 --defender costcert,cbn -k 1,5,10",
)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class CertifyOptions:
    votes: Annotated[
        PathOrUrl,
        Parameter(
            help="A folder of votes; or an .npz, .parquet, .csv or .json file with truth [images] and "
            "ballots [images, mutants], or for soft ballots labels and units [images, mutants, labels per "
            "ballot]."
        ),
    ]
    _: KW_ONLY
    patches: Annotated[
        str,
        Parameter(
            name=("--patch", "-p"),
            help="Patches, separated by commas: 32 (a square), rectangle:16x64, 2% of the area, 2/32 (2 px "
            "of a 32 px original), 2*square:16 (two at once), original:2 (2 px of the picture before it is "
            "resized).",
        ),
    ]
    defenders: Annotated[
        str | None,
        Parameter(
            name=("--defender", "-d"),
            help="Defenders, separated by commas: costcert, costcert-masks, patchguard, cbn, drs, "
            "double-masking, patchcleanser; or all (but double-masking, which takes longer).",
            show_default="that of --tuned, or all",
        ),
    ] = None
    ties: Annotated[
        str, Parameter(help="against: every tie counts as lost; lowest: ties go to the lowest label.")
    ] = "against"
    ablation: Annotated[
        str | None,
        Parameter(
            group=BALLOTS,
            help="What each mutant kept, as in columns:19. Required for a file that does not record it; "
            "otherwise it selects that subset of the mutants.",
        ),
    ] = None
    classes: Annotated[
        int | None, Parameter(group=BALLOTS, help="Number of classes (likewise).", validator=AT_LEAST_1)
    ] = None
    image_size: Annotated[
        str | None,
        Parameter(group=BALLOTS, help="The model's input size: the side, or height x width (likewise)."),
    ] = None
    tuned: Annotated[
        PathOrUrl | None,
        Parameter(group=BALLOTS, help="Mutants, soft ballots and defender chosen by tune: its .json file."),
    ] = None
    hard: Annotated[bool, Parameter(group=BALLOTS, help="Use the hard ballots of soft votes.")] = False
    epsilon: Annotated[
        str | None,
        Parameter(
            group=BALLOTS,
            help="Treat mutants whose margin is at most this as touched by every patch; probe: as measured "
            "by vote --probe.",
        ),
    ] = None
    tau: Annotated[
        int,
        Parameter(
            group=BALLOTS, help="Units by which each label of a soft ballot may be off.", validator=AT_LEAST_0
        ),
    ] = 0
    out: Annotated[
        PathOrUrl | None,
        Parameter(
            alias="-o",
            group=OUTPUT,
            help="A folder (a started one is continued), or a file that ends in .parquet, .csv or .json. "
            "Endings of other files, such as .xlsx, are refused; run.v2 is a folder.",
        ),
    ] = None
    ks: Annotated[
        str | None,
        Parameter(
            name=("--k", "-k"),
            group=OUTPUT,
            help="Values of k in the table, as in 1-5 or 1,5,10; at most the number of classes.",
            show_default="1-5",
        ),
    ] = None
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: CertifyOptions) -> None:
    """Certify votes: rank and min-k per image, defender and patch.

    min-k is the smallest k whose top-k list no patch can push the true label from.
    """
    from costcert.certification.accuracy import Tally
    from costcert.console import make_console
    from costcert.reports.terminal import print_accuracy
    from costcert.store.exports import manifest_beside

    is_folder = options.out is not None and _is_folder(options.out)
    if options.engine.engine != "local" and not is_folder:
        raise CostcertError(
            f"--engine {options.engine.engine} makes the shards of a folder: pass one with --out, or leave "
            "--engine out"
        )
    source = _open(options)
    work = _Work(options, source)
    ks = _ks(options.ks, work.num_classes)
    # The first image is certified before anything is written, so that bad options leave no trace.
    work.certify(source.shard(0).take(slice(0, 1)))
    work.refuse_unfit()
    tally, kept = Tally(), 0
    if options.out is None:
        for certificates in work.shards(range(source.num_shards)):
            tally.add(certificates)
    elif is_folder:
        kept = _fill_folder(options, options.out, work, tally)
        if rank_and_world_size()[0] > 0:
            # Only rank 0 prints.
            return
    else:
        _export(options.out, work, tally, ks)
    console = make_console()
    for sentence in work.sentences():
        console.print(sentence, markup=False)
    print_accuracy(console, tally.accuracy(ks), work.headings(), num_classes=work.num_classes)
    unread = source.unread()
    if unread:
        console.print(
            f"{len(unread):,} of these images could not be read when they voted, and count as wrong: "
            f"{', '.join(unread[:10])}{', ...' if len(unread) > 10 else ''}",
            highlight=False,
        )
    if kept:
        console.print(
            f"{kept:,} of {source.num_shards:,} shard{'s were' if source.num_shards > 1 else ' was'} there "
            "already, from an earlier run."
        )
    if options.out is not None:
        beside = f" and {manifest_beside(options.out).name}" if options.out.suffix == ".csv" else ""
        console.print(f"Certificates: {options.out}{beside}", markup=False, soft_wrap=True)


def _is_folder(out: Location) -> bool:
    """Whether certificates are written to a folder of this name, or to a file."""
    from costcert.store.exports import EXPORTS
    from costcert.store.folder_names import refuse_file_name

    if out.suffix in EXPORTS:
        return False
    refuse_file_name(out, "certificates are", tuple(EXPORTS))
    return True


def _ks(text: str | None, num_classes: int) -> list[int]:
    """The values of k in the table."""
    from costcert.certification.accuracy import list_lengths

    if text is None:
        return list(range(1, min(5, num_classes) + 1))
    return list_lengths(parse_ks(text), num_classes)


class _Work:
    """What is certified, and against which patches."""

    def __init__(self, options: CertifyOptions, source: VotesSource) -> None:
        from costcert.certification.certify import certified_patches
        from costcert.defenders import chosen, left_out
        from costcert.geometry.patches import Original

        self.options = options
        self.source = source
        self.classifier, tuned = _classifier(options, source)
        self.tuned_defender = tuned if options.defenders is None else None
        self.ablation = self.classifier.ablation
        self.image_size = as_image_size(tuple(source.manifest["image_size"]))
        self.num_classes = int(source.manifest["num_classes"])
        self.patches = certified_patches(parse_list(options.patches), self.image_size)
        self.epsilon, self.tau = self._uncertainty()
        # Adaptive voting may have evaluated all mutants of the first images, and few of others.
        partial = bool(source.manifest["made"].get("until")) or source.shard(0).known is not None
        wanted = options.defenders if options.defenders is not None else self.tuned_defender or "all"
        names = parse_list(wanted)
        soft = self.classifier.soft is not None
        certified = chosen(names, ablation=self.ablation, soft=soft, partial=partial)
        for defender in certified:
            for patch in self.patches:
                # What a patch on the original covers depends on the picture, and is refused there.
                if not isinstance(patch, Original):
                    defender.refuse(self.ablation, patch, self.image_size)
        self.defenders = [each.name for each in certified]
        self.left_out = left_out(names, ablation=self.ablation, soft=soft, partial=partial)
        self._reach: dict[tuple[Original, ImageSize], _Reach] = {}

    def certify(self, votes: Votes) -> Certificates:
        from costcert.certification.certify import joined_parts

        return joined_parts(list(self._parts(votes)))

    def _parts(self, votes: Votes, at_once: int | None = None) -> Iterator[tuple[Images, Certificates]]:
        from costcert.certification.certify import certified_in_parts

        return certified_in_parts(
            votes.under(self.classifier),
            self.patches,
            self.defenders,
            at_once=at_once,
            ties=self.classifier.ties,
            epsilon=self.epsilon,
            tau=self.tau,
            mask=self.classifier.mask,
        )

    @cached_property
    def on_originals(self) -> list[Original]:
        from costcert.geometry.patches import Original

        return [patch for patch in self.patches if isinstance(patch, Original)]

    @cached_property
    def original_sizes(self) -> Mapping[ImageSize, SameSize]:
        """The sizes of all originals, if any patch is on them."""
        return self.source.sizes_of_originals() if self.on_originals else {}

    @cached_property
    def _preparation(self) -> Preparation:
        from costcert.votes.originals import preparation_of

        return preparation_of(self.source, self.on_originals[0])

    def refuse_unfit(self) -> None:
        """Raise if a patch does not fit some of the originals, before all others are certified."""
        from costcert.votes.originals import refuse_unfit

        if self.on_originals:
            refuse_unfit(self.on_originals, self._preparation, self.original_sizes)

    def _reach_of(self, patch: Original, size: ImageSize) -> _Reach:
        """What a patch on originals of this size reaches; found once, beside their certificates."""
        from costcert.geometry.footprints import footprint
        from costcert.geometry.touch import touched

        if (patch, size) not in self._reach:
            at_input = footprint(patch, size, self._preparation)
            delta = touched(self.ablation, at_input, self.image_size).delta
            self._reach[patch, size] = _Reach(delta, at_input.height, at_input.width)
        return self._reach[patch, size]

    def _uncertainty(self) -> tuple[float | None, int]:
        """Epsilon and tau as requested, or as measured by the probe."""
        epsilon, soft = self.options.epsilon, self.classifier.soft is not None
        if epsilon == "probe":
            probe = self.source.manifest["made"].get("probe")
            if not probe:
                raise CostcertError(
                    f"{self.options.votes} holds no probe: add one by voting once more with --probe"
                )
            try:
                measured, tau = float(probe["epsilon"]), int(probe["tau"])
            except (KeyError, TypeError, ValueError):
                raise StoreError(f"the probe in {self.options.votes} is damaged: vote with --probe") from None
            return measured, max(tau if soft else 0, self.options.tau)
        try:
            return None if epsilon is None else float(epsilon), self.options.tau
        except ValueError:
            raise SpellingError(f"cannot read epsilon {epsilon!r}: write a number, or probe") from None

    def shards(self, numbers: Sequence[int]) -> Iterator[Certificates]:
        """Certificates of these shards, in order, with a progress bar on the error stream."""
        from costcert.certification.certify import joined_parts

        with bar("certifying") as on_progress:
            done = self.source.num_images - sum(self.source.shard_length(number) for number in numbers)
            for number in numbers:
                votes = self.source.shard(number)
                parts = []
                on_progress(done, self.source.num_images)
                for images, certificates in self._parts(votes, _STEP):
                    parts.append((images, certificates))
                    self._note_reach(votes, images)
                    done += len(images)
                    on_progress(done, self.source.num_images)
                yield joined_parts(parts)

    def _note_reach(self, votes: Votes, images: Images) -> None:
        """Note what patches reach on the originals of these images, while their touched sets are cached."""
        if not self.on_originals or votes.originals is None:
            return
        read = images if votes.unread is None else images[~votes.unread[images]]
        for height, width in votes.originals[read[:1]].tolist():
            for patch in self.on_originals:
                self._reach_of(patch, (height, width))

    def manifest(self) -> dict[str, Any]:
        from costcert.store.certificates import certificates_manifest

        return certificates_manifest(
            self.source.manifest,
            self.source.digest(),
            self.classifier,
            defenders=self.defenders,
            patches=[str(patch) for patch in self.patches],
            epsilon=self.epsilon,
            tau=self.tau,
        )

    def sentences(self) -> Iterator[str]:
        """What was certified, and what was not."""
        yield f"Certified: {self.classifier}."
        if self.tuned_defender is not None:
            mask = self.classifier.mask
            masking = "" if mask is None else f" masking {mask}, whichever patch comes"
            yield f"As tuned: ranked by {self.tuned_defender}{masking}; --defender certifies others."
        if self.epsilon is not None:
            yield f"Ballots with a margin of at most {self.epsilon:.3g} count as touched by every patch."
        if self.tau:
            yield f"Each label of a soft ballot may be off by {self.tau:,} units."
        instead = ": --hard certifies their hard ballots" if self.classifier.soft is not None else ""
        for reason in self.left_out:
            yield f"Left out: {reason}{instead}."
        yield from self._notes_on_scaled_sizes()

    def _notes_on_scaled_sizes(self) -> Iterator[str]:
        """What resizing does to sizes such as 2/32, which name the size of an original."""
        from costcert.geometry.patches import Scaled, parse_patch
        from costcert.reports.resizing import resizing_note

        for patch in map(parse_patch, parse_list(self.options.patches)):
            if isinstance(patch, Scaled):
                at_input, original = patch.at(self.image_size), (patch.original, patch.original)
                if found := resizing_note(at_input, original, self.source.provenance, self.image_size):
                    yield f"{patch}: {found}."

    def headings(self) -> dict[str, str]:
        """The line above each patch's rows: the patch as it was requested, and what it touches."""
        from costcert.geometry.ablations import Masks
        from costcert.geometry.patches import Original, as_requested
        from costcert.geometry.touch import touched

        mutants = self.ablation.count(self.image_size)

        def reach(patch: Certified) -> str:
            if isinstance(patch, Original):
                changed, delta = self._largest_reach(patch, mutants)
            else:
                changed, delta = "", touched(self.ablation, patch, self.image_size).delta
            if isinstance(self.ablation, Masks):
                return f"{changed}at least {mutants - delta} of {mutants} mutants hide it"
            return f"{changed}touches at most {delta} of {mutants} mutants"

        return {
            str(patch): f"{title}: {reach(patch)}"
            for patch, title in as_requested(parse_list(self.options.patches), self.image_size).items()
        }

    def _largest_reach(self, patch: Original, mutants: int) -> tuple[str, int]:
        """How much of the input a patch on originals changes, in words, and how many mutants it touches."""
        sizes = list(self.original_sizes)
        if not sizes:
            return "", mutants
        if any((patch, size) not in self._reach for size in sizes):
            # Certificates of an earlier run, or of other processes.
            with bar(f"following {patch}", "sizes") as on_progress:
                for done, size in enumerate(sizes):
                    on_progress(done, len(sizes))
                    self._reach_of(patch, size)
        found = [self._reach_of(patch, size) for size in sizes]
        sides = max(each.height for each in found), max(each.width for each in found)
        of = shown(sizes[0]) if len(sizes) == 1 else f"{len(sizes):,} sizes"
        changed = f"of originals of {of}, changes up to {shown(sides)} pixels of the input, "
        return changed, max(each.delta for each in found)


class _Reach(NamedTuple):
    """The most mutants, rows and columns of the input that a patch reaches on originals of one size."""

    delta: int
    height: int
    width: int


def _classifier(options: CertifyOptions, source: VotesSource) -> tuple[Defence, str | None]:
    """What is certified: the classifier that cast these ballots, with the requested changes.

    The second value is the defender that `tune` chose; certificates may be of several.
    """
    from costcert.geometry.ablations import parse_ablation
    from costcert.geometry.patches import certified_patch
    from costcert.votes.tuning import read_tuned

    cast = replace(source.classifier, ties=options.ties)
    if options.tuned is not None:
        if options.hard or options.ablation is not None:
            raise CostcertError(
                "--tuned defines which mutants vote and how softly: leave --ablation and --hard out"
            )
        tuned = read_tuned(options.tuned)
        # Other defenders than the chosen one mask for each patch that they are certified against.
        size = as_image_size(tuple(source.manifest["image_size"]))
        kept = tuned.mask if options.defenders is None else None
        mask = None if kept is None else certified_patch(kept, size)
        changed = replace(cast, ablation=tuned.ablation, soft=tuned.soft, mask=mask)
        return changed.with_classes(int(source.manifest["num_classes"])), tuned.defender
    if options.ablation is not None:
        cast = replace(cast, ablation=parse_ablation(options.ablation))
    return replace(cast, soft=None) if options.hard else cast, None


def _open(options: CertifyOptions) -> VotesSource:
    from costcert.store.sources import open_votes

    return open_votes(
        options.votes, ablation=options.ablation, classes=options.classes, image_size=options.image_size
    )


def _fill_folder(options: CertifyOptions, folder: Location, work: _Work, tally: Tally) -> int:
    """Complete a folder; returns how many of its shards were there already."""
    from costcert.store.certificates import CertificatesFolder, begin_certificates

    plan = begin_certificates(folder, work.manifest())
    missing = plan.missing()
    if options.engine.is_spread:
        # Workers may run in another folder.
        resolved = replace(options, votes=options.votes.resolve(), out=folder.resolve())
        spread(options.engine, CertifyJob(resolved), "certifying", begin=lambda: _Folder(plan, work.source))
    else:
        for number, certificates in zip(missing, work.shards(missing), strict=True):
            plan.write(certificates, number)
        plan.seal(missing)
    if rank_and_world_size()[0] == 0:
        for certificates in CertificatesFolder(folder).shards():
            tally.add(certificates)
    return plan.num_shards - len(missing)


@dataclass(frozen=True)
class CertifyJob:
    """Makes shards of certificates in any process."""

    request: CertifyOptions

    def open(self) -> Callable[[int], None]:
        from costcert.store.certificates import CertificatesFolder

        assert self.request.out is not None
        source = _open(self.request)
        work, plan = _Work(self.request, source), CertificatesFolder(self.request.out)
        return lambda number: plan.write(work.certify(source.shard(number)), number)

    def is_done(self, number: int) -> bool:
        from costcert.store.parquet import shard_path

        assert self.request.out is not None
        return shard_path(self.request.out, number).exists()


class _Folder:
    """A folder of certificates, with the number of images and the shard lengths of its votes."""

    def __init__(self, plan: CertificatesFolder, votes: VotesSource) -> None:
        self.folder, self.num_images = plan.folder, votes.num_images
        self.missing, self.seal, self.shard_length = plan.missing, plan.seal, votes.shard_length


def _export(path: Location, work: _Work, tally: Tally, ks: list[int]) -> None:
    from costcert.store.exports import Export

    with Export(path, work.manifest()) as export:
        for certificates in work.shards(range(work.source.num_shards)):
            export.add(certificates)
            tally.add(certificates)
        export.finish(tally.accuracy(ks))
