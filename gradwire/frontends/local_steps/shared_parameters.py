"""The shared parameters of local steps in place of a replica's own, to evaluate or export them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradwire.frontends.local_steps.fragments import Fragment


@contextmanager
def in_place_of_own(fragments: Sequence[Fragment]) -> Iterator[None]:
    """A context in which parameters are the anchors."""
    # the own values are set aside, and put back whatever happens inside
    own = [p.detach().clone() for fragment in fragments for p in fragment.parameters.values()]
    for fragment in fragments:
        fragment.reset()
    try:
        yield
    finally:
        parameters = (p for fragment in fragments for p in fragment.parameters.values())
        for parameter, copy in zip(parameters, own, strict=True):
            parameter.data.copy_(copy)
