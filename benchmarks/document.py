"""Writes docs/benchmarks/ from benchmarks/results/: one page per question, one per published system, and their index.

python benchmarks/document.py
"""

from pathlib import Path

from page import Page, markdown
from provenance import ROOT
from questions import QUESTIONS
from systems import SYSTEMS

FOLDER = ROOT / "docs" / "benchmarks"

INDEX = """# What was measured

{questions}

Beside what four systems published: {systems}.

CPUs, gloo, one thread per rank, torch 2.13; the emulated network is a namespace per rank behind `tc tbf`; no GPU. Ranks
and the network share two cores, so encoding takes time from backward. Timings vary by 10 to 20 %: configurations take
turns, and their ratios count. Code says whether a result was measured with this code or an older one.

`make benchmarks` writes these pages from `benchmarks/results/`.
"""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Every page's text."""
    questions, systems = ([make() for make in makers] for makers in (QUESTIONS, SYSTEMS))
    code = {True: "older", False: "this"}
    answers = [[_link(page), page.verdict, code[page.is_older]] for page in questions]
    table = markdown(["question", "answer", "code"], answers)
    index = INDEX.format(questions=table, systems=", ".join(map(_link, systems)))
    return {FOLDER / f"{page.name}.md": str(page) for page in [*questions, *systems]} | {FOLDER / "index.md": index}


def _link(page: Page) -> str:
    return f"[{page.question}]({page.name}.md)"


if __name__ == "__main__":
    main()
