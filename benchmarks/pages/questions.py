"""Pages that each answer one question about Gradwire from benchmarks/results/."""

from collections import defaultdict
from math import inf, isfinite
from statistics import median
from typing import Any

from benchmarks.losses.fidelity import RANKS
from benchmarks.losses.training import NEAR, time_to
from benchmarks.pages.far import FAR
from benchmarks.pages.gpu_question import gpu
from benchmarks.pages.page import Page, Shown
from benchmarks.pages.played_question import played
from benchmarks.pages.updates_question import updates
from benchmarks.scheduler.chosen import DENSE, autos_seconds_to, seconds_to
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import LINKS, middle, span

WAYS = {
    "ddp": "DDP", "torch fp16": "torch fp16", "torch powersgd:4": "torch PowerSGD r4", "fp32": "FP32", "fp16": "FP16",
    "qsgd": "QSGD",
    "quantized:4": "4 bits", "efsignsgd": "EFSignSGD", "topk:0.01": "TopK 1%",
    "topk:0.0625,value_bits=4": "TopK 1/16 in 10 bits", "powersgd:4": "PowerSGD r4",
    "powersgd:0.16667,bits=4": "PowerSGD 1/6 in 4 bits", "acpsgd:4": "ACPSGD r4",
}  # fmt: skip
STEPS = ("steps_100mbit", "steps_1gbit", "steps_4ranks", "steps_loopback")


def steps() -> Page:
    cells: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for name in STEPS for row in load(name)["rows"]):
        for way in WAYS.keys() & row["ms"]:
            times = row["ms"][way]["median"] / row["ms"]["nocomm"]["median"]
            cells[row["link"], row["ranks"]][way].append(times)
    rows = [
        [called, *(span(ways[way]) if way in ways else "" for ways in cells.values())]
        for way, called in WAYS.items()
        if any(way in ways for ways in cells.values())
    ]
    columns = ["", *(f"{LINKS[link]}, {ranks} ranks" for link, ranks in cells)]
    slow, fast = cells["100mbit", 2], cells["1gbit", 2]
    verdict = (
        f"Over 100 Mbit/s DDP takes {span(slow['ddp'], '.0f')} times no communication, ACPSGD "
        f"{span(slow['acpsgd:4'])}; over 1 Gbit/s {span(fast['ddp'])} and {span(fast['acpsgd:4'])}."
    )
    note = "Times no communication, least and most of VGG-16, LSTM, GPT (1 Gbit/s: ResNet-18) of 11 to 25 MB."
    return Page("steps", "How long is a step?", verdict, [Shown(STEPS, columns, rows, note)])


def auto() -> Page:
    cells = defaultdict(list)
    for row in load("auto")["rows"]:
        ms = row["finals"]["ms"]
        best = min(each for name, each in ms.items() if name != "auto")
        cells[row["link"], row["ranks"]].append((ms["auto"] / best, ms["auto"] / ms[row["dense"]]))
    rows = [
        [LINKS[link], str(ranks), str(len(pairs)), *(span(each, ".2f") for each in zip(*pairs, strict=True))]
        for (link, ranks), pairs in cells.items()
    ]
    found = [best for pairs in cells.values() for best, _ in pairs]
    near = sum(best <= 1.03 for best in found)
    verdict = f"Within 3% of the best fixed plan in {near} of {len(found)} cells."
    columns = ["link", "ranks", "models", "time over best fixed", "over best dense"]
    shown = Shown(["auto"], columns, rows, "fp32, bf16, 8 bits; layer-wise, 25 MB, one group.")
    return Page("auto", "Does `gw.attach(ddp)` choose well?", verdict, [shown])


