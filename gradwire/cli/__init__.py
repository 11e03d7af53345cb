"""The command line. Torch and the lab are loaded by the command that needs them, not by `--help`."""

import sys

import gradwire


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 2 for the user's mistake, 1 for a rank that failed."""
    try:
        from gradwire.cli.exit_codes import run

        return run(arguments)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "gradwire":
            raise
        needs = f"the command line needs {error.name}: pip install 'gradwire[lab]'"
        print(f"gradwire {gradwire.__version__}: {needs}", file=sys.stderr)
        return 2


__all__ = ["main"]
