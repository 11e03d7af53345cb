"""An LSTM for text, such as the large one of the Penn Treebank."""

from collections.abc import Iterable

from torch import Tensor, nn

from gradwire.lab.models.size import Size

_DROPOUT = 0.65


class LSTM(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocabulary), with dropout between all layers (Zaremba et al., 2014,
    https://arxiv.org/abs/1409.2329).

    A call begins with a zero state; where `carries` is set, a call in training goes on from the state of the last one,
    through which no gradient flows.
    """

    def __init__(self, vocabulary: int, width: int = 512, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0)
        self.head = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)
        self.carries, self.state = False, ()

    def forward(self, tokens: Tensor) -> Tensor:
        carries = self.carries and self.training
        hidden, state = self.lstm(self.dropout(self.embedding(tokens)), (carries and self.state) or None)
        if carries:
            self.state = tuple(part.detach() for part in state)
        return self.head(self.dropout(hidden))


def published(size: Size) -> LSTM:
    """The large one of the Penn Treebank, in a size."""
    (layers,) = size.stages
    return LSTM(size.outputs, size.width, layers, _DROPOUT if size.dropout is None else size.dropout)


def carried(model: nn.Module) -> list[Tensor]:
    """The states that a model's LSTMs carry from batch to batch."""
    return [part for lstm in _carrying(model) for part in lstm.state]


def carry_on(model: nn.Module, states: list[Tensor]) -> None:
    """Takes over what `carried` returned."""
    for number, lstm in enumerate(_carrying(model)):
        lstm.state = tuple(part.to(lstm.head.weight.device) for part in states[2 * number : 2 * number + 2])


def _carrying(model: nn.Module) -> Iterable[LSTM]:
    return (module for module in model.modules() if isinstance(module, LSTM) and module.carries)
