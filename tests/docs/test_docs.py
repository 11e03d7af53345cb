"""The documentation's blocks run, and its pages are written as the site wants them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

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


SETTINGS = """
[global]
index-url = https://all.example/simple
extra-index-url =
    https://a.example/simple
    https://b.example/simple
"""


@pytest.mark.skipif(which("make") is None, reason="no make")
@pytest.mark.parametrize("own", [None, "https://own.example/simple"])
def test_make_installs_from_where_pip_would(own: str | None, tmp_path: Path) -> None:
    """Several lines of pip.conf were one word with \\n in it, and two index-urls are a mistake to uv."""
    (tmp_path / "pip.conf").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")} | ({"PIP_INDEX_URL": own} if own else {})
    command = ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", ".venv/.torch"]
    told = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    asked = re.findall(r"--((?:extra-)?index-url)=(\S+)", told)
    assert [url for option, url in asked if option == "index-url"] == [own or "https://all.example/simple"]
    extra = {url for option, url in asked if option == "extra-index-url"}
    assert {f"https://{name}.example/simple" for name in "ab"} <= extra
    assert "\\n" not in told
