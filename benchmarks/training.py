"""Loss after the same number of steps, and time to it, on the byte-level language model.

    python benchmarks/training.py                              # 100mbit, 2 hosts, three seeds
    python benchmarks/training.py --link loopback --seeds 0    # the losses alone: they do not depend on the link

A two-layer LSTM on the standard library's sources, SGD with momentum 0.9, gradients clipped to norm 1, learning rate 1
falling to 0 along a cosine. The wall time is that of the training steps of rank 0, without evaluation. Writes
benchmarks/results/training.json and prints a Markdown table.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import gradwire as gw

RESULTS = Path(__file__).parent / "results"
CONFIGURATIONS = {
    "dense fp32 (DDP)": None, "TopK 1 %": gw.TopK(0.01), "EFSignSGD": gw.EFSignSGD(), "PowerSGD r4": gw.PowerSGD(4),
    "QSGD 8 bit": gw.QSGD(),
}  # fmt: skip


def main() -> None:
    arguments = parse()
    if arguments.out:
        rank_job(arguments)
        return
    from gradwire.lab.launch import launch
    from gradwire.lab.link import Link
    from gradwire.lab.network import Network

    RESULTS.mkdir(exist_ok=True)
    runs = []
    for seed in arguments.seeds.split(","):
        out = RESULTS / ".training.json"
        argv = [__file__, *sys.argv[1:], "--seed", seed, "--out", str(out)]
        if arguments.link == "loopback":
            launch(argv, 2)
        else:
            with Network(2, Link.parse(arguments.link)) as network:
                launch(argv, 2, network=network)
        runs += json.loads(out.read_text())
        out.unlink()
        print(f"seed {seed}: " + ", ".join(f"{r['name']} {r['loss']:.4f} in {r['wall_s']:.0f} s" for r in runs[-5:]))
    print(f"\n{markdown(runs)}")
    path = RESULTS / arguments.save
    path.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "link": arguments.link, "runs": runs}, indent=1))
    print(f"\nwritten to {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--save", default="training.json")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = [train(name, compressor, arguments) for name, compressor in CONFIGURATIONS.items()]
    if dist.get_rank() == 0:
        Path(arguments.out).write_text(json.dumps(runs))
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last collective; else the interpreter's end may abort
    os._exit(0)


def train(name: str, compressor, arguments: argparse.Namespace) -> dict:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(model="lstm", width=arguments.width)
    ddp = DDP(task.build_model(arguments.seed))
    handle = gw.attach(ddp, compressor, seed=arguments.seed) if compressor else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=arguments.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    batches = task.batches(dist.get_rank(), dist.get_world_size(), arguments.seed)
    wall_s, curve = 0.0, []
    for step in range(1, arguments.steps + 1):
        inputs, targets = next(batches)
        start = time.perf_counter()
        optimizer.zero_grad()
        task.loss(ddp(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        wall_s += time.perf_counter() - start
        if step % (arguments.steps // 30) == 0:
            curve.append((step, wall_s, task.evaluate(ddp.module)["loss"]))
            dist.barrier()
    sent = handle.stats().wire_bytes if handle else 4 * sum(p.numel() for p in ddp.parameters()) * arguments.steps
    if handle:
        handle.detach()
    return {"name": name, "seed": arguments.seed, "loss": curve[-1][2], "wall_s": wall_s, "curve": curve, "sent": sent}


def markdown(runs: list[dict]) -> str:
    dense = {run["seed"]: run for run in runs if run["name"].startswith("dense")}
    lines = [
        "| configuration | held-out loss, by seed | against dense | s to the end | s to dense's loss + 2 % | sooner |",
        "|---|---|---|---|---|---|",
    ]
    for name in CONFIGURATIONS:
        mine = [run for run in runs if run["name"] == name]
        worse = [run["loss"] / dense[run["seed"]]["loss"] - 1 for run in mine]
        reached = [time_to(run, 1.02 * dense[run["seed"]]["loss"]) for run in mine]
        sooner = [dense[run["seed"]]["wall_s"] / t for run, t in zip(mine, reached, strict=True) if t]
        lines.append(
            f"| {name} | {', '.join(format(run['loss'], '.3f') for run in mine)} "
            f"| {', '.join(f'{w:+.1%}' for w in worse)} | {statistics.median(run['wall_s'] for run in mine):.0f} "
            f"| {', '.join(f'{t:.0f}' if t else 'not' for t in reached)} "
            f"| {f'{statistics.median(sooner):.1f}x' if sooner else '-'} |"
        )
    return "\n".join(lines)


def time_to(run: dict, loss: float) -> float | None:
    """Seconds until the held-out loss was first at most `loss`."""
    return next((wall_s for _, wall_s, held_out in run["curve"] if held_out <= loss), None)


if __name__ == "__main__":
    main()
