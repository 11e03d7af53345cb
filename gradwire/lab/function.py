"""Functions of the user's, by a name with which every rank can import them."""

import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(text: str) -> Callable[[], Any]:
    """The function that `module:name` or `file.py:name` says; modules are looked for in the working folder too.

    Raises ValueError for a module or function that there is not."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name:
        raise ValueError(f"{text!r} names no function: write module:name or file.py:name, such as my.module:make")
    # import the module, then look the name up
    function = getattr(_module(module), name, None)
    if function is None:
        raise ValueError(f"{module} has no function {name!r}")
    if not callable(function):
        raise ValueError(f"{text} is a {type(function).__name__}, not a function")
    return function


def named(function: Callable[[], Any]) -> str:
    """The text by which `imported` finds a function. Raises ValueError for a function that no other process can
    import."""
    # a function of the script that runs is found by its file
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    main = getattr(sys.modules["__main__"], "__file__", None)
    if not module or not name.isidentifier() or (module == "__main__" and main is None):
        raise ValueError(f"{name or function!r} cannot be imported by the ranks: define it at the top of a file")
    return f"{Path(main).resolve() if module == '__main__' else module}:{name}"  # pyright: ignore[reportArgumentType]


@cache
def _module(text: str) -> ModuleType:
    if text.endswith(".py"):
        return _of_file(Path(text))
    # modules beside the working folder can be imported, too
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(text)
    except ImportError as error:
        raise ValueError(f"{text} cannot be imported: {error}") from error


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    name = f"{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[name] = module
    # as where Python runs a script
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ValueError(f"{path} cannot be imported: {error}") from error
    return module
