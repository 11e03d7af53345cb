"""The site's reference: everything that users import, grouped by family, with each constructor's parameters."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, is_typeddict

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from benchmarks.shared.tables import markdown
from gradwire import api
from gradwire.frontends.options.keywords import AttachOptions, PlanOptions
from gradwire.lab.catalogue import catalogue

FIRST = {
    "Attach": ["attach", "DistributedOptimizer", "LocalSteps", "Outer", "SignDescent", "compress_shards", "init"],
    "A job": ["Handle", "Stats", "Rendezvous", "ReductionError", "save", "reshard"],
    "Measure": ["bench", "plan", "Auto"],
}
LAST = {"Plans": ["Plan", "Group"], "Transports": ["ProcessGroup", "Mesh", "Threads", "Played", "Card", "SizeRecorder"]}
INTEGRATIONS = {
    "accelerate": ["compress"], "deepspeed": ["attach"], "huggingface": ["CompressionCallback"],
    "lightning": ["GradientCompression", "CompressedDDP"], "megatron": ["attach"],
    "ray": ["compress", "keep"], "torchft": ["Optimizer", "FaultTolerantLocalSteps"],
}  # fmt: skip
"""By module of gradwire.integrations; they need their framework, so nothing of them is imported here."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page."""
    files.append(File.generated(config, "reference.md", content=_page()))
    return files


def families() -> dict[str, list[str]]:
    """The names that `import gradwire as gw` offers, by family."""
    kinds = {"Compressors": "", "Memories": "Memories", "Communicators": "Communicators", "Controllers": "Controllers"}
    grouped: dict[str, list[str]] = dict(FIRST)
    for kind, entries in catalogue().items():
        for entry in entries if kind in kinds else ():
            family = f"{kind}: {entry.family.lower()}" if entry.family else kind
            grouped.setdefault(family, []).append(entry.cls.__name__ if entry.cls else entry.name)
    grouped |= LAST
    known = {name for names in grouped.values() for name in names}
    return grouped | {"To write your own": [name for name in api.__all__ if name not in known and _shown(name)]}


def _shown(name: str) -> bool:
    return inspect.isclass(getattr(api, name)) or inspect.isfunction(getattr(api, name))


def _page() -> str:
    parts = ["# Reference", "All that `import gradwire as gw` offers, then what other trainers take."]
    for family, names in families().items():
        parts += [f"## {family}", *(part for name in names for part in _entry(name))]
    parts.append("## Under other trainers")
    for module, names in INTEGRATIONS.items():
        for name in names:
            path = f"gradwire.integrations.{module}.{name}"
            parts += [f"### {path.removeprefix('gradwire.')} {{#{path}}}", f"::: {path}"]
    return "\n\n".join(parts)


def _entry(name: str) -> list[str]:
    """A heading, the parameters, and the docstring with its members."""
    thing = getattr(api, name)
    path = f"{thing.__module__}.{thing.__qualname__}"
    rows = [[f"`{each}`", f"`{kind}`" if kind else "", f"`{default}`" if default else "", meaning]
            for each, kind, default, meaning in parameters(thing)]  # fmt: skip
    table = [markdown(["parameter", "type", "default", "meaning"], rows)] if rows else []
    return [f"### gw.{name} {{#{path}}}", *table, f"::: {path}"]


def parameters(thing: Any) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each parameter of a function or a constructor."""
    meanings = {name: text for base in _bases(thing) for name, text in _meanings(base).items()}
    for each in inspect.signature(
        getattr(thing, "__init__", thing) if inspect.isclass(thing) else thing
    ).parameters.values():
        if each.name in ("self", "args", "kwargs", "arguments"):
            continue
        if each.kind is each.VAR_KEYWORD:  # the options of front ends
            options = AttachOptions if "AttachOptions" in str(each.annotation) else PlanOptions
            yield from (
                (name, str(kind), "", " ".join(text.split())) for name, (kind, text) in _options(options).items()
            )
            continue
        default = "" if each.default is each.empty else repr(each.default)
        kind = "" if each.annotation is each.empty else inspect.formatannotation(each.annotation)
        yield each.name, _short(kind), default, meanings.get(each.name, "")


def _short(kind: str) -> str:
    """A type as a cell of a table shows it."""
    return re.sub(r"(?:\w+\.)+(?=\w)", "", kind).replace(" | ", " or ")


def _options(options: Any) -> dict[str, tuple[str, str]]:
    """Type and meaning of each option of a typed dictionary."""
    assert is_typeddict(options)
    bases = [PlanOptions, AttachOptions] if options is AttachOptions else [PlanOptions]
    found: dict[str, tuple[str, str]] = {}
    for base in bases:
        for field, text in _documented(base):
            found[field.target.id] = (_short(ast.unparse(field.annotation)), text)  # pyright: ignore
    return found


def _bases(thing: Any) -> list[Any]:
    bases = reversed(thing.__mro__) if inspect.isclass(thing) else ()
    return [base for base in bases if base.__module__.startswith("gradwire")]


def _meanings(cls: Any) -> dict[str, str]:
    return {field.target.id: " ".join(text.split()) for field, text in _documented(cls)}  # pyright: ignore


def _documented(cls: Any) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The fields of a class with the strings behind them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # pyright: ignore
    for field, after in pairwise(body):
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and documented:
            yield field, str(after.value.value)
