"""DeMo and Dion against numbers that their published code printed; none of that code is here.

Two ranks took ten steps from parameters in equal steps from -1 to 1 by `gradient`, in float32 on CPUs with torch 2.13:

- DeMo: https://github.com/bloc97/DeMo at 0e48145, which names no licence. `DeMo(params, lr=0.01, compression_topk=3,
  compression_chunk=4, weight_decay=0.1)`; what it keeps is divided by the learning rate, which it multiplies first.
- Dion: https://github.com/microsoft/dion at 0a059a4, MIT licence. `dion_reference.Dion([tall], process_group,
  rank_fraction=0.5, lr=0.02, mu=0.9, weight_decay=0.1)`. That transposes what is wider than tall, so wide's are of
  `dion_simple.Dion`, rank=2, by the mean gradient. Q began as `torch.arange(2 * columns).view(columns, 2).sin()`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.descent import descend
from tests.support.harness import job, plan_of, slots_of


class Ran(NamedTuple):
    """A parameter's shape, and its numbers after ten steps."""

    shape: tuple[int, ...]
    parameter: str
    momentum: str
    """Rank 0's of DeMo, the mean of the ranks' of Dion."""

    def start(self) -> Tensor:
        return torch.linspace(-1, 1, torch.Size(self.shape).numel()).view(self.shape)

    def numbers(self, text: str) -> Tensor:
        return torch.tensor([float(word) for word in text.split()]).view(self.shape)


DEMO = {
    "weight": Ran(
        (8, 6),
        """
        -0.89049 -0.84836 -0.82619 -0.76411 -0.74194 -0.69973 -0.63772 -0.61545 -0.55346 -0.53119 -0.48910
        -0.42707 -0.38494 -0.36275 -0.34050 -0.29827 -0.27624 -0.17429 -0.17208 -0.09003 -0.12772 -0.04563
        -0.02336 0.03881 0.08093 0.16275 0.16501 0.20710 0.20935 0.31126 0.33345 0.39558 0.37797 0.44004 0.50201
        0.54416 0.58639 0.58856 0.65077 0.71280 0.73487 0.77710 0.77925 0.84142 0.84391 0.90568 0.90807 0.99008
        """,
        """
        0.08991 0.14801 -0.15455 -1.28958 -0.20226 0.22072 1.12583 0.66482 0.07109 0.85326 1.32423 -0.57751
        -0.82534 -0.86600 -0.17040 -0.90446 0.48129 0.90037 -0.09232 0.05317 -0.04421 1.18408 -1.17874 -0.81139
        0.11433 -0.00354 0.82148 0.32513 -1.87308 -1.10339 -1.41148 -0.29673 -0.03725 -1.00540 -1.41975 -0.60477
        0.77122 0.34925 -0.08953 -0.90234 0.67598 1.02495 -0.64666 -1.06163 1.49054 0.11152 1.24433 -0.59076
        """,
    ),
    "bias": Ran(
        (12,),
        """
        -0.89049 -0.71049 -0.57046 -0.37039 -0.19032 0.00955 0.18956 0.30996 0.48981 0.66976 0.86963 0.99009
        """,
        """
        -0.16161 -0.06694 0.06694 0.16161 0.28690 -0.28690 -0.28690 0.28690 -0.06730 0.16248 -0.16248 0.06730
        """,
    ),
}
DION = {
    "tall": Ran(
        (8, 4),
        """
        -0.88994 -0.81553 -0.78880 -0.71163 -0.65843 -0.59170 -0.52311 -0.44552 -0.41068 -0.37841 -0.28069
        -0.22977 -0.13743 -0.17393 -0.01671 -0.00282 0.11216 0.14359 0.16514 0.22616 0.29991 0.38969 0.40973
        0.48146 0.50854 0.63943 0.66521 0.75580 0.74301 0.95086 0.86650 1.00739
        """,
        """
        -11.96339 -11.38800 -9.01079 -12.03175 -11.38183 -10.94231 -9.75165 -10.49311 -9.04415 -8.50095 -7.81826
        -9.54407 -9.11972 -6.78644 -8.40287 -3.36053 -4.40282 -5.45285 -4.68923 -6.20336 -2.84034 -3.42961
        -2.71440 -5.30901 -2.47904 -2.23834 -1.79809 -1.37763 0.23927 -3.14256 0.45814 -0.12915
        """,
    ),
    "wide": Ran(
        (4, 8),
        """
        -0.94310 -0.87125 -0.81604 -0.75396 -0.69320 -0.61716 -0.56406 -0.47617 -0.43724 -0.39548 -0.31575
        -0.25030 -0.17703 -0.16208 -0.06259 -0.03908 0.08179 0.12609 0.16583 0.23293 0.28006 0.37138 0.41011
        0.46393 0.54395 0.61288 0.66530 0.73047 0.78106 0.86987 0.91158 0.98867
        """,
        """
        -11.96004 -11.38926 -8.97954 -11.82828 -11.90102 -11.01211 -9.94018 -10.72729 -9.05716 -8.82613 -8.35423
        -9.47789 -8.90736 -6.44271 -8.17607 -3.97407 -4.78000 -5.65145 -4.86893 -6.06238 -3.00080 -2.93774
        -2.20652 -5.41203 -1.89914 -2.69477 -2.11909 -2.02896 0.91446 -3.93952 1.32340 -0.11822
        """,
    ),
}
NEAR = {"rtol": 0, "atol": 2e-5}
"""What was printed has five places."""


def test_demo_takes_the_steps_of_its_published_code():
    slots = slots_of({name: ran.start() for name, ran in DEMO.items()})
    memory, communicator = gw.Residual(decay=0.999), gw.AllGather(over_senders=True)
    ranks = [[ran.start() for ran in DEMO.values()] for _ in range(2)]
    optimizers = [gw.SignDescent(own, 0.01, 0.1) for own in ranks]
    with job(plan_of(slots, gw.DCTTopK(3, chunk=4), memory, communicator), slots, 2) as running:
        for step in range(10):
            descend(running, ranks, optimizers, step)
        residuals = running.state("residual")
    assert_printed(DEMO.values(), ranks[0], [residual * 2 for residual in residuals[0]])


def test_dion_takes_the_steps_of_its_published_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gw.Dion, "init_slot", lambda _self, _rows, columns, _generator: {"q": sines(columns)})
    slots = slots_of({name: ran.start() for name, ran in DION.items()})
    ranks = [[ran.start() for ran in DION.values()] for _ in range(2)]
    optimizers = [torch.optim.SGD(own, 0.02, weight_decay=0.1) for own in ranks]
    with job(plan_of(slots, gw.Dion(2, mu=0.9), gw.Residual(), gw.AllReduce()), slots, 2) as running:
        for step in range(10):
            descend(running, ranks, optimizers, step)
        residuals = [sum(both) for both in zip(*running.state("residual"), strict=True)]
    assert_printed(DION.values(), ranks[0], residuals)


def assert_printed(published: Iterable[Ran], parameters: Sequence[Tensor], momenta: Sequence[Tensor]) -> None:
    for ran, own, momentum in zip(published, parameters, momenta, strict=True):
        torch.testing.assert_close(own, ran.numbers(ran.parameter), **NEAR)
        torch.testing.assert_close(momentum, ran.numbers(ran.momentum), **NEAR)


def sines(columns: int) -> Tensor:
    return torch.arange(2.0 * columns).view(columns, 2).sin().T
