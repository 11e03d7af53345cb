"""Options that an automatic plan does not take, and what to use instead."""

_CANDIDATE = "name it with a candidate, as in candidates=[gw.Group((), gw.TopK(0.01), gw.Residual(), gw.AllGather())]"
_INSTEAD = {
    "dense": "use rules=[('*.embedding.*', gw.FP32()), ('*', 'auto')]",
    "groups": "leave groups= out, or name the compressor that they are for",
    "memory": _CANDIDATE,
    "communicator": _CANDIDATE,
}


def check_ignored(**options: object) -> None:
    """Raises ValueError, naming the call that works, for an option that an automatic plan would ignore."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name}= is for a named compressor: an automatic plan would ignore it; {_INSTEAD[name]}")
