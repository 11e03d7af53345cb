"""Commands that load torch, which takes seconds, say so on a terminal meanwhile."""

import sys
from typing import Any

from typer.core import TyperCommand

_SAID = "loading torch ..."


class LoadsTorch(TyperCommand):
    """A command whose arguments were read; help, and mistakes among them, came without torch."""

    def invoke(self, ctx: Any) -> Any:
        if "torch" not in sys.modules and sys.stderr.isatty():
            _load_torch()
        return super().invoke(ctx)


def _load_torch() -> None:
    print(_SAID, end="", file=sys.stderr, flush=True)
    try:
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        print(f"\r{' ' * len(_SAID)}\r", end="", file=sys.stderr, flush=True)
