"""Versions, which are to be equal on all ranks."""

from gradwire.lab.doctor.facts import DEVICE, VERSIONS, ranks_by
from gradwire.lab.doctor.findings import Finding, at_ranks
from gradwire.lab.doctor.site import Site

_REMEDIES = {
    DEVICE: "give every rank a GPU that it can see (CUDA_VISIBLE_DEVICES, a torch built for CUDA), or --device cpu",
    "driver": "install one NVIDIA driver on all hosts",
}


def check(site: Site) -> list[Finding]:
    """Whether all ranks have the same versions, on the same kind of device. All ranks find the same."""
    values = {fact: ranks_by(site.everyone, fact) for fact in (*VERSIONS, DEVICE)}
    equal = [f"{fact} {next(iter(own))}" for fact, own in values.items() if len(own) == 1]
    return [
        Finding("equal on all ranks", True, ", ".join(equal)),
        *(_differs(fact, own, site.hosts) for fact, own in values.items() if len(own) > 1),
    ]


def _differs(fact: str, values: dict[str, list[int]], hosts: list[str]) -> Finding:
    words = "; ".join(f"{value} on {at_ranks(ranks, hosts)}" for value, ranks in values.items())
    remedy = _REMEDIES.get(fact, f"install the same {fact} on all hosts")
    return Finding(fact, False, f"the ranks differ: {words}", remedy)
