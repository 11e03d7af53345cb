"""Losses at a size that people train: a GPT of 29.5 M parameters, on one GPU, in a few minutes.

    python3 benchmarks/losses/at_size.py --out runs/at_size              # needs no installation: the checkout alone
    python3 benchmarks/losses/at_size.py --only dense,topk-16 --minutes 4
    python3 benchmarks/losses/at_size.py --device cpu --tiny             # tries the script itself
    python3 benchmarks/losses/at_size.py --out runs/at_size --keep       # its result and table; runs nothing

On the device machine, whose tool `run` takes a command and sends this checkout:

    run(timeout_s=590, command="PYTHONUNBUFFERED=1 python3 benchmarks/losses/at_size.py --out $OUT --minutes 9")

Byte-level pairs of the Python files that are installed, bfloat16 by autocast, fused AdamW, 4 ranks of 16 windows of 256
tokens, whose batches one device computes in turn. Codecs, memories and collectives are those of any job: a runtime a
rank, over threads. The same seed means the same weights and batches. Nothing is timed, so all configurations run at
once, in a process each; `size/ways.py` has them.

The first 30 steps, all at once, tell how many fit into the minutes: by the slowest, and the same number for all. So a
cosine is never cut. rows.jsonl has a row of each hundred steps, and held-out losses after a third, two thirds and the
end, all of which are printed as they come; log.txt what processes printed; tables.md the table. Where the whole run is
cut off, --keep keeps the configurations that had come to their end.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.device import Device
from benchmarks.gpu.keep import commit_of
from benchmarks.gpu.rows import Rows, read
from benchmarks.gpu.shown import shown_as_they_come
from benchmarks.losses.size.model import FULL, TINY
from benchmarks.losses.size.process import Trained, have_written
from benchmarks.losses.size.ranks import RANKS
from benchmarks.losses.size.text import write
from benchmarks.losses.size.training import RISE, TIMED, WARM
from benchmarks.losses.size.ways import ROUND, WAYS
from benchmarks.shared.provenance import CALLED, command, save
from benchmarks.shared.tables import markdown

TO_BEGIN = 0.35
"""The share of the minutes after which a process that is not ready is left out."""
TO_TRAIN = 0.9
"""The share of the seconds left that the steps are to take; evaluations need the rest."""

DENSE = 4 * 2 * (RANKS - 1) / RANKS
"""Bytes of a parameter that a rank sends in a ring's all-reduce of float32."""


def main() -> None:
    arguments = parse()
    if arguments.keep:
        return keep(arguments.out)
    if read(arguments.out):
        raise SystemExit(f"{arguments.out} has rows of another run; name a new folder")
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ[CALLED] = command()
    os.environ["OMP_NUM_THREADS"] = "1"
    end = time.monotonic() + 60 * arguments.minutes
    rows = Rows(arguments.out, "job", 0)
    rows.add("versions", **Device.of(arguments.device, arguments.tiny).facts())
    with TemporaryDirectory() as text:
        arguments.text = Path(text)
        processes = [Trained(name, 0, arguments) for name in arguments.only.split(",")]
        try:
            with shown_as_they_come(arguments.out):
                train(processes, arguments, rows, end)
        finally:
            for process in processes:
                process.kill() if process.runs else None
    printed = table(read(arguments.out))
    (arguments.out / "tables.md").write_text(printed + "\n")
    print(printed, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/at_size"))
    parser.add_argument("--minutes", type=float, default=9.0, help="of all together")
    parser.add_argument("--steps", type=int, default=1500, help="at most")
    parser.add_argument("--rate", type=float, default=1e-3, help="AdamW's, at its highest")
    parser.add_argument("--only", default=",".join(WAYS), help="configurations, with commas between them")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, little text")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/at_size.json from the folder")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.only.split(",") if name not in WAYS]:
        raise SystemExit(f"there is no configuration {unknown[0]!r}; there are {', '.join(WAYS)}")
    return arguments


