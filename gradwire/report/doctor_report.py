"""The report of `gradwire doctor`: text of 100 columns at most, which can be pasted into an issue."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from gradwire.lab.doctor.findings import Finding
from gradwire.report.words import counted

WIDTH = 100
_MARKS = {True: "ok", False: "WRONG", None: "-"}
_INDENT = " " * 8


def heading(ranks: int, hosts: int, device: str) -> str:
    """The first line."""
    return f"gradwire doctor: {counted(ranks, 'rank')} on {counted(hosts, 'host')}, {device}"


def findings_of(check: Sequence[Finding], width: int = WIDTH) -> str:
    """A check's findings, in lines of `width` columns at most."""
    return "\n".join(line for finding in check for line in _lines(finding, width))


def verdict(sections: Mapping[str, Sequence[Finding]]) -> str:
    """The last line."""
    wrong = faulty(sections)
    return f"wrong: {', '.join(wrong)}" if wrong else "all is well"


def faulty(sections: Mapping[str, Sequence[Finding]]) -> list[str]:
    """The checks that found a fault."""
    return [check for check, findings in sections.items() if any(finding.ok is False for finding in findings)]


def _lines(finding: Finding, width: int) -> list[str]:
    where = f" [{finding.where}]" if finding.where else ""
    text = f"  {_MARKS[finding.ok]:<5} {finding.name}{where}: {finding.words}"
    lines = wrap(text, width, subsequent_indent=_INDENT)
    if finding.remedy:
        helps = "" if finding.ok is False else "may help: "
        lines += wrap(f"{_INDENT}-> {helps}{finding.remedy}", width, subsequent_indent=f"{_INDENT}   ")
    return lines
