"""The command line in this process, for tests: its exit code, and what it printed."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from costcert.cli import main
from costcert.cli.commands import parse


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str
    output: str  # both streams, in the order of their lines


class _Both(io.StringIO):
    """A stream that also writes to another one."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def write(self, text):
        self.other.write(text)
        return super().write(text)


def invoke(words) -> Result:
    """Run a command; an exception that is not an exit is a bug, and is raised."""
    output = io.StringIO()
    stdout, stderr = _Both(output), _Both(output)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            main([str(word) for word in words])
        except SystemExit as exited:
            code = exited.code or 0
    return Result(code, stdout.getvalue(), stderr.getvalue(), output.getvalue())


def parsed(words):
    """The options of a command, without running it."""
    _, bound = parse([str(word) for word in words])
    return bound.arguments["options"]
