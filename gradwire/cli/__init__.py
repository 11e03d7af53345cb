"""The command line."""

from gradwire.cli.commands import app, main

__all__ = ["app", "main"]
