"""The one call for newcomers: from a network and a loader to certified accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from costcert.certification.accuracy import list_lengths
from costcert.certification.certify import AnyPatch, certify, concrete_patches
from costcert.datasets.given import as_dataset
from costcert.defenders import chosen
from costcert.geometry.ablations import Ablation, as_ablation
from costcert.geometry.sizes import positive_ints
from costcert.progress import OnProgress, bar
from costcert.votes.defence import Soft
from costcert.votes.given import classifier_of
from costcert.votes.voting import AnyData, AnyModel, vote

if TYPE_CHECKING:
    import pandas as pd


def certified_accuracy(
    model: AnyModel,
    data: AnyData,
    ablation: Ablation | str,
    patches: AnyPatch | Iterable[AnyPatch],
    k: int | Iterable[int] | None = None,
    *,
    defenders: str | Iterable[str] = "all",
    soft: Soft | None = None,
    ties: str = "against",
    confidence: float = 0.95,
    hide: str | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Clean and certified accuracy of a network on the images of a loader, in one call.

    Certified accuracy at k is the share of images whose true label provably stays in the top k, wherever a
    patch of this size lies and whatever its pixels are. The network votes on mutants of each image, of which
    only a strip is visible: one that was never trained on mutants has a low accuracy.

    This is `vote`, then `certify`, then `Certificates.accuracy`. Call these instead to keep the votes, which
    take most of the time, and to certify them again.

    Args:
        model: a torch module, from normalised images [M, C, H, W] to logits [M, L]; or what `vote` takes. Its
            mode (training or evaluation) and its device are the same afterwards.
        data: a DataLoader of (normalised float images [B, C, H, W], labels) that does not shuffle; or what
            `vote` takes.
        ablation: the pixels each mutant keeps, as `"columns:4"`.
        patches: the patches to certify against, in pixels of the network's input: `"2"` is a 2 x 2 square.
        k: one k, or several; by default 1 to 5, or to the number of classes.
        defenders: names, or `all`.
        soft: vote with soft ballots, as `Soft(0.35, 4)`.
        ties: as for `certify`.
        confidence: of the intervals around the accuracies.
        hide: how pixels are hidden from a torch module; by default they are 0 after normalisation.
        device: of a torch module; by default the one it is on.
        batch_size: mutants per batch; chosen by device by default.
        progress: show a progress bar on the error stream.

    Returns:
        A tidy table: defender, patch, k, images, clean, certified, and their confidence intervals.

    Example:
        >>> loader = torch.utils.data.DataLoader(test_set, batch_size=64)
        >>> cc.certified_accuracy(network, loader, ablation="columns:4", patches=["2", "5"], k=[1, 5])
    """
    kept, ks = as_ablation(ablation), None if k is None else positive_ints(k, "k")
    # Mistakes in what is certified are found before the network is evaluated for hours.
    chosen(defenders, ablation=kept, soft=soft is not None, partial=False)
    with _bar("reading", progress) as on_progress:
        dataset = as_dataset(data, on_progress)
    with classifier_of(model, dataset, kept, hide=hide, device=device, batch_size=batch_size) as classifier:
        wanted = concrete_patches(patches, classifier.image_size)
        if ks is not None:
            list_lengths(ks, classifier.num_classes)
        with _bar("voting", progress) as on_progress:
            votes = vote(classifier, dataset, kept, soft=soft, progress=on_progress)
    return certify(votes, wanted, defenders, ties=ties).accuracy(ks, confidence=confidence)


@contextmanager
def _bar(doing: str, visible: bool) -> Iterator[OnProgress]:
    if not visible:
        yield lambda done, images: None
        return
    with bar(doing) as on_progress:
        yield on_progress
