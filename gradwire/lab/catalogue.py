"""The catalogue of compressors, tasks, models and all else that has a name, described by its docstrings."""

import inspect
import re
from dataclasses import MISSING, dataclass, is_dataclass
from difflib import get_close_matches
from typing import Any

from gradwire.communicators import Communicator
from gradwire.compressors import Cast, Compressor, LowRank, Selective
from gradwire.construct import check_options, exported, options_of
from gradwire.controllers import Controller
from gradwire.importing import imported_part
from gradwire.lab.experiments.presets import PRESETS
from gradwire.lab.experiments.suites import SUITES
from gradwire.lab.local import LocalStepsSpec
from gradwire.lab.models import MODELS
from gradwire.lab.names import AUTO, DDP, DENSE, LOCAL, NOCOMM, TINY
from gradwire.lab.torch_hooks import TORCH_HOOKS
from gradwire.lab.workloads import TASKS
from gradwire.lab.workloads.synthetic import TINY_MODELS
from gradwire.memories import Memory
from gradwire.notation import own

_CITATION = re.compile(r"\s*\(([^()]*\b(?:19|20)\d\d\b[^()]*|https?://[^()]*)\)")


BASELINES = {
    DENSE: f"DDP, or FSDP2, as it is: gradients are averaged uncompressed. The baseline; `{DDP}` is read as this.",
    NOCOMM: "No communication: each rank computes alone. What a step takes at least; `bench` always has it.",
    AUTO: "Tries several compressors and keeps the fastest; otherwise leaves DDP alone, as gw.attach(ddp) does.",
}
_KINDS: dict[str, type[Any]] = {
    "Compressors": Compressor, "Memories": Memory, "Communicators": Communicator, "Controllers": Controller,
}  # fmt: skip


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of the catalogue: a thing to choose, with its description."""

    name: str
    """On the command line."""
    summary: str
    """One sentence."""
    family: str = ""
    """A compressor's, by which the list is sorted."""
    paper: str = ""
    """A citation."""
    defaults: str = ""
    """Its options with their defaults."""
    cls: type[Any] | None = None
    """Its class, for its docstring; None for a row of a table."""

    @property
    def text(self) -> str:
        """The docstring without the paper; a line for each paragraph."""
        paragraphs = (inspect.getdoc(self.cls) or "").split("\n\n") if self.cls else [self.summary]
        return "\n\n".join(_CITATION.sub("", " ".join(paragraph.split())) for paragraph in paragraphs)


def catalogue() -> dict[str, list[CatalogueEntry]]:
    """All entries by kind."""
    # only dataclasses have options that can be listed
    controllers = {name: cls for name, cls in exported(Controller).items() if is_dataclass(cls)}
    return {
        "Baselines": [CatalogueEntry(name, summary) for name, summary in BASELINES.items()],
        "Compressors": sorted(_entries(exported(Compressor)), key=lambda entry: _FAMILIES.index(entry.family)),
        "Memories": _entries(exported(Memory)),
        "Communicators": _entries(exported(Communicator)),
        "Controllers": _entries(controllers),
        "Rounds": _entries({LOCAL: LocalStepsSpec}),
        "Hooks": _entries(TORCH_HOOKS),
        "Tasks": _entries(TASKS),
        "Models": [
            *(
                CatalogueEntry(name, f"{model.parameters / 1e6:.1f} M parameters, {model.samples()}.")
                for name, model in MODELS.items()
            ),
            *(CatalogueEntry(f"{TINY}{name}", f"{model.text} a rank.") for name, model in TINY_MODELS.items()),
        ],
        "Presets": [
            CatalogueEntry(name, training.summary, defaults=training.files) for name, training in PRESETS.items()
        ],
        "Suites": [
            CatalogueEntry(name, f"{len(rows)} rows of `gradwire bench --suite`.") for name, rows in SUITES.items()
        ],
    }


def found(name: str) -> list[tuple[str, CatalogueEntry]]:
    """All entries of this name, with their kinds: gravac is a controller and a suite. Raises ValueError for none."""
    # a user's own class
    if own(name):
        return [_own(name)]
    # a name may stand in several kinds
    name = DENSE if name.lower() == DDP else name.lower()
    entries = [(kind, entry) for kind, own in catalogue().items() for entry in own]
    if named := [(kind, entry) for kind, entry in entries if entry.name == name]:
        return named
    near = get_close_matches(name, [entry.name for _, entry in entries], n=1)
    hint = f"did you mean {near[0]}?" if near else "`gradwire list` shows all"
    raise ValueError(f"there is nothing named {name!r}: {hint}")


def _own(name: str) -> tuple[str, CatalogueEntry]:
    cls = imported_part(name)
    for kind, base in _KINDS.items():
        if inspect.isclass(cls) and issubclass(cls, base):
            check_options(cls, name)
            return kind, _entry(name, cls)
    raise ValueError(f"{name} is nothing that Gradwire uses: name a subclass of gw.Compressor, gw.Memory, ...")


_CASTS, _LOW_RANK, _SPARSE = "Fewer bits a number", "Low rank", "Few of the numbers"
_SIGNS, _QUANTIZED = "One bit a number", "A few bits a number"
_FAMILIES = [_CASTS, _QUANTIZED, _SIGNS, _SPARSE, _LOW_RANK, ""]


def _family(cls: type) -> str:
    # by base class first; the rest by what a codec sends
    if not issubclass(cls, Compressor):
        return ""
    if issubclass(cls, Cast | LowRank):
        return _CASTS if issubclass(cls, Cast) else _LOW_RANK
    if cls.sparse or issubclass(cls, Selective):
        return _SPARSE
    return _SIGNS if cls.__module__.endswith(".sign") else _QUANTIZED


def _entries(classes: dict[str, type[Any]]) -> list[CatalogueEntry]:
    return [_entry(name, cls) for name, cls in classes.items()]


def _entry(name: str, cls: type) -> CatalogueEntry:
    # the first sentence of the docstring, and the citation wherever in it
    paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    whole = " ".join((inspect.getdoc(cls) or "").split())
    citation = _CITATION.search(whole)
    summary = re.split(r"(?<=\.)\s", _CITATION.sub("", paragraph))[0]
    return CatalogueEntry(name, summary, _family(cls), citation[1] if citation else "", _defaults(cls), cls)


def _defaults(cls: type) -> str:
    values = options_of(cls).items()
    return " ".join(f"{name}={_shown(default, name)}" for name, default in values)


def _shown(default: Any, name: str) -> str:
    match default:
        case _ if default is MISSING:
            return name.upper()
        case None | bool():
            return str(default).lower()
        case _:
            return str(default)
