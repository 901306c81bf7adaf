"""The trained models in the package: `shipped:fashion`, `shipped:fashion-masks`, `shipped:gtsrb` and
`shipped:gtsrb-pooled`."""

from __future__ import annotations

from pathlib import Path

import costcert
from costcert.errors import SpellingError, nearest
from costcert.store.locations import Location, locate

PREFIX = "shipped:"
_FOLDERS = {"fashion": "model", "fashion-masks": "masks", "gtsrb": "gtsrb", "gtsrb-pooled": "gtsrb-pooled"}


def model_folder(model: str | Location) -> Location:
    """The folder of a trained model: a path or URL as it is, or that of `shipped:NAME` in the package."""
    if not str(model).startswith(PREFIX):
        return locate(model)
    name = str(model).removeprefix(PREFIX)
    if name not in _FOLDERS:
        raise SpellingError(
            f"costcert ships no model {name!r}{nearest(name, _FOLDERS)}: use one of {', '.join(_FOLDERS)}"
        )
    return Path(costcert.__file__).parent / "sample" / _FOLDERS[name]
