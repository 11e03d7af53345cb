"""Steps that a user skips: one batch of loss x 1e4, and gradients that a generator's backward leaves in a critic.

    python benchmarks/losses/skipped.py             # minutes, two ranks

A network on scikit-learn's digits, SGD with momentum, 120 steps, three seeds; the loss of step 20 is multiplied. The
user skips the optimizer's step where the norm of the mean gradient is above 8 times the median of the last 20 accepted
steps: with `handle.skip()`, without it, and in a training without the spike. Then a GAN on points, whose critic is
compressed: the distance between the mean of the gradients that its optimizer received in 300 steps and the mean of
dense ones, if the gradients of the generator's backward are zeroed, if the handle is paused, and if there are none.

Writes benchmarks/results/skipped.json and prints Markdown tables.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

STEPS, SPIKE_AT, SPIKE, LIMIT, GAN_STEPS, SEEDS = 120, 20, 1e4, 8.0, 300, (0, 1, 2)
FAMILIES = {
    "dense": gw.FP32(), "4 bits": gw.Quantized(4), "PowerSGD r2": gw.PowerSGD(2), "TopK 5 %": gw.TopK(0.05),
    "TopK 5 %, 10-bit entries": gw.TopK(0.05, value_bits=4), "EFSignSGD": gw.EFSignSGD(),
}  # fmt: skip
SPIKES = ("none", "handle.skip()", "no optimizer.step() alone")
LEFT = ("never there", "handle.paused()", "zeroed alone")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    as_rank(measure)
    (found,) = collect(__file__, [], 2, "loopback")
    print(markdown(["family", *(f"{kind}: steps skipped, loss" for kind in SPIKES)], spike_cells(found["spikes"])))
    print(
        markdown(["critic", *LEFT], [[row["family"], *(f"{row[kind]:.3f}" for kind in LEFT)] for row in found["gan"]])
    )
    save("skipped.json", **found)


def measure() -> list[dict]:
    torch.set_num_threads(1)
    spikes = [
        {"family": name, "spike": kind, "seed": seed} | train(compressor, kind, seed)
        for name, compressor in FAMILIES.items()
        for kind in SPIKES
        for seed in SEEDS
    ]
    gan = [
        {"family": name} | {kind: error_of_critic(FAMILIES[name], kind) for kind in LEFT}
        for name in ("TopK 5 %", "4 bits", "PowerSGD r2")
    ]
    return [{"spikes": spikes, "gan": gan}]


def spike_cells(rows: list[dict]) -> list[list[str]]:
    def cell(family: str, kind: str) -> str:
        own = [row for row in rows if (row["family"], row["spike"]) == (family, kind)]
        losses, skipped = [row["loss"] for row in own], [row["skipped"] for row in own]
        times = str(skipped[0]) if len(set(skipped)) == 1 else f"{min(skipped)} to {max(skipped)}"
        return f"{times}, {fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"

    return [[family, *(cell(family, kind) for kind in SPIKES)] for family in FAMILIES]


def train(compressor: gw.Compressor, kind: str, seed: int) -> dict:
    """The number of skipped steps, and the loss over all digits after the last step."""
    inputs, labels = digits()
    torch.manual_seed(seed)
    ddp = DDP(mlp(64, 10))
    handle = gw.attach(ddp, compressor)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    norms, skipped = list[float](), 0
    for step in range(STEPS):
        batch = torch.randint(len(inputs), (32,), generator=generator)
        loss = nn.functional.cross_entropy(ddp(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        (loss * (SPIKE if step == SPIKE_AT and kind != "none" else 1)).backward()
        norm = float(nn.utils.get_total_norm(p.grad for p in ddp.parameters() if p.grad is not None))
        if len(norms) > 10 and norm > LIMIT * median(norms[-20:]):
            skipped += 1
            if kind == "handle.skip()":
                handle.skip()
            continue
        norms.append(norm)
        optimizer.step()
    handle.detach()
    with torch.no_grad():
        return {"skipped": skipped, "loss": float(nn.functional.cross_entropy(ddp.module(inputs), labels))}


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target)


def error_of_critic(compressor: gw.Compressor, kind: str) -> float:
    """The relative distance of the mean of the critic's gradients to the mean of dense ones."""
    torch.manual_seed(0)
    critic, generator = DDP(mlp(8, 1)), DDP(mlp(4, 8))
    handle = gw.attach(critic, compressor)
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.9)) for each in (critic, generator)]
    got, dense = (torch.zeros(sum(p.numel() for p in critic.parameters())) for _ in range(2))
    leaves: Callable[[], AbstractContextManager[None]] = handle.paused if kind == "handle.paused()" else nullcontext
    for real in points(GAN_STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        critic.requires_grad_(kind != "never there")
        with leaves() if kind != "never there" else nullcontext():
            judge = critic.module if kind == "never there" else critic
            nn.functional.softplus(-judge(generator(torch.randn(32, 4)))).mean().backward()
        critic.requires_grad_(True)
        optimizers[1].step()
        optimizers[0].zero_grad()
        both = torch.cat([real, generator.module(torch.randn(32, 4)).detach()])
        signs = torch.tensor([-1.0, 1.0]).repeat_interleave(32)[:, None]
        loss = nn.functional.softplus(signs * critic(both)).mean()
        own = torch.autograd.grad(loss, list(critic.parameters()), retain_graph=True)
        dense += flat(own)
        loss.backward()
        got += flat([p.grad for p in critic.parameters()])
        optimizers[0].step()
    handle.detach()
    dist.all_reduce(dense)
    dense /= dist.get_world_size()
    return float((got - dense).norm() / dense.norm())


def points(steps: int) -> Iterator[Tensor]:
    """Batches of a mixture of four."""
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(7)) * 2
    draws = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        kinds = torch.randint(4, (32,), generator=draws)
        yield centres[kinds] + 0.3 * torch.randn(32, 8, generator=draws)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


def flat(tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


if __name__ == "__main__":
    main()
