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


def section(check: str, findings: Sequence[Finding]) -> str:
    """A check's findings."""
    return "\n".join([check, *(line for finding in findings for line in _lines(finding))])


def verdict(sections: Mapping[str, Sequence[Finding]]) -> str:
    """The last line."""
    wrong = faulty(sections)
    return f"wrong: {', '.join(wrong)}" if wrong else "all is well"


def faulty(sections: Mapping[str, Sequence[Finding]]) -> list[str]:
    """The checks that found a fault."""
    return [check for check, findings in sections.items() if any(finding.ok is False for finding in findings)]


def _lines(finding: Finding) -> list[str]:
    where = f" [{finding.where}]" if finding.where else ""
    lines = _wrapped(f"  {_MARKS[finding.ok]:<5} {finding.name}{where}: {finding.words}", _INDENT)
    helps = "" if finding.ok is False else "may help: "
    return [*lines, *(_wrapped(f"{_INDENT}-> {helps}{finding.remedy}", f"{_INDENT}   ") if finding.remedy else [])]


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent=indent)
