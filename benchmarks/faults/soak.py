"""Random faults in a long training, and the laws that must hold.

    python benchmarks/faults/soak.py [--minutes 30] [--hosts 4] [--seed 0]

Runs `gradwire soak` and writes its report to runs/. Writes benchmarks/results/soak_SEED.json: the number of faults of
each kind, seconds until all ranks went on, and the laws that were broken.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save
from gradwire.lab.network.link import LOOPBACK, link_of
from gradwire.lab.soak.faults import KINDS
from gradwire.lab.soak.soak import PATIENCE_S, soaking
from gradwire.lab.soak.soaked_model import FRONT_ENDS
from gradwire.report import soak_report as report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default=LOOPBACK)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path("runs") / f"soak-{given.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with soaking(given.hosts, link_of(given.link), given.seed, folder) as job:
        job.run(given.minutes, [*KINDS], lambda followed: print(followed.kind, followed.seconds, flush=True))
        came = job.came
        print(report.verdict(came), *came.broken, sep="\n")
        if not came.faults:
            raise SystemExit(1)
        report.write(folder, came)
    kinds = {kind: [each.seconds for each in came.faults if each.kind == kind] for kind in KINDS}
    save(
        f"soak_{given.seed}.json", place=came.place, seconds=came.seconds, steps=came.steps, patience_s=PATIENCE_S,
        kinds=kinds, broken=came.broken,
        front_ends={name: sum(each.front_end == name for each in came.faults) for name in FRONT_ENDS},
    )  # fmt: skip


if __name__ == "__main__":
    main()
