"""Runs the command line: `python -m costcert`."""

from costcert.cli import main

main()
