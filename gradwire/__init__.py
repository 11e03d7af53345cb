"""Gradwire: compressed data-parallel training for PyTorch.

ddp = DistributedDataParallel(model)
gw.attach(ddp, gw.TopK(ratio=0.01), memory=gw.Residual(), communicator=gw.AllGather())
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.api import *  # noqa: F403

__version__ = "0.2.0"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A part of the package, or one of the names of `gradwire.api`, which loads torch: that is left until it is
        needed, for `gradwire --help`. Python asks here for a name once."""
        if find_spec(f"gradwire.{name}"):
            return importlib.import_module(f"gradwire.{name}")
        api = importlib.import_module("gradwire.api")
        if name != "__all__" and name not in api.__all__:
            from gradwire.unknown import unknown

            raise AttributeError(str(unknown("name in gradwire like", name, api.__all__)))
        return globals().setdefault(name, getattr(api, name))


def __dir__() -> list[str]:
    return [*importlib.import_module("gradwire.api").__all__, "__version__"]
