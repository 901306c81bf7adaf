"""The certified classifier in use: from images to a list of labels.

It votes with the code that made the certified votes and ranks labels with the certified defender, so that the
deployed classifier is the one that was certified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certification.certificates import Certificates
from costcert.certification.certify import AnyPatch, certify
from costcert.datasets.pictures import Picture, Pictures, as_pictures
from costcert.defenders import find
from costcert.defenders.patchcleanser import PatchCleanser
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, as_ablation
from costcert.geometry.patches import Square, certified_patch
from costcert.geometry.sizes import positive_int
from costcert.geometry.touch import Touched
from costcert.models.classifier import Classifier
from costcert.store.locations import Location
from costcert.store.runs import Run, open_run
from costcert.votes.adaptive import TopK, TopRows
from costcert.votes.collector import VoteCollector
from costcert.votes.defence import Defence, Soft
from costcert.votes.originals import of_one_size, touched_by
from costcert.votes.table import Votes, check_votes
from costcert.votes.validation import as_array, shortened


class Deployed:
    """Predicts the top k labels of images, and certifies them.

    Args:
        ablation: the pixels each mutant keeps; by default those the model was trained on.
        defender: the defender that ranks the labels.
        patch: the patch that a masking defender, such as PatchGuard, masks for; others ignore it.
        soft: vote with soft ballots, made this way.
        ties: how certificates treat ties; the prediction itself breaks them in favour of the lowest label.
    """

    def __init__(
        self,
        model: Classifier,
        ablation: Ablation | str | None = None,
        *,
        defender: str = "costcert",
        patch: AnyPatch | None = None,
        soft: Soft | None = None,
        ties: str = "against",
    ) -> None:
        _check_model(model)
        if ablation is None and model.ablation is None:
            raise CostcertError("the model has no ablation of its own: pass one, as in columns:19")
        kept = as_ablation(model.ablation if ablation is None else ablation)
        if soft is not None and not isinstance(soft, Soft):
            raise CostcertError(f"soft must be a value like Soft(0.35, 4), got {soft!r}")
        masks = find(defender).masks
        if patch is None and masks:
            raise CostcertError(
                f"{find(defender).title} predicts by masking a patch: pass the patch, as in square:32"
            )
        fitting = None if patch is None else certified_patch(patch, model.image_size)
        mask = fitting if masks else None
        self._deploy(model, Defence(kept, model.metadata().get("hide"), soft, defender, mask, ties))

    @classmethod
    def of(cls, model: Classifier, classifier: Defence) -> Deployed:
        """This network, deployed as this classifier."""
        _check_model(model)
        if not isinstance(classifier, Defence):
            raise CostcertError(f"the classifier must be a Defence, got {shortened(classifier)}")
        deployed = object.__new__(cls)
        deployed._deploy(model, classifier)
        return deployed

    @classmethod
    def from_run(
        cls,
        folder: str | Location,
        model: Classifier | str,
        *,
        votes: str | Location | None = None,
        defender: str | None = None,
        patch: AnyPatch | None = None,
    ) -> Deployed:
        """The classifier of a finished run, with the network that cast its votes.

        Args:
            folder: of votes, or of certificates with a folder `votes` beside them.
            model: the network, or its spelling on the command line; it must be the one that cast the votes.
            votes: the folder of votes, if it is not beside the certificates.
            defender: one of those that were certified; CostCert, or the only one, by default.
            patch: the patch that a masking defender masks for, one of those that were certified.
        """
        run = open_run(folder, votes)
        return cls.of(model_of_run(run, model), run.classifier_by(defender, patch))

    def _deploy(self, model: Classifier, classifier: Defence) -> None:
        classifier = classifier.with_classes(model.num_classes)
        if classifier.defender is None:
            raise CostcertError("a deployed classifier needs a defender: name one, such as costcert")
        if classifier.soft is not None and classifier.soft.temperature is None:
            raise CostcertError(
                "the temperature of these soft ballots is unknown: vote again with a temperature"
            )
        self.model, self.classifier = model, classifier
        self._tried_out = False
        self.defender = find(classifier.defender)
        hide = model.metadata().get("hide")
        if hide != classifier.hide:
            raise CostcertError(
                f"this model has hide={hide!r}, but the classifier has hide={classifier.hide!r}: load the "
                f"model with hide={classifier.hide!r}"
            )
        refusal = self.defender.refusal(soft=classifier.soft is not None, partial=False)
        if refusal is not None:
            raise CostcertError(refusal)
        # Mutants that this defender cannot read; whether a patch is covered is known only when one is named.
        self.defender.refuse(classifier.ablation, Square(1), model.image_size)

    def __repr__(self) -> str:
        return f"Deployed({self.model!r}: {self.classifier})"

    @property
    def ablation(self) -> Ablation:
        return self.classifier.ablation

    def predict(
        self, pictures: Picture | Iterable[Picture], k: int = 5, *, adaptive: bool = False
    ) -> npt.NDArray[np.int64]:
        """[N, k], the labels of each image, best first.

        Args:
            pictures: a Pillow image, or its pixels as uint8 [H, W] or [H, W, 3]; several as a list, or as an
                array [N, H, W] or [N, H, W, C]. The model resizes and normalises them.
            k: how many labels, at most all of them.
            adaptive: evaluate mutants only until the others cannot change the result, for defenders that rank
                labels by their votes (the smaller k, the fewer; never fewer than half of them), and for masks
                (one or two rows of mutants often decide the first label; for a larger k votes break ties,
                which takes nearly all).
        """
        if positive_int(k, "k") > self.model.num_classes:
            raise CostcertError(f"k must be at most {self.model.num_classes}, the number of classes, got {k}")
        if not adaptive:
            return self.ranked(self.votes(pictures), k)
        if not self.defender.predicts_by_votes and not isinstance(self.defender, PatchCleanser):
            raise CostcertError(
                f"{self.defender.title} does not rank labels by their votes alone, so it predicts from all "
                "ballots: leave adaptive out"
            )
        until = TopK(k) if self.defender.predicts_by_votes else TopRows(k)
        return until.predict(self._votes(as_pictures(pictures), None, until))

    def ranked(self, votes: Votes, k: int) -> npt.NDArray[np.int64]:
        """[N, k], the labels that these votes rank first."""
        found = np.empty((len(votes), k), dtype=np.int64)
        for images, part, windows in self._windows(votes):
            found[images] = self.defender.predict(part, windows, k)
        return found

    def scores(self, votes: Votes) -> npt.NDArray[np.int64]:
        """[N, L], the scores by which labels are ranked."""
        found = np.empty((len(votes), votes.num_classes), dtype=np.int64)
        for images, part, windows in self._windows(votes):
            found[images] = self.defender.scores(part, windows)
        return found

    def _windows(self, votes: Votes) -> Iterator[tuple[npt.NDArray[np.int64], Votes, Touched]]:
        """The windows that are masked; those of a patch on the original differ by the size of the picture."""
        mask = self.classifier.mask
        if mask is None:
            yield np.arange(len(votes)), votes, Touched.nothing(votes.num_mutants)
            return
        wanted = certified_patch(mask, self.model.image_size)
        for images in of_one_size(votes, [wanted]):
            part = votes.take(images)
            yield images, part, touched_by(part, wanted)

    def certify(
        self,
        pictures: Picture | Iterable[Picture],
        labels: npt.ArrayLike,
        patches: AnyPatch | Iterable[AnyPatch],
        *,
        ties: str | None = None,
    ) -> Certificates:
        """For one label per image, the smallest k for which it stays in the top k of `predict`.

        Args:
            pictures: as for `predict`.
            labels: [N], or one label for one image.
            patches: the patches to certify against.
            ties: as for `certify`; those of the classifier by default.
        """
        if labels is None:
            raise CostcertError(
                "labels must be one label per image, got None: the true ones, or for predicted ones "
                "predict(pictures, k=1)[:, 0]"
            )
        return self.certify_votes(self.votes(pictures, labels), patches, ties=ties)

    def certify_votes(
        self, votes: Votes, patches: AnyPatch | Iterable[AnyPatch], *, ties: str | None = None
    ) -> Certificates:
        """The same from votes that were cast before."""
        check_votes(votes)
        return certify(
            votes.under(self.classifier),
            patches,
            [self.defender.name],
            ties=ties or self.classifier.ties,
            mask=self.classifier.mask,
        )

    def votes(self, pictures: Picture | Iterable[Picture], labels: npt.ArrayLike | None = None) -> Votes:
        """The votes of all mutants of these images; without labels the true label is set to 0."""
        return self._votes(as_pictures(pictures), labels)

    def _votes(
        self, pictures: list[Any], labels: npt.ArrayLike | None, until: TopK | TopRows | None = None
    ) -> Votes:
        truth = np.zeros(len(pictures), np.int64) if labels is None else as_array(labels, "labels")
        images = Pictures(pictures, np.atleast_1d(truth))
        collector = VoteCollector(
            self.model,
            images,
            self.classifier.ablation,
            soft=self.classifier.soft,
            until=until,
            try_out=not self._tried_out,
        )
        # Patches on the original are followed through this preparation.
        claimed = self.model.preparation
        prepared = {"model": {"preprocessing": None if claimed is None else claimed.to_json()}}
        (votes,) = collector.shards([range(len(images))], prepared, lambda done: None)
        self._tried_out = True
        return votes


def _check_model(model: Any) -> None:
    if not isinstance(model, Classifier):
        raise CostcertError(
            f"the model must be one that load_model returns, got {shortened(model)}: "
            "load_model also takes torch modules and functions"
        )


def model_of_run(
    run: Run, model: Classifier | str, *, checkpoint: Location | None = None, device: str = "auto"
) -> Classifier:
    """The network that cast the votes of a run; any other is refused."""
    from costcert.models.reopening import model_that_voted, refuse_other_model

    votes = run.votes
    noted = {**(votes.manifest["made"].get("model") or {}), "hide": votes.classifier.hide}
    if isinstance(model, str):
        return model_that_voted(
            model,
            noted,
            num_classes=votes.num_classes,
            class_names=votes.manifest.get("class_names"),
            ablation=votes.ablation,
            image_size=votes.image_size,
            checkpoint=checkpoint,
            device=device,
        )
    _check_model(model)
    refuse_other_model(model, noted, votes.image_size, votes.manifest.get("class_names"))
    return model
