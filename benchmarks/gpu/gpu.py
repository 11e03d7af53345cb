"""Everything about a GPU that issues want measured, in at most eight minutes on one device.

    python3 benchmarks/gpu/gpu.py --out runs/gpu                     # needs no installation: the checkout alone
    python3 benchmarks/gpu/gpu.py --only kernels,bert --minutes 4 --out runs/bert
    python3 benchmarks/gpu/gpu.py --device cpu --tiny                # tries the script itself, on a pretended GPU

On the device machine, whose tool `run` takes a command and sends this checkout:

    run(timeout_s=540, command="PYTHONUNBUFFERED=1 python3 benchmarks/gpu/gpu.py --out $OUT --minutes 8")

Where time is left, at once, on the same machine: `--only gpt2,bert512 --minutes 3`; then `give_back`. The reply ends
with the last tables; all that was found is in rows.jsonl, all tables are in tables.md, and what sections printed in
log.txt.

Every section is a process of its own, or several, with a limit to its seconds; the next one has been imported by
then. Those that time nothing run at once. A row is written, and printed, as soon as it is found; `keep.py` keeps those
of a run that was cut off. Where a process crashes or hangs, it begins anew behind the row that it was at. Sections are:

    versions  the card, and the versions of all that computes
    correct   recorded turns against computed ones, to the bit, for every row of tests/support/cases.py
    waits     whether the host waits in steady steps, for every row
    nccl      a process group of one rank over NCCL, made in several ways: every collective, abort, close, another job
    doctor    `gradwire doctor` with one rank
    shared    four real ranks that share the card, over gloo
    sanitizer `compute-sanitizer` over the kernels of every row
    kernels   each kernel beside a copy of the same bytes; each compressor's step on one group, computed and recorded
    bert, resnet, gpt2, bert512
              whole steps of a model, 8 ranks played, beside no communication, DDP and torch's hooks
    layers    layer by layer against planned groups
    native    what a native plan costs beside DDP alone
    memory    peak and held bytes of a parameter
    first     how long first steps take, and when kernels are compiled
    traces    what all threads and the GPU do in three steps, for chrome://tracing

and, where they are named, as in `--only versions,cupcake --minutes 6`, then `--only versions,acpsgd,adtopk,gravac`:

    cupcake, acpsgd, adtopk, gravac
              what the published systems measured on many GPUs; `keep.py FOLDER gpu_cupcake` and so on keep it
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.processes import Process
from benchmarks.gpu.rows import read
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.shown import Tables, shown_as_they_come
from benchmarks.shared.provenance import CALLED, command

LEAST_S = 10.0
"""Seconds. A process is not started with less time than this."""


def main() -> None:
    arguments = parse()
    os.environ[CALLED] = command()
    end, tables = time.monotonic() + 60 * arguments.minutes, Tables(arguments.out)
    names = arguments.only.split(",") if arguments.only else default()
    turns = turns_of(names)
    if read(arguments.out):
        raise SystemExit(f"{arguments.out} has rows of another run: name a new folder with --out")
    # the turn after this one is imported while this one runs
    ahead = processes_of(turns[0], arguments)
    for turn, following in zip(turns, [*turns[1:], []], strict=True):
        processes, ahead = ahead, processes_of(following, arguments)
        # its share of the time that is left
        weights = [max(SECTIONS[name].seconds for name in each) for each in turns[turns.index(turn) :]]
        seconds = (end - time.monotonic()) * weights[0] / sum(weights)
        with shown_as_they_come(arguments.out), ThreadPoolExecutor(len(processes)) as at_once:
            ended = [at_once.submit(run, process, seconds, arguments) for process in processes]
        for name in turn:
            tables.show(name)
        print(*(f"this script: {error!r}" for each in ended if (error := each.exception())), sep="\n", end="")
    print(tables.summary(), flush=True)


def default() -> list[str]:
    """The sections that run where none is named."""
    return [name for name, section in SECTIONS.items() if not section.asked]


def turns_of(names: list[str]) -> list[list[str]]:
    """The sections that run at once, then each of the others alone."""
    if unknown := [name for name in names if name not in SECTIONS]:
        raise SystemExit(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    together = [name for name in names if not SECTIONS[name].times]
    return [together] * bool(together) + [[name] for name in names if SECTIONS[name].times]


def processes_of(turn: list[str], arguments: argparse.Namespace) -> list[Process]:
    """The processes of sections that run at once. Creates the folder."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = {name: 1 if arguments.tiny else SECTIONS[name].parts for name in turn}
    return [Process(name, part, arguments) for name in turn for part in range(parts[name])]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sections, with commas between them")
    parser.add_argument("--minutes", type=float, default=8.0, help="of all sections together")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, few rows, few repeats")
    return parser.parse_args()


def run(process: Process, seconds: float, arguments: argparse.Namespace) -> None:
    """Runs a process for so long; anew, behind the row where it crashed, as long as there is time and it gets on."""
    end, begun = time.monotonic() + seconds, -1
    while (left := end - time.monotonic()) > LEAST_S:
        if process.run(left):
            return
        before, begun = begun, len({row["what"] for row in read(arguments.out, process.section) if "what" in row})
        process = Process(process.section, process.part, arguments)
        if begun == before:
            break
    process.leave_out(f"{max(left, 0):.0f} s were left")


if __name__ == "__main__":
    main()
