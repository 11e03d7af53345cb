"""A row of docs/published.md: what a system's description has, and the command or call of Gradwire that does it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row or a sentence of a description."""

    says: str
    """In plain words."""
    how: str = ""
    """A command, or an expression in Python; empty where nothing does it."""
    note: str = ""
    """Where it is done otherwise, not done, or not borne out: how, and the page that has the figure."""

    @property
    def command(self) -> bool:
        """Whether `how` is for a shell."""
        return self.how.startswith(("gradwire ", "torchrun "))

    @property
    def cells(self) -> list[str]:
        """The row's cells in the table."""
        return [self.says, f"`{self.how}`" if self.how else "", self.note]


def attached(arguments: str) -> str:
    """A call that compresses a model in DDP."""
    return f"gw.attach(ddp, {arguments})"


def bench(arguments: str) -> str:
    """A command that times configurations."""
    return f"gradwire bench {arguments}"


def trained(arguments: str) -> str:
    """A command that trains."""
    return f"gradwire train {arguments}"
