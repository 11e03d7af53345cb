"""The documentation's blocks run, and its pages are written as the site wants them."""

import re
from pathlib import Path

import pytest

from tests.support.ranks import run_python, run_ranks

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs"
TUTORIALS = {"start.md": "checkpoint-*.pt", "practice.md": "practice-*.pt"}


def blocks(path: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_as_it_stands(page: str, ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "tutorial.py"
    script.write_text(blocks(PAGES / page))
    if ranks > 1:
        run_ranks([str(script)], ranks, cwd=tmp_path)
    else:
        run_python([str(script)], cwd=tmp_path)
    assert len(list(tmp_path.glob(TUTORIALS[page]))) == ranks


@pytest.mark.parametrize("page", [*sorted(PAGES.glob("*.md")), REPOSITORY / "README.md"], ids=lambda page: page.name)
def test_what_follows_in_a_list_is_indented_as_the_site_wants_it(page: Path) -> None:
    """By 4: the site ends a list at a paragraph that is indented by less, where GitHub goes on."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    starts = re.findall(r"\n\n( +)(\S.{0,30})", text)
    assert not [words for indent, words in starts if len(indent) % 4]


def test_every_measured_question_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text()
    assert not [page.name for page in PAGES.glob("benchmarks/*.md") if f"benchmarks/{page.name}" not in navigation]
