"""A link that gets slower in mid-training: does the plan follow, and does training notice?

    python benchmarks/scheduler/link_drop.py                      # 1gbit, then 100mbit from step 250 on; 2 hosts
    python benchmarks/scheduler/link_drop.py --before 10gbit
    python benchmarks/scheduler/link_drop.py --controller gravac --after 50mbit --at 220 --steps 600

The byte-level LSTM trains under `gw.attach(ddp)`, with top-k among the candidates, or under GraVAC with windows of 15
steps. When rank 0 has reached `--at`, the emulated link changes. Prints the decisions by step, the step times around
the change and the loss, and writes benchmarks/results/link_drop.json, link_drop_10gbit.json or link_drop_gravac.json.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import FOUND, as_rank
from benchmarks.shared.tables import markdown


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    from gradwire.lab.launch.launch import launch
    from gradwire.lab.network.link import Link
    from gradwire.lab.network.network import Network

    with tempfile.TemporaryDirectory() as folder, Network(2, Link.parse(arguments.before)) as network:
        out, reached = Path(folder, "out.json"), Path(folder, "reached")

        def change() -> None:
            while not reached.exists():
                time.sleep(0.02)
            network.set_link(Link.parse(arguments.after))

        threading.Thread(target=change, daemon=True).start()
        launch([__file__, *sys.argv[1:], "--reached", str(reached)], 2, env={FOUND: str(out)}, network=network)
        found = json.loads(out.read_text())
    print(report(found, arguments.at))
    # another controller, and another link before, beside the first result
    named = ["link_drop", *{arguments.controller} - {"auto"}, *{arguments.before} - {"1gbit"}]
    save(f"{'_'.join(named)}.json", before=arguments.before, after=arguments.after, at=arguments.at, **found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller", default="auto", choices=("auto", "gravac"))
    parser.add_argument("--before", default="1gbit")
    parser.add_argument("--after", default="100mbit")
    parser.add_argument("--at", type=int, default=250)
    parser.add_argument("--steps", type=int, default=650)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--reached", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw
    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(model="lstm", width=arguments.width, batch=4)
    ddp = DistributedDataParallel(task.build_model(0))
    if arguments.controller == "auto":
        controller = gw.Auto([gw.FP32(), gw.BF16(), gw.QSGD(), gw.TopK(0.01)])
        handle = gw.attach(ddp, gw.FP32(), controller=controller)
    else:
        controller = gw.GraVAC(window=15)
        handle = gw.attach(ddp, gw.TopK(0.1), controller=controller)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3, momentum=0.9)
    batches = task.batches(dist.get_rank(), dist.get_world_size(), 0)
    losses: list[float] = []
    seconds: list[float] = []
    for step in range(arguments.steps):
        if step == arguments.at and dist.get_rank() == 0:
            Path(arguments.reached).touch()
        inputs, targets = next(batches)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(ddp(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    said = [(decision.step, decision.decision) for decision in controller.decisions]
    handle.detach()
    return {"decisions": said, "seconds": seconds, "losses": losses}


def report(found: dict[str, Any], at: int) -> str:
    said = [f"step {step}: {decision}" for step, decision in found["decisions"]]
    cells: list[list[str]] = []
    for start in range(0, len(found["seconds"]), 50):
        own = slice(start, start + 50)
        mark = " (the link changes)" if start <= at < start + 50 else ""
        ms, loss = 1e3 * median(found["seconds"][own]), median(found["losses"][own])
        cells.append([f"{start} to {start + 49}{mark}", f"{ms:.0f}", f"{loss:.3f}"])
    return "\n".join([*said, "", markdown(("steps", "median ms", "median loss"), cells)])


if __name__ == "__main__":
    main()
