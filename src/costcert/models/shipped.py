"""Trained models that come with the package: `shipped:fashion`, the demo's, and `shipped:gtsrb`."""

from __future__ import annotations

from pathlib import Path

import costcert
from costcert.errors import SpellingError, nearest
from costcert.store.locations import Location, locate

PREFIX = "shipped:"
_FOLDERS = {"fashion": "model", "gtsrb": "gtsrb"}


def model_folder(model: str | Location) -> Location:
    """The folder that a spelling of a trained model means."""
    if not str(model).startswith(PREFIX):
        return locate(model)
    name = str(model).removeprefix(PREFIX)
    if name not in _FOLDERS:
        raise SpellingError(
            f"no model {name!r} comes with costcert{nearest(name, _FOLDERS)}: there are {', '.join(_FOLDERS)}"
        )
    return Path(costcert.__file__).parent / "sample" / _FOLDERS[name]
