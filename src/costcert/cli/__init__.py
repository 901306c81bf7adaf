"""The command line: one file per command, with its options and its run."""

from costcert.cli.commands import app as app
from costcert.cli.commands import main as main
