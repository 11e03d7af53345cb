"""Writes docs/benchmarks/ from benchmarks/results/: one page per question, one per published system, and their index;
and the pictures of docs/.

    python benchmarks/pages/document.py
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses import converged, fidelity
from benchmarks.pages.fault_questions import FAULTS
from benchmarks.pages.front import pictures
from benchmarks.pages.page import Page
from benchmarks.pages.published import table
from benchmarks.pages.questions import QUESTIONS
from benchmarks.pages.systems import SYSTEMS
from benchmarks.shared.provenance import ROOT, load
from benchmarks.shared.tables import markdown

FOLDER = ROOT / "docs" / "benchmarks"
PUBLISHED = ROOT / "docs" / "published.md"
DRAWN = {
    "converged.png": lambda: converged.picture(load("converged")["rows"]),
    "fidelity.png": lambda: fidelity.picture(fidelity.STEPS, load("fidelity")["runs"]),
}
"""The pictures of losses in docs/."""

INDEX = """# What was measured

{questions}

Beside published figures: {systems}. [Row by row](../published.md).

But for the GPU's page: CPUs, gloo, torch 2.13; a network namespace per rank behind `tc tbf`. Ranks and network share
two cores. Timings vary by 10 to 20%; ratios count.
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in {**pages(), **pictures(), PUBLISHED: table.page()}.items():
        path.write_text(text)
    for name, draw in DRAWN.items():
        draw().savefig(ROOT / "docs" / name, dpi=130)


def pages(ages: bool = False) -> dict[Path, str]:
    """The text of every page; `ages` as in `Page.markdown`."""
    questions, systems = ([make() for make in makers] for makers in (QUESTIONS + FAULTS, SYSTEMS))
    table = markdown(["question", "answer", "measured"], [[_link(page), page.verdict, page.date] for page in questions])
    index = INDEX.format(questions=table, systems=", ".join(map(_link, systems)))
    texts = {page.name: page.markdown(ages) for page in [*questions, *systems]} | {"index": index}
    return {FOLDER / f"{name}.md": text for name, text in texts.items()}


def _link(page: Page) -> str:
    return f"[{page.question}]({page.name}.md)"


if __name__ == "__main__":
    main()
