"""What is asked of Gradwire, a page each, answered from benchmarks/results/."""

from collections import defaultdict
from math import isfinite
from statistics import median
from typing import Any

from page import Page, Shown, middle, span
from provenance import load
from training import NEAR, time_to

WAYS = {
    "ddp": "DDP", "fp16 hook": "torch fp16", "torch PowerSGD r4": "torch PowerSGD", "gw fp16": "FP16",
    "gw qsgd": "QSGD", "gw efsign": "EFSignSGD", "gw topk 1%": "TopK 1 %", "gw powersgd r4": "PowerSGD r4",
    "gw acpsgd r4": "ACPSGD r4",
}  # fmt: skip
LINKS = {"loopback": "loopback", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
STEPS = ("steps_loopback", "steps_100mbit_dense", "steps_100mbit", "steps_1gbit", "steps_4ranks")


def steps() -> Page:
    cells: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for name in STEPS for row in load(name)["rows"]):
        for way in WAYS.keys() & row["ms"]:
            times = row["ms"][way]["median"] / row["ms"]["nocomm"]["median"]
            cells[row["link"], row["ranks"]][way].append(times)
    rows = [
        [called, *(span(ways[way]) if way in ways else "" for ways in cells.values())] for way, called in WAYS.items()
    ]
    columns = ["", *(f"{LINKS[link]}, {ranks} ranks" for link, ranks in cells)]
    slow, fast = cells["100mbit", 2], cells["1gbit", 2]
    verdict = (
        f"Over 100 Mbit/s a step takes {span(slow['ddp'], '.0f')} times what it takes without communication under DDP, "
        f"{span(slow['gw acpsgd r4'])} with ACPSGD; over 1 Gbit/s {span(fast['ddp'])} and {span(fast['gw acpsgd r4'])}."
    )
    note = "Least and most over VGG-16, an LSTM, a GPT and ResNet-18 of 11 to 25 MB, times no communication."
    return Page("steps", "How long is a step?", verdict, [Shown(STEPS, columns, rows, note)])


def core() -> Page:
    columns = {
        "before_after_small": "2,000 small parameters, loopback", "before_after": "VGG-16, 1 Gbit/s",
        "before_after_vgg16": "the same, later code", "before_after_lstm": "LSTM, 1 Gbit/s",
        "before_after_gpt": "GPT, 1 Gbit/s", "before_after_100mbit": "VGG-16, 100 Mbit/s",
    }  # fmt: skip
    found = {name: {row["configuration"]: row for row in load(name)["rows"]} for name in columns}

    def cell(name: str, configuration: str) -> str:
        row = found[name].get(configuration)
        return f"{row['before']['ms']:.0f} → {row['now']['ms']:.0f}, {row['ratio']:.2f}" if row else ""

    def of(*configurations: str) -> str:
        rows = [row for own in found.values() for row in own.values()]
        return span((row["ratio"] for row in rows if row["configuration"] in configurations), ".2f")

    verdict = (
        f"Steps with TopK, QSGD and EFSignSGD take {of('topk', 'qsgd', 'efsignsgd')} of before, with low rank "
        f"{of('powersgd', 'acpsgd')}; no communication {of('nocomm')}."
    )
    note = "ms, and the ratio; 2 ranks, commit 2967820 before. Few repeats, noisy machines."
    ways = dict.fromkeys(way for own in found.values() for way in own)
    rows = [[way, *(cell(name, way) for name in columns)] for way in ways]
    shown = Shown(tuple(columns), ["", *columns.values()], rows, note)
    return Page("core", "Is the new core faster than the old?", verdict, [shown])


