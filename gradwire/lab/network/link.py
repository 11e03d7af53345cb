"""The speed of an emulated link."""

import re
from dataclasses import dataclass
from typing import Self

from gradwire.launched import is_launched

_UNITS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3}
_RATE = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(_UNITS)})")
_FASTEST_SHAPED = 10 * 10**9
LOOPBACK = "loopback"
"""Stands for no link in text."""
REAL = "real"
"""Stands for the network of ranks that were started beforehand."""
NVLINK, PCIE_3 = "1200gbit", "96gbit"
"""Links inside a host."""
COUNTED, ON_WIRE = 1514, 1538
"""The bytes of a full Ethernet frame: those that the kernel counts, and all that it takes on the wire."""
LATENCY_US = 50.0
"""Microseconds of a message between hosts, beside its bytes, where none are given."""


@dataclass(frozen=True)
class Link:
    """A link of `bits_per_second` in each direction."""

    bits_per_second: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read '500kbit', '100mbit', '2.5gbit' (powers of ten, as `tc` does).

        Raises ValueError when `text` is not a number with one of the three units, or less than the byte per second
        that is the least a kernel can shape.
        """
        match = _RATE.fullmatch(text.strip().lower())
        bits_per_second = round(float(match[1]) * _UNITS[match[2]]) if match else 0
        if bits_per_second < 8:
            raise ValueError(f"{text!r} is not a link: write a rate in kbit (from 0.008), mbit or gbit, such as 1mbit")
        return cls(bits_per_second)

    @classmethod
    def carrying(cls, bytes_per_s: float) -> Self:
        """The link of so many bytes a second, to the nearest bit."""
        return cls(round(8 * bytes_per_s))

    def __str__(self) -> str:
        unit = next((unit for unit, size in _UNITS.items() if self.bits_per_second >= size), "kbit")
        return f"{self.bits_per_second / _UNITS[unit]:.10g}{unit}"

    @property
    def shaped(self) -> bool:
        """Whether a token bucket limits it; above 10 gbit the processor is what limits."""
        return self.bits_per_second <= _FASTEST_SHAPED

    @property
    def bytes_per_second(self) -> int:
        """The rate in the kernel's own unit."""
        return self.bits_per_second // 8

    @property
    def counted_bytes_per_second(self) -> int:
        """The bytes of full frames as the kernel counts them, without check sum, preamble and gap, which take their
        time on the wire of an Ethernet as well."""
        return max(1, self.bytes_per_second * COUNTED // ON_WIRE)

    @property
    def bucket(self) -> dict[str, int]:
        """The token bucket in the kernel's words: its rate; its depth, 1 ms of traffic, and never less than a few
        packets; and the queue before packets are dropped, 50 ms of traffic, at least 256 KiB. Bytes."""
        burst, queue = max(self.bytes_per_second // 1000, 16 * 1024), max(self.bytes_per_second // 20, 256 * 1024)
        return {"rate": self.counted_bytes_per_second, "burst": burst, "limit": queue}


def link_of(text: str) -> Link | None:
    """The link of `text` to emulate, or None for loopback and, among ranks that were started beforehand, for their own
    network. Raises ValueError for other text."""
    return None if text == LOOPBACK or (text == REAL and is_launched()) else Link.parse(text)
