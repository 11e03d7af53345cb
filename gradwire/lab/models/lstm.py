"""The large LSTM of the Penn Treebank."""

from torch import Tensor, nn

from gradwire.lab.models.size import Size

_DROPOUT = 0.65


class LSTM(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocabulary), with dropout between all layers.

    Every call starts from a zero state. https://arxiv.org/abs/1409.2329
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        (layers,), width = size.stages, size.width
        dropout = _DROPOUT if size.dropout is None else size.dropout
        self.embedding = nn.Embedding(size.outputs, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0)
        self.head = nn.Linear(width, size.outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.head(self.dropout(hidden))
