"""Where the project lies, and data that are not part of it."""

import os
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def beside(*parts: str) -> Path:
    """A file of the folder that COSTCERT_TEST_DATA names; tests that need it skip where it is not there."""
    return Path(os.environ.get("COSTCERT_TEST_DATA", "no-such-folder")).joinpath(*parts)
