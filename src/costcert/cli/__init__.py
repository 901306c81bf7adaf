"""The command line: one file for each command, with what it asks and what it does."""

from costcert.cli.commands import app as app
from costcert.cli.commands import main as main