def train(processes: Sequence[Trained], arguments: argparse.Namespace, rows: Rows, end: float) -> None:
    """Trains all configurations; rows say how that went."""
    # the text, while processes import
    size = TINY if arguments.tiny else FULL
    tokens = arguments.steps * RANKS * size.batch * size.context
    rows.add("text", **write(arguments.text, tokens, size.words))
    # first steps of all, then some at the same time
    latest = end - (1 - TO_BEGIN) * 60 * arguments.minutes
    for process in processes:
        process.tell("text", last=False)
    ready = have_written(processes, "ready", arguments.out, latest)
    for process in ready:
        process.tell("go", last=False)
    timed = have_written(ready, "speed", arguments.out, (latest + end) / 2)
    # as many steps as the slowest has time for
    seconds = [row["seconds"] for row in read(arguments.out) if row["kind"] == "speed"]
    steps = fitting(arguments.steps, max(seconds, default=0.0), end - time.monotonic())
    rows.add("steps", steps=steps, wanted=arguments.steps, seconds=max(seconds, default=0.0))
    if steps <= RISE and not arguments.tiny:
        raise SystemExit(f"only {steps} steps fit: name fewer configurations with --only, or more --minutes")
    for process in timed:
        process.tell(str(steps))
    for process in timed:
        process.ends_within(max(0.0, end - time.monotonic()))


def fitting(wanted: int, seconds: float, left: float) -> int:
    """The number of steps, in whole rounds, where a step takes so many seconds and so many are left."""
    most = WARM + TIMED + int(TO_TRAIN * left / seconds) if seconds else 0
    return min(wanted, most) // ROUND * ROUND


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each configuration: held-out losses, beside dense's last one, and what one rank sends."""
    losses = {row["section"]: row for row in rows if row["kind"] == "losses"}
    lines = []
    for name, way in WAYS.items():
        own = [row for row in rows if row["section"] == name]
        found = [f"{row['loss']:.4f} ({row['step']})" for row in own if row["kind"] == "held out"]
        if last := losses.get(name):
            sent = last["bytes a parameter"]
            dense = losses.get("dense")
            beside = f"{last['held_out'] / dense['held_out'] - 1:+.1%}" if dense else ""
            cells = [beside, f"{last['training']:.4f}", f"{sent:.4f}", f"{DENSE / sent:.1f}", way.note]
        elif own:
            steps = max((row["step"] for row in own if row["kind"] == "curve"), default=0)
            whys = [row.get("error") or row["why"] for row in own if row["kind"] in ("failed", "left out")]
            cells = ["", "", "", "", f"no result: it ended at step {steps}, {'; '.join(whys) or 'as all was cut off'}"]
        else:
            continue
        lines.append([way.name, ", ".join(found), *cells])
    columns = ("", "held out (step)", "against dense", "training", "bytes a parameter and step", "fewer", "")
    return markdown(columns, lines)


def keep(folder: Path) -> None:
    """Writes benchmarks/results/at_size.json from a folder, with the commit whose sources were measured, and prints the
    table. Raises SystemExit where no configuration came to its end."""
    rows = read(folder)
    if not any(row["kind"] == "losses" for row in rows):
        raise SystemExit(f"{folder} has nothing to keep: no configuration came to its end")
    versions, text, steps = (row for row in rows if row["kind"] in ("versions", "text", "steps"))
    kinds = "losses", "held out", "curve", "ranks", "failed", "left out"
    kept = {kind: [_cells(row) for row in rows if row["kind"] == kind] for kind in kinds}
    machine = f"{versions['card']}, CUDA {versions.get('CUDA')}, torch {versions['torch']}, Triton {versions['Triton']}"
    called, notes = re.sub(r" --out \S+", "", versions["command"]), {n: way.note for n, way in WAYS.items() if way.note}
    save(
        "at_size.json", commit=commit_of(versions["sources"]), machine=machine, command=called,
        text=_cells(text), steps=_cells(steps), notes=notes, **kept,
    )  # fmt: skip
    print(table(rows))


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float(f"{v:.6g}") if isinstance(v, float) else v for key, v in row.items() if key != "kind"}


if __name__ == "__main__":
    main()
