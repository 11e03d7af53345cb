"""Tasks whose model the user names: a narrow one, a published one, any of transformers, or weights in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gradwire.lab.models import MODELS, Model, Size
from gradwire.lab.models.any_model import PREFIX
from gradwire.lab.models.hub import require_transformers
from gradwire.unknown import unknown

PUBLISHED = "published-"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for the model to train.

    `pretrained` is a folder with config.json and model.safetensors, as transformers writes them, whose model is taken
    instead.
    """

    name: ClassVar[str]
    narrow: ClassVar[tuple[str, ...]]
    """The models that only this task has."""
    whole: ClassVar[tuple[str, ...]] = ("layers", "dropout")
    """The options that its narrow models do not have."""
    data: ClassVar[str]
    """The data of the published models that it can train."""

    model: str
    """Its name: a narrow one, published-NAME or hf:TYPE."""
    width: int | None = None
    """Channels of the first stage, or a hidden state's size."""
    layers: int | None = None
    """Layers, where all are too many."""
    dropout: float | None = None
    pretrained: Path | None = None
    """A folder with weights."""

    @property
    def published(self) -> Model | None:
        """The model's row in the table of published ones, if it is one."""
        return MODELS[self.model.removeprefix(PUBLISHED)] if self.model.startswith(PUBLISHED) else None

    def sized(self, **sizes: Any) -> Size:
        """The size of the published model. Raises ValueError for what does not fit."""
        assert self.published
        return self.published.sized(layers=self.layers, width=self.width, dropout=self.dropout, **sizes)

    def tokenizer_of(self, text: str | None, default: str) -> str:
        """The tokenizer that the user names, else that of the weights, else the default."""
        return text or (str(self.pretrained) if self.pretrained else default)

    def check_model(self) -> None:
        """Raises ValueError for an unknown model, for options that it does not have, and where transformers
        is needed and missing."""
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} is not a share from 0 to below 1")
        # weights and models of transformers have sizes of their own
        if self.pretrained:
            self._refuse(f"the model in {self.pretrained} has", ("width", "layers", "dropout"))
            return require_transformers(str(self.pretrained))
        if self.model.startswith(PREFIX):
            self._refuse(f"{self.model} says its sizes after a comma, it has", ("width", "layers", "dropout"))
            return require_transformers(self.model)
        published = [f"{PUBLISHED}{name}" for name, row in MODELS.items() if row.data == self.data]
        if self.model not in (*self.narrow, *published):
            raise unknown(f"model of {self.name} named", self.model, [*self.narrow, *published, f"{PREFIX}TYPE"])
        if not self.published:
            self._refuse(f"{self.model} has", self.whole)
        elif self.published.by_transformers:
            require_transformers(self.model)
        return None

    def _refuse(self, who: str, names: tuple[str, ...]) -> None:
        if given := [name for name in names if getattr(self, name) is not None]:
            raise ValueError(f"{who} no option {given[0]}: it is for published models")