def auto() -> Page:
    cells = defaultdict(list)
    for row in load("auto_finals")["rows"]:
        ms = row["finals"]["ms"]
        best = min(each for name, each in ms.items() if name != "auto")
        cells[row["link"], row["ranks"]].append((ms["auto"] / best, ms["auto"] / ms[row["dense"]]))
    rows = [
        [LINKS[link], str(ranks), str(len(pairs)), *(span(each, ".2f") for each in zip(*pairs, strict=True))]
        for (link, ranks), pairs in cells.items()
    ]
    found = [best for pairs in cells.values() for best, _ in pairs]
    near = sum(best <= 1.03 for best in found)
    verdict = f"In {near} of {len(found)} cells it is at most 3 % slower than the best fixed plan."
    columns = ["link", "ranks", "models", "times the best fixed", "times the best dense"]
    shown = Shown(["auto_finals"], columns, rows, "fp32, bf16, 8 bits; layer by layer, 25 MB, one group; in turns.")
    return Page("auto", "Does `gw.attach(ddp)` find the fastest plan?", verdict, [shown])


def slower_links() -> Page:
    names = {"link_drop": "Auto", "link_drop_10gbit": "Auto", "link_drop_gravac": "GraVAC"}
    rows, waits, ends = [], [], []
    for name, controller in names.items():
        found = load(name)
        at, seconds = found["at"], found["seconds"]
        new = next(step for step, said in found["decisions"] if step > at and not said.startswith("steps take"))
        waits.append(new - at)
        parts = seconds[at - 50 : at], seconds[at:new], seconds[-100:]
        ms = [1e3 * median(part) for part in parts]
        ends.append(ms[-1] / ms[0])
        rows.append([controller, found["before"], found["after"], *(f"{each:.0f}" for each in ms), str(new - at)])
    verdict = f"Within {span(waits, 'd')} steps; from then on steps take {span(ends, '.2f')} of before."
    columns = ["controller", "from", "to", "ms before", "ms until the new plan", "ms at the end", "steps until then"]
    return Page("slower_links", "Does it notice a link that slows down?", verdict, [Shown(list(names), columns, rows)])


def training() -> Page:
    runs = load("training")["runs"]
    dense = {run["seed"]: run for run in runs if run["name"].startswith("dense")}
    rows, sooner = [], {}
    for name in dict.fromkeys(run["name"] for run in runs if not run["name"].startswith("dense")):
        mine = [run for run in runs if run["name"] == name]
        equal = [run for run in mine if run["steps"] == dense[run["seed"]]["steps"]]
        sooner[name] = [
            time_to(each, goal := NEAR * each["loss"]) / min(time_to(run, goal) for run in mine if run["seed"] == seed)
            for seed, each in dense.items()
        ]
        worse = span((100 * (run["loss"] / dense[run["seed"]]["loss"] - 1) for run in equal), "+.1f")
        rows.append([name, f"{worse} %", f"{span(sooner[name])}x"])
    best = max(sooner, key=lambda name: median(sooner[name]))
    verdict = f"{span(sooner[best])} times sooner with {best}, in more but shorter steps."
    columns = ["compressor", "loss after equal steps, against dense", "sooner at dense's loss + 2 %"]
    shown = Shown(["training"], columns, rows, "LSTM of 1.8 M parameters, 2 hosts, 100 Mbit/s, three seeds.")
    return Page("training", "How much sooner is dense training's loss reached?", verdict, [shown])


