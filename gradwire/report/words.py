"""Numbers and facts in words."""

from collections.abc import Mapping
from typing import Any


def counted(number: int, noun: str) -> str:
    """A number and its noun, such as "1 rank" or "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts about a run, as its page shows them."""

    def words(value: Any) -> str:
        return (
            ", ".join(f"{k}={v}" for k, v in value.items() if v is not None) if isinstance(value, dict) else str(value)
        )

    return {name.replace("_", " "): words(value) for name, value in facts.items() if value is not None}