def candidates() -> Page:
    curves = {(row["task"], row["ranks"]): row["found"] for row in load("choices_curves")["rows"]}
    found, over = defaultdict(dict), []
    links: dict[str, str] = {}
    for row in load("choices")["rows"]:
        cell = row, curves[row["task"], row["ranks"]]
        taken, auto = seconds_to(*cell), autos_seconds_to(*cell)
        over.append(auto / min(taken.values()))
        links[row["link"]] = LINKS[row["link"]]
        found[row["task"], row["ranks"]][row["link"]] = (
            f"{row['found']['sent']}: {taken[DENSE] / auto:.1f}x ({over[-1]:.2f})"
        )
    near = sum(times <= 1.1 for times in over)
    verdict = f"Within 10% of the best one's time to dense's loss + 1% in {near} of {len(over)} cells."
    columns = ["chosen: sooner than DDP (over best)", *links.values()]
    names = {key: key[0] if key[1] == RANKS else f"{key[0]}, {key[1]} ranks" for key in found}
    rows = [[names[key], *(own.get(link, "") for link in links)] for key, own in found.items()]
    shown = Shown(["choices", "choices_curves"], columns, rows, "One seed; tasks of [fidelity](../fidelity.md).")
    return Page("candidates", "Does it choose well among ten families?", verdict, [shown])


def slower_links() -> Page:
    names = {"link_drop": "Auto", "link_drop_10gbit": "Auto", "link_drop_gravac": "GraVAC"}
    rows, waits, ends = [], [], []
    for name, controller in names.items():
        found = load(name)
        at, seconds = found["at"], found["seconds"]
        planned = [step for step, said in found["decisions"] if step > at and not said.startswith("steps take")]
        waits += [step - at for step in planned[:1]]
        parts = seconds[at - 50 : at], seconds[at : planned[0] if planned else -100], seconds[-100:]
        ms = [1e3 * median(part) for part in parts]
        ends.append(ms[-1] / ms[0])
        wait = str(planned[0] - at) if planned else "none needed"
        rows.append([controller, found["before"], found["after"], *(f"{each:.0f}" for each in ms), wait])
    verdict = f"A new plan within {span(waits, 'd')} steps, where needed; steps end at {span(ends, '.2f')} of before."
    columns = ["controller", "from", "to", "ms before", "between", "at the end", "steps to the plan"]
    return Page("slower_links", "Does it notice slower links?", verdict, [Shown(list(names), columns, rows)])


def training() -> Page:
    found = load("training")
    runs = found["runs"]
    dense = {run["seed"]: run for run in runs if run["name"].startswith("dense")}
    rows, sooner, late = [], {}, {}
    for name in dict.fromkeys(run["name"] for run in runs if not run["name"].startswith("dense")):
        mine = [run for run in runs if run["name"] == name]
        equal = [run for run in mine if run["steps"] == dense[run["seed"]]["steps"]]
        sooner[name] = [
            time_to(each, goal := NEAR * each["loss"]) / min(time_to(run, goal) for run in mine if run["seed"] == seed)
            for seed, each in dense.items()
        ]
        late[name] = all(time_to(run, NEAR * dense[run["seed"]]["loss"]) == inf for run in equal)
        worse = span((100 * (run["loss"] / dense[run["seed"]]["loss"] - 1) for run in equal), "+.1f")
        rows.append([name.replace(" %", "%"), f"{worse}%", f"{span(sooner[name])}x"])
    best = max(sooner, key=lambda name: median(sooner[name]))
    verdict = f"{span(sooner[best])} times with {best}{', in more but shorter steps' if late[best] else ''}."
    columns = ["compressor", "loss, equal steps", "sooner at dense's + 2%"]
    shown = Shown(["training"], columns, rows, f"LSTM of 1.8M, 2 hosts, {LINKS[found['link']]}, {len(dense)} seeds.")
    return Page("training", "How much sooner is dense's loss reached?", verdict, [shown])


