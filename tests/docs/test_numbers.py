"""Numbers in sentences of the documentation are those of the code."""

import re
from pathlib import Path

import pytest

from gradwire.tuner import CHOOSING_STEPS
from gradwire.tuner.rehearsal import STEPS

DOCS = Path(__file__).parents[2] / "docs"
NUMBERS = {
    "rehearsals": ("scheduler.md", r"in turns, (\d+) times", STEPS),
    "choosing": ("scheduler.md", r"choosing takes (\d+) steps at", CHOOSING_STEPS),
    "choosing long": ("troubleshooting.md", r"measures for up to (\d+) steps", CHOOSING_STEPS),
}


@pytest.mark.parametrize(("page", "sentence", "number"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_in_a_sentence_is_the_code_s(page: str, sentence: str, number: float) -> None:
    found = re.findall(sentence, " ".join((DOCS / page).read_text().split()))
    assert [float(each) for each in found] == [number]
