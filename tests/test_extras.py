"""The extras of the package, as pip reads them."""

import re
import tomllib
from pathlib import Path

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
# For those who change the package.
TOOLS = {"test", "dev", "docs"}


def test_all_installs_every_extra_that_a_user_can_use():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"costcert\[(.+)\]", everything)[1].split(",")
    assert sorted(named) == named
    assert set(named) == set(EXTRAS) - TOOLS - {"all"}