def losses() -> Page:
    worse: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    runs = load("convergence")["runs"]
    dense = {(run["task"], run["seed"]): run for run in runs if run["name"] == "dense"}
    sent = {}
    for run in runs:
        reference = dense[run["task"], run["seed"]]
        worse[run["name"]][run["task"]].append(100 * (run["loss"] / reference["loss"] - 1))
        sent[run["name"], run["task"]] = f"{reference['sent'] / run['sent']:.0f}x"
    left = ("dense", "lowest", "quarter", "each")
    kept = {name: tasks for name, tasks in worse.items() if not any(part in name for part in left)}
    middles = {name: {task: median(each) for task, each in tasks.items()} for name, tasks in kept.items()}

    def cell(name: str, task: str) -> str:
        return f"{middles[name][task]:+.1f}%" if isfinite(middles[name][task]) else "diverged"

    rows = [[name.replace(" %", "%"), sent[name, "text"], cell(name, "text"), cell(name, "images")] for name in kept]
    near = [sum(each[task] <= 2 for each in middles.values()) for task in ("text", "images")]
    verdict = f"{near[0]} of {len(kept)} compressors end within 2% of dense on text, {near[1]} on images."
    note = "Held-out loss over dense's, equal steps, median of three seeds; LSTM, perceptron on Fashion-MNIST."
    shown = Shown(["convergence"], ["compressor", "fewer bytes", "text", "images"], rows, note)
    more = "[At equal bytes](../fidelity.md)."
    return Page("losses", "What does compressing cost in loss?", verdict, [shown], more)


def wire() -> Page:
    found = [(row["measured"] / row["declared"] - 1, row) for row in load("wire")["rows"]]
    rows = [
        [row["compressor"].split("(")[0], row["communicator"], str(row["ranks"]), f"{row['elements'] / 1e6:.0f}M",
         f"{row['declared'] / 1e6:.2f}", f"{row['measured'] / 1e6:.2f}", f"{more:+.1%}"]
        for more, row in found if abs(more) > 0.06
    ]  # fmt: skip
    middle = median(more for more, _ in found)
    verdict = f"Within 6% in {len(found) - len(rows)} of {len(found)} pairings; {middle:.1%} in the median."
    columns = ["compressor", "collective", "ranks", "elements", "declared MB", "sent MB", "more"]
    return Page("wire", "Are sent bytes as declared?", verdict, [Shown(["wire"], columns, rows, "Those beyond 6%:")])


def memory() -> Page:
    cells: dict[str, dict[int, float]] = defaultdict(dict)
    for row in load("memory")["rows"]:
        cells[row["way"]][row["ranks"]] = row["bytes"]
    ranks = sorted({count for own in cells.values() for count in own})
    rows = [[way, *(f"{own[count]:.1f}" for count in ranks)] for way, own in cells.items()]
    usual = [cells[way][ranks[0]] for way in ("TopK 1%", "EFSignSGD", "PowerSGD r4", "ACPSGD r4")]
    verdict = (
        f"{span(usual)} bytes a parameter for TopK 1%, signs and low rank of 4, with {ranks[0]} ranks; AdamW takes 8."
    )
    note = "Bytes a parameter of BERT-base that Gradwire holds between steps."
    shown = Shown(["memory"], ["", *(f"{count} ranks" for count in ranks)], rows, note)
    return Page("memory", "How much memory does it take?", verdict, [shown])


def collectives() -> Page:
    result = load("collectives")
    found, kinds = result["choices"], {row["communicator"] for row in result["rows"]}
    by = {(row["ranks"], row["density"]): row for row in found}
    ranks, densities = (list(dict.fromkeys(row[key] for row in found)) for key in ("ranks", "density"))

    def cell(row: dict[str, Any]) -> str:
        return row["choice"] + (f" (+{row['slower_by']:.0%} over {row['fastest']})" if row["slower_by"] else "")

    rows = [[str(each), *(cell(by[each, density]) for density in densities)] for each in ranks]
    near = sum(row["slower_by"] <= 0.05 for row in found)
    verdict = f"Of {len(kinds)} the formulas name the fastest, within 5%, in {near} of {len(found)} cells."
    columns = ["ranks", *(f"{density:.1%}" for density in densities)]
    note = f"{result['rows'][0]['elements'] / 1e6:.0f}M elements, {LINKS[result['link']]}; by density."
    shown = Shown(["collectives"], columns, rows, note)
    return Page("collectives", "Which sparse collective?", verdict, [shown])


