"""Environment variables: those that do harm, those that are set, and those that would help."""

from gradwire.lab.doctor.facts import DEVICE
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.lab.doctor.variables import VARIABLES


def check(site: Site) -> list[Finding]:
    """The effects of this rank's variables, of those in docs/gpu.md."""
    facts = site.everyone[site.rank]
    found = [_about(name, facts.get(name), facts[DEVICE] == "cuda") for name in VARIABLES]
    there = [finding for finding in found if finding]
    return there or [Finding("variables", True, "none is set that docs/gpu.md speaks about; CPUs need none")]


def _about(name: str, value: str | None, on_gpu: bool) -> Finding | None:
    """The finding about a variable; None where there is nothing to say."""
    rule = VARIABLES[name]
    if value and (harm := rule.harm(value)):
        return Finding(name, False, f"{value} does harm: {harm}", rule.remedy)
    hint = rule.hint_for(value) if on_gpu else ""
    if value is None and not hint:
        return None
    return Finding(name, True, "is not set" if value is None else f"is {value}", hint)
