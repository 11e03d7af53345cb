"""Writes docs/benchmarks/ from benchmarks/results/: one page per question, one per published system, and their index.

python benchmarks/document.py
"""

from pathlib import Path

from fault_questions import FAULTS
from page import Page, markdown
from provenance import ROOT
from questions import QUESTIONS
from systems import SYSTEMS

FOLDER = ROOT / "docs" / "benchmarks"

INDEX = """# What was measured

{questions}

Beside what was published: {systems}.

CPUs, gloo, torch 2.13; a network namespace per rank behind `tc tbf`. Ranks and network share two cores. Timings vary by
10 to 20%: configurations take turns, and ratios count. Older results were measured before the code changed.
"""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Every page's text."""
    questions, systems = ([make() for make in makers] for makers in (QUESTIONS + FAULTS, SYSTEMS))
    code = {True: "older", False: "this"}
    answers = [[_link(page), page.verdict, code[page.is_older]] for page in questions]
    table = markdown(["question", "answer", "code"], answers)
    index = INDEX.format(questions=table, systems=", ".join(map(_link, systems)))
    return {FOLDER / f"{page.name}.md": str(page) for page in [*questions, *systems]} | {FOLDER / "index.md": index}


def _link(page: Page) -> str:
    return f"[{page.question}]({page.name}.md)"


if __name__ == "__main__":
    main()
