"""Makes Triton's interpreter faster, by what it repeats or does not need: it replaces the language's functions at each
launch and each call of a helper, computes whether integers overflow without using the result, and makes the same table
of types for each value."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from triton.runtime import interpreter

_KEPT = SimpleNamespace(restore=lambda: None)


def once(patch: Callable[[Callable], object]) -> Callable[[Callable], object]:
    """As `interpreter._patch_lang`, which replaces functions in the modules of the language that a kernel's imports."""
    seen = set()

    def patch_language(kernel: Callable) -> object:
        # a module's functions share one dict of globals, which lives as long as they do
        if id(kernel.__globals__) not in seen:
            seen.add(id(kernel.__globals__))
            patch(kernel)
        return _KEPT

    return patch_language


def kept(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As `interpreter._get_np_dtype`; equal types have equal names."""
    types: dict[str, Any] = {}

    def by_name(own: Any) -> Any:
        if own.name not in types:
            types[own.name] = numpy_type(own)
        return types[own.name]

    return by_name


interpreter._patch_lang = once(interpreter._patch_lang)
interpreter._get_np_dtype = kept(interpreter._get_np_dtype)
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
