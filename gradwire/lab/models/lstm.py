"""The large LSTM of the Penn Treebank."""

from torch import Tensor, nn

_DROPOUT = 0.65


class LSTM(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocabulary), with dropout between all layers.

    Every call starts from a zero state. https://arxiv.org/abs/1409.2329
    """

    def __init__(self, layers: int, vocabulary: int = 10_000, width: int = 1500) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=_DROPOUT if layers > 1 else 0)
        self.head = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        """Next-token logits."""
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.head(self.dropout(hidden))
