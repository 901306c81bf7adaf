"""`python:package.module:name`: a function or a torch module of the user's own code, by its name.

Importing it runs that code, so the name always comes from the user, on the command line or in a call, and
never from a file that is read.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import traceback
from importlib import import_module, invalidate_caches
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

from costcert.errors import CostcertError, SpellingError, nearest

PYTHON = "python:"


class Named(NamedTuple):
    """What a name stands for, and the digest of the source it is defined in."""

    value: Any
    source: str


def find_named(spelling: str) -> Named:
    """The object of this spelling; its module is imported from the current folder or installed packages."""
    module_name, _, name = spelling.removeprefix(PYTHON).partition(":")
    if not all(part.isidentifier() for path in (module_name, name) for part in path.split(".")):
        raise SpellingError(
            f"cannot read the model {spelling!r}: write python:MODULE:FUNCTION, as in "
            "python:my_package.models:classify"
        )
    module = _imported(spelling, module_name)
    try:
        value = attrgetter(name)(module)
    except AttributeError:
        public = [name for name, found in vars(module).items() if name[0] != "_" and callable(found)]
        raise CostcertError(
            f"{module_name} has no {name!r}{nearest(name, public)}: name a function or a torch module of it"
        ) from None
    if isinstance(value, type) or not callable(value):
        kind = "class" if isinstance(value, type) else type(value).__name__
        raise CostcertError(
            f"{spelling} is a {kind}: name a function from images to logits, or a torch module (an object, "
            "not its class)"
        )
    return Named(value, _source_digest(module, value))


def failure(spelling: str, doing: str, error: BaseException) -> CostcertError:
    """One sentence about an error in the user's code, with the line where it happened."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    return CostcertError(
        f"{spelling} {doing}: {type(error).__name__}{f': {reason}' if reason else ''} "
        f"({last.filename}, line {last.lineno})"
    )


def _imported(spelling: str, name: str) -> ModuleType:
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        # First, and for the whole run, as `python -m` has it: a function may import more when it is called.
        sys.path.insert(0, here)
    # The file may have been written after this process first looked into its folder.
    invalidate_caches()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise failure(spelling, "cannot be imported", error) from error
        raise CostcertError(
            f"{spelling} cannot be imported: there is no module {error.name!r} in {here} or among the "
            "installed packages"
        ) from None
    except (Exception, SystemExit) as error:
        raise failure(spelling, "cannot be imported", error) from error


def _source_digest(module: ModuleType, value: Any) -> str:
    """sha256 of the named module's source and, if another one of its package defines the object, of that."""
    definer = sys.modules.get(str(getattr(value, "__module__", None)))
    files = [_source_file(module)]
    if definer is not None and definer is not module and _package(definer) == _package(module):
        files.append(_source_file(definer))
    if None in files:
        return "unknown: a Python function without a source file"
    total = hashlib.sha256()
    for file in files:
        with open(str(file), "rb") as opened:
            total.update(opened.read())
    return f"sha256:{total.hexdigest()}"


def _package(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


def _source_file(module: ModuleType) -> str | None:
    try:
        found = inspect.getsourcefile(module)
    except TypeError:
        return None
    return found if found is not None and os.path.isfile(found) else None
