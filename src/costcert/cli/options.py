"""What the options of all commands are declared with: groups of the help, types of values, limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from costcert.store.locations import Location, locate

# In the order of the help.
RUN = Group.create_ordered("What to run")
DATA = Group.create_ordered("Data")
MODEL = Group.create_ordered("Model")
BALLOTS = Group.create_ordered("Ballots")
OPTIMISATION = Group.create_ordered("Optimisation")
AUGMENTATION = Group.create_ordered("Augmentation")
EFFORT = Group.create_ordered("Effort")
SERVER = Group.create_ordered("Server")
ENGINE = Group.create_ordered("Engine")
OUTPUT = Group.create_ordered("Output")

AT_LEAST_0 = Number(gte=0)
AT_LEAST_1 = Number(gte=1)


def _location(_: Any, tokens: Sequence[Token]) -> Location:
    return locate(tokens[0].value)


# A path of this machine, or a URL.
PathOrUrl = Annotated[
    Location, Parameter(converter=_location, n_tokens=1, accepts_keys=False, metavar="PATH")
]