def losses() -> Page:
    worse: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    runs = load("convergence")["runs"]
    dense = {(run["task"], run["seed"]): run for run in runs if run["name"] == "dense"}
    sent = {}
    for run in runs:
        reference = dense[run["task"], run["seed"]]
        worse[run["name"]][run["task"]].append(100 * (run["loss"] / reference["loss"] - 1))
        sent[run["name"], run["task"]] = f"{reference['sent'] / run['sent']:.0f}x"
    left = ("dense", "lowest", "quarter")
    kept = {name: tasks for name, tasks in worse.items() if not any(part in name for part in left)}
    middles = {name: {task: median(each) for task, each in tasks.items()} for name, tasks in kept.items()}

    def cell(name: str, task: str) -> str:
        return f"{middles[name][task]:+.1f} %" if isfinite(middles[name][task]) else "diverged"

    rows = [[name, sent[name, "text"], cell(name, "text"), cell(name, "images")] for name in kept]
    near = [sum(each[task] <= 2 for each in middles.values()) for task in ("text", "images")]
    verdict = f"Of {len(kept)} compressors {near[0]} end within 2 % of dense's loss on text, {near[1]} on images."
    note = "Held-out loss after equal steps, median of three seeds; an LSTM, and a perceptron on Fashion-MNIST."
    shown = Shown(["convergence"], ["compressor", "fewer bytes (text)", "text", "images"], rows, note)
    more = "Codes and low rank at equal bytes: [Loss against bytes](../fidelity.md)."
    return Page("losses", "What does each compressor cost in loss?", verdict, [shown], more)


def wire() -> Page:
    found = [(row["measured"] / row["declared"] - 1, row) for row in load("wire")["rows"]]
    rows = [
        [row["compressor"].split("(")[0], row["communicator"], str(row["ranks"]), f"{row['elements'] / 1e6:.0f} M",
         f"{row['declared'] / 1e6:.2f}", f"{row['measured'] / 1e6:.2f}", f"{more:+.1%}"]
        for more, row in found if more > 0.06
    ]  # fmt: skip
    verdict = (
        f"Within 6 % in {len(found) - len(rows)} of {len(found)} pairings, {median(more for more, _ in found):.1%} "
        "in the median."
    )
    columns = ["compressor", "collective", "ranks", "elements", "declared MB", "at the interface MB", "difference"]
    return Page("wire", "Is as much sent as is declared?", verdict, [Shown(["wire"], columns, rows)])


def collectives() -> Page:
    found = load("collectives")["choices"]
    by = {(row["ranks"], row["density"]): row for row in found}
    ranks, densities = (list(dict.fromkeys(row[key] for row in found)) for key in ("ranks", "density"))

    def cell(row: dict[str, Any]) -> str:
        return row["choice"] + (f" ({row['fastest']}: {row['slower_by']:.0%} less)" if row["slower_by"] else "")

    rows = [[str(each), *(cell(by[each, density]) for density in densities)] for each in ranks]
    near = sum(row["slower_by"] <= 0.05 for row in found)
    verdict = f"In {near} of {len(found)} cells the formulas name the fastest of seven."
    columns = ["ranks", *(f"{density:.1%}" for density in densities)]
    shown = Shown(["collectives"], columns, rows, "4 M elements, 100 Mbit/s; what the formulas choose by density.")
    return Page("collectives", "Which collective for sparse gradients?", verdict, [shown])


def codecs() -> Page:
    found = {row["name"]: row for row in load("kernels")["rows"] if row["n"] == 25_000_000}

    def cells(row: dict[str, Any] | None) -> list[str]:
        return [f"{row['native_ms']:.0f}", f"{row['reference_ms'] / row['native_ms']:.1f}x"] if row else ["", ""]

    rows = [
        [name, *cells(row), *cells(found.get(f"decode 8, {name}"))]
        for name, row in found.items()
        if not name.startswith("decode")
    ]
    exact = [row["torch_ms"] / row["ours_ms"] for row in load("selection")["selection"]]
    times = [row["reference_ms"] / row["native_ms"] for row in found.values()]
    verdict = (
        f"Exact top-k is {span(exact, '.0f')} times as fast as `torch.topk`; all kernels {span(times)} times as fast "
        "as the same in torch."
    )
    columns = ["pass", "encode ms", "", "decode 8 payloads ms", ""]
    shown = Shown(["kernels", "selection"], columns, rows, "25 M elements, one thread, CPU time, both cores busy.")
    return Page("codecs", "What does encoding cost?", verdict, [shown])