def codecs() -> Page:
    found = {row["name"]: row for row in load("kernels")["rows"] if row["n"] == 25_000_000}

    def cells(row: dict[str, Any] | None) -> list[str]:
        return [f"{row['native_ms']:.0f}", f"{row['reference_ms'] / row['native_ms']:.1f}x"] if row else ["", ""]

    rows = [
        [name.replace(" %", "%"), *cells(row), *cells(decode)]
        for name, row in found.items()
        if (decode := found.get(f"decode 8, {name}"))
    ]
    exact = [row["torch_ms"] / row["ours_ms"] for row in load("selection")["selection"]]
    times = [row["reference_ms"] / row["native_ms"] for row in found.values()]
    verdict = (
        f"Exact top-k is {span(exact, '.0f')} times as fast as `torch.topk`, other kernels {span(times)} times as fast "
        "as torch's operators."
    )
    columns = ["pass", "encode ms", "over torch", "decode 8 ms", "over torch"]
    shown = Shown(["kernels", "selection"], columns, rows, "25M elements, one thread, both cores busy.")
    return Page("codecs", "What does encoding cost?", verdict, [shown])


def search() -> Page:
    found = load("search")
    same, problems = (sum(row[key] for row in found["equal"]) for key in ("equal", "problems"))
    cells = defaultdict(list)
    for row in found["seconds"]:
        cells[("random", row["slots"]) if row["job"] == "random" else ("Cupcake's", 0)].append(row)
    rows = [
        [
            job, span((row["slots"] for row in own), ""),
            middle(row["seconds"] for row in own), middle(100 * (row["bound"] - 1) for row in own),
        ]
        for (job, _), own in cells.items()
    ]  # fmt: skip
    verdict = (
        f"It equals brute force in {same} of {problems} small problems; {rows[0][1]} slots: proven within "
        f"{rows[0][3]}% in {rows[0][2]} s."
    )
    columns = ["job", "slots", "CPU seconds", "proven within %"]
    return Page("search", "Is the search exact and quick?", verdict, [Shown(["search"], columns, rows)])


def replicas() -> Page:
    found = load("replicas")
    same = sum(row["same"] for row in found["rows"])
    verdict = f"Bit-equal in {same} of {len(found['rows'])} trainings of {found['steps']} steps."
    ranks = ", ".join(map(str, sorted({row["ranks"] for row in found["rows"]})))
    ways = len({(row["compressor"], row["communicator"]) for row in found["rows"]})
    note = f"{ways} compressors and collectives; {ranks} ranks."
    return Page("replicas", "Do replicas stay equal?", verdict, [Shown(["replicas"], [], [], note)])


def lgreco() -> Page:
    cells, result = defaultdict(list), load("lgreco")["rows"]
    seeds = len({row["seed"] for row in result})
    for row in result:
        cells[row["task"], row["compressor"]].append(row)
    rows, force = [], []
    for (task, compressor), own in cells.items():
        would = [each for row in own for each in row["uniform"]["saved"]]
        saved = [row["uniform"]["bytes"] / row["adapted"]["bytes"] for row in own]
        loss = [100 * (row["adapted"]["loss"] / row["uniform"]["loss"] - 1) for row in own]
        force += [median(saved)]
        rows.append([task, compressor, f"{median(would):.2f}x", f"{median(saved):.2f}x", f"{median(loss):+.0f}%"])
    verdict = f"{span(force, '.2f')} times fewer bytes than uniform compression; equal error is not equal loss."
    columns = ["task", "compressor", "predicted", "saved", "loss over uniform's"]
    shown = Shown(["lgreco"], columns, rows, f"300 steps, 2 ranks, medians of {seeds} seeds.")
    return Page("lgreco", "What does L-GreCo save?", verdict, [shown])


QUESTIONS = (
    steps, gpu, played, auto, candidates, slower_links, training, losses, updates, *FAR, lgreco, wire, memory,
    collectives, codecs, search, replicas,
)  # fmt: skip
