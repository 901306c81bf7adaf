"""A classifier that resizes pictures and records how, for tests of patches on the originals."""

from costcert.geometry.preparation import Preparation
from costcert.models.preprocessing import Preprocessing
from tiny import Tiny


class Resized(Tiny):
    """`Tiny` on an input of another size than its pictures."""

    image_size = (9, 12)

    def __init__(self, seed=0, *, interpolation="bicubic", fit="squash", part=1.0, **options):
        super().__init__(seed, **options)
        self.preprocessing = Preprocessing(
            self.image_size,
            (0.5,),
            (0.25,),
            channels=1,
            crop_pct=part,
            crop_mode=fit,
            interpolation=interpolation,
        )

    @staticmethod
    def preparation_of(votes):
        """How pictures became the input, as these votes record it."""
        return Preparation.from_json(votes.provenance["model"]["preprocessing"])

    @property
    def preparation(self):
        return self.preprocessing

    def prepare(self, image):
        return self.preprocessing.prepare(image)

    def metadata(self):
        return {**super().metadata(), "preprocessing": self.preprocessing.to_json()}
