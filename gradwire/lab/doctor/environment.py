"""Environment variables: those that do harm, those that are set, and those that would help."""

from gradwire.lab.doctor.facts import DEVICE
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.lab.doctor.variables import VARIABLES


def check(site: Site) -> list[Finding]:
    """What this rank's variables do, of those in docs/gpu.md."""
    facts = site.everyone[site.rank]
    there = {name: facts[name] for name in VARIABLES if name in facts}
    harms = {name: VARIABLES[name].harm(value) for name, value in there.items()}
    found = [
        Finding(name, False, f"{there[name]} does harm: {harm}", VARIABLES[name].remedy)
        for name, harm in harms.items()
        if harm
    ]
    found += [Finding(name, True, f"is {there[name]}") for name, harm in harms.items() if not harm]
    if facts[DEVICE] == "cuda":
        found += [
            Finding(name, True, "is not set", rule.hint)
            for name, rule in VARIABLES.items()
            if rule.hint and name not in there
        ]
    return found or [Finding("variables", True, "none is set that docs/gpu.md speaks about; CPUs need none")]