def search() -> Page:
    found = load("search")
    same, problems = (sum(row[key] for row in found["equal"]) for key in ("equal", "problems"))
    cells = defaultdict(list)
    for row in found["seconds"]:
        cells[row["slots"]].append(row)
    rows = [
        [str(slots), middle((row["seconds"] for row in own), ".1f"), middle(100 * (row["bound"] - 1) for row in own)]
        for slots, own in cells.items()
    ]
    verdict = f"It equals brute force in {same} of {problems} problems; 400 slots take {rows[0][1]} s."
    columns = ["slots", "CPU seconds", "proven within %"]
    return Page("search", "Is the search exact, and quick?", verdict, [Shown(["search"], columns, rows)])


def replicas() -> Page:
    found = load("replicas")
    same = sum(row["same"] for row in found["rows"])
    verdict = f"In {same} of {len(found['rows'])} trainings of {found['steps']} steps all ranks end with one hash."
    note = "Each compressor, each sparse collective; 2, 3 and 4 ranks."
    return Page("replicas", "Do replicas stay equal?", verdict, [Shown(["replicas"], [], [], note)])


def local_steps() -> Page:
    found = {row["name"]: row for row in load("local_steps")["rows"]}
    dense = found["dense"]
    rows = [[name, f"{row['loss']:.3f}", f"{dense['bytes'] / row['bytes']:.0f}x"] for name, row in found.items()]
    better = [name for name, row in found.items() if row["loss"] < dense["loss"] and row["bytes"] < dense["bytes"]]
    least = min(found.values(), key=lambda row: row["bytes"])
    verdict = (
        f"{' and '.join(better)} end below dense's loss with fewer bytes; {least['name']} sends least and ends "
        f"{least['loss'] / dense['loss'] - 1:.0%} above it."
    )
    note = "GPT of 137 k parameters, 4 ranks, 2,250 steps, one seed, nothing tuned; the number is steps per round."
    shown = Shown(["local_steps"], ["configuration", "held-out loss", "fewer bytes"], rows, note)
    return Page("local_steps", "What do local steps save?", verdict, [shown])


def lgreco() -> Page:
    cells = defaultdict(list)
    for row in load("lgreco")["rows"]:
        cells[row["task"], row["compressor"]].append(row)
    rows, force = [], []
    for (task, compressor), own in cells.items():
        would = [each for row in own for each in row["uniform"]["saved"]]
        saved = [row["uniform"]["bytes"] / row["adapted"]["bytes"] for row in own]
        loss = [100 * (row["adapted"]["loss"] / row["uniform"]["loss"] - 1) for row in own]
        force += [median(saved)]
        rows.append([task, compressor, f"{median(would):.2f}x", f"{median(saved):.2f}x", f"{median(loss):+.0f} %"])
    verdict = (
        f"{span(force, '.2f')} times fewer bytes in force than uniform compression; equal error is not equal loss."
    )
    columns = ["task", "compressor", "would save", "saves in force", "loss"]
    shown = Shown(["lgreco"], columns, rows, "300 steps, 2 ranks, three seeds, medians.")
    return Page("lgreco", "What does L-GreCo save?", verdict, [shown])


def delays() -> Page:
    found = load("delays")["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in found))
    by = {(row["factor"], row["task"]): row for row in found}
    rows = [
        [f"{factor:.0f}x", *(f"{by[factor, task]['magnitude']:.0f}" for task in tasks)]
        for factor in dict.fromkeys(row["factor"] for row in found)
    ]
    per = span((row["per_factor"] for row in found if row["factor"] >= 40), ".2f")
    verdict = f"From 40x on an element waits {per} steps per factor."
    shown = Shown(["delays"], ["factor", *tasks], rows, "Steps that magnitude waits under top-k; one seed.")
    return Page("delays", "How long do gradients wait?", verdict, [shown])


QUESTIONS = (
    steps, core, auto, slower_links, training, losses, local_steps, lgreco, delays, wire, collectives, codecs, search,
    replicas,
)  # fmt: skip
