"""Functions and classes of the user's, by a name with which every rank can import them."""

import importlib
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

_PLAIN = r"\w./~-"
"""What stands for itself in the place of a part in a configuration; %20 is a space."""
PART = rf"(?P<name>(?P<module>[%{_PLAIN}]+):(?P<cls>[A-Za-z_]\w*))(:(?P<arguments>.*))?"
"""A pattern for a part of a user's own in a configuration, such as my.module:MyCodec:0.01."""
_LIBRARY_PATHS = f"{Path(__file__).parent}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}", "<frozen importlib"
"""Files whose frames are not the user's code."""
_FILES: dict[str, Path] = {}
"""By the name of a module that was imported from a file, that file."""


def imported(text: str) -> Callable[..., Any]:
    """The function or class that `module:name` or `file.py:name` says; modules are looked for in the working folder
    too.

    Raises ValueError for a module or name that there is not."""
    module, name = module_and_name(text)
    # import the module, then look the name up
    found = getattr(_module(module), name, None)
    if found is None:
        raise ValueError(f"{module} has no function or class {name!r}")
    if not callable(found):
        raise ValueError(f"{text} is a {type(found).__name__}, not a function")
    return found


def module_and_name(text: str) -> tuple[str, str]:
    """The two parts of `module:name`. Raises ValueError for text without them, and for a module that begins with a dot
    and is no file."""
    module, _, name = text.rpartition(":")
    if not module or not name or (module.startswith(".") and not module.endswith(".py")):
        raise ValueError(f"{text!r} names no function: write module:name or file.py:name, such as my.module:make")
    return module, name


def named(thing: Callable[..., Any]) -> str:
    """The text by which `imported` finds a function or a class. Raises ValueError for one that no other process can
    import."""
    place, name = place_of(thing), getattr(thing, "__qualname__", "")
    if not place or not name.isidentifier():
        raise ValueError(f"{name or thing!r} cannot be imported by the ranks: define it at the top of a file")
    return f"{place}:{name}"


def imported_part(name: str) -> Callable[..., Any]:
    """The class that a configuration names. Raises ValueError as `imported` does."""
    return imported(unquote(name, errors="surrogateescape"))


def name_of_part(cls: Callable[..., Any]) -> str:
    """The name of a class that `imported_part` reads: characters that have a meaning in configurations, or to a shell,
    are written as in addresses. Raises ValueError as `named` does."""
    place, name = module_and_name(named(cls))
    return f"{re.sub(f'[^{_PLAIN}]', lambda found: quote(found[0], errors='surrogateescape'), place)}:{name}"


def place_of(thing: Callable[..., Any]) -> Path | str | None:
    """The module in which a function or a class is; the file of one that belongs to a script."""
    module = getattr(thing, "__module__", None) or ""
    return _script() if module == "__main__" else _FILES.get(module, module)


def is_users(part: object) -> bool:
    """Whether a plan's part is of a class of the user's, not one of Gradwire's."""
    return type(part).__module__.partition(".")[0] != "gradwire"


def _script() -> Path | None:
    """The file of the script that runs."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    return Path(main).resolve() if main else None


@cache
def _module(text: str) -> ModuleType:
    if text.endswith(".py"):
        path = Path(text).resolve()
        return sys.modules["__main__"] if path == _script() else _of_file(path)
    # modules beside the working folder can be imported, too
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(text)
    except Exception as error:
        raise ValueError(f"{text} cannot be imported: {raised(error)}") from error


@cache
def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    name = f"{path.stem}_{sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[name], _FILES[name] = module, path
    # as where Python runs a script
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} cannot be imported: {raised(error)}") from error
    return module


def raised(error: Exception) -> str:
    """The first line of an exception's text, with the user's file and line that raised it."""
    if isinstance(error, ImportError | SyntaxError):
        return str(error)
    said = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
    frames = [each for each in extract_tb(error.__traceback__) if not each.filename.startswith(_LIBRARY_PATHS)]
    if not frames:
        return said
    lines = [each.lineno for each in frames if each.filename == frames[0].filename]
    return f"{said} ({Path(frames[0].filename).name}, line {lines[-1]})"
