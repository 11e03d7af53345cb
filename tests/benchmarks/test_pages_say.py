"""Sentences of the benchmarks' pages follow the results, also where those say something else than today's."""

from math import inf
from types import ModuleType
from typing import Any

import pytest

from benchmarks.faults import fault_table
from benchmarks.losses.gravac import FACTORS, RIVALS, over_best
from benchmarks.pages import far, fault_questions, questions, systems, updates_question
from benchmarks.steps import optimizers


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By name what pages load instead of the results that are kept."""
    found: dict[str, Any] = {}
    modules: tuple[ModuleType, ...] = (far, fault_questions, questions, systems, updates_question)
    for module in modules:
        monkeypatch.setattr(module, "load", found.__getitem__)
    return found


def test_bytes_that_are_missing_are_not_within_6_percent(results: dict[str, Any]):
    row = {"compressor": "TopK(ratio=0.01)", "communicator": "AllGather", "ranks": 2, "elements": 5e6}
    results["wire"] = {"rows": [row | {"declared": 100, "measured": measured} for measured in (80, 99)]}
    page = questions.wire()
    assert page.verdict.startswith("Within 6% in 1 of 2 pairings")
    assert [cells[-1] for cells in page.tables[0].rows] == ["-20.0%"]


def test_local_steps_are_means_over_seeds_of_the_longest_trainings_and_may_end_above_dense(results: dict[str, Any]):
    losses = {"dense": (1.0, 2.0), "diloco-15": (1.5, 1.7), "sparseloco-15": (1.7, 1.9)}
    facts = {"bytes": 100, "parameters": 2000, "ranks": 3, "steps": 60}
    rows = [
        facts | {"name": name, "seed": seed, "loss": loss}
        for name, own in losses.items()
        for seed, loss in enumerate(own)
    ]
    # a shorter training is another question
    results["local_steps"] = {"rows": [rows[0] | {"steps": 6, "loss": 9.0}, *rows]}
    page = far.local_steps()
    assert page.verdict.startswith("DiLoCo ends above dense's loss")
    assert page.tables[0].note.startswith("GPT of 2k, 3 ranks, 60 steps, means of 2 seeds;")
    assert {cells[0]: cells[1] for cells in page.tables[0].rows}["diloco-15"] == "1.600"


def test_each_optimizer_is_shown_at_its_best_rate_of_the_longest_trainings(results: dict[str, Any]):
    def row(name: str, rate: float, seed: int, held_out: float, steps: int = 60) -> dict[str, Any]:
        facts = {"name": name, "rate": rate, "seed": seed, "steps": steps, "held_out": held_out}
        return facts | {"bytes": 6.0, "parameters": 740_000}

    rows = [row("adamw", 1, 0, 4.1), row("adamw", 2, 0, 3.9), row("adamw", 2, 1, 4.1), row("adamw", 1, 0, 3.0, steps=9)]
    results["updates"] = {"rows": rows + [row(name, 1, 0, 5.0) for name in ("muon", "demo", "dion-4", "dion-16")]}
    ways = {name: {"ms": [[4.0, 8.0, 6.0], [5.0]], "bytes": [2e6, 2e6]} for name in optimizers.SHOWN}
    ways["demo"] = {"ms": [[3.0], [1.0]], "bytes": [1e5, 1e5]}
    results["optimizers"] = {"rows": [{"link": "1gbit", "ranks": 2, "parameters": 3_400_000, "ways": ways}]}
    page = updates_question.updates()
    assert page.tables[0].rows[0] == ["AdamW", "2, none higher tried", "4.000 (3.900–4.100)", "", "6.000"]
    assert page.verdict.startswith("Beside AdamW, loss: Muon +25.0%, DeMo +25.0%")
    # turn by turn 6 over 3 ms and 5 over 1
    assert page.verdict.endswith("speed over 1 Gbit/s: DeMo 3.5x, Dion 1/4 1.0x, Dion 1/16 1.0x.")
    assert page.tables[1].rows[2] == ["DeMo", "2", "0.10"]


def test_a_collective_within_5_percent_is_not_called_the_fastest(results: dict[str, Any]):
    choice = {"ranks": 2, "density": 0.01, "choice": "AllGather", "fastest": "OkTopk", "slower_by": 0.04}
    rows = [{"communicator": name, "elements": 2e6} for name in ("AllGather", "OkTopk", "AllReduce")]
    results["collectives"] = {"link": "1gbit", "rows": rows, "choices": [choice]}
    page = questions.collectives()
    assert page.verdict == "Of 3 the formulas name the fastest, within 5%, in 1 of 1 cells."
    assert page.tables[0].rows == [["2", "AllGather (+4% over OkTopk)"]]
    assert page.tables[0].note == "2M elements, 1 Gbit/s; by density."


def test_a_task_that_was_measured_over_some_links_leaves_the_others_empty(results: dict[str, Any]):
    cells = [("a", 2, "1gbit"), ("a", 2, "100mbit"), ("a", 4, "100mbit")]
    found = {"sent": "bf16", "s": {"ddp": 2.0, "bf16": 1.0, "auto": 1.0}}
    results["choices"] = {"rows": [{"task": t, "ranks": n, "link": link, "found": found} for t, n, link in cells]}
    curves = {"ddp": [(10, 1.0)], "bf16": [(10, 1.0)]}
    results["choices_curves"] = {"rows": [{"task": "a", "ranks": n, "found": curves} for n in (2, 4)]}
    rows = {row[0]: row[1:] for row in questions.candidates().tables[0].rows}
    assert [bool(cell) for cell in rows["a"]] == [True, True]
    assert [bool(cell) for cell in rows["a, 4 ranks"]] == [False, True]


@pytest.mark.parametrize("early", [True, False])
def test_more_steps_are_spoken_of_only_where_they_are_taken(early: bool, results: dict[str, Any]):
    dense = {"name": "dense", "seed": 0, "steps": 10, "loss": 1.0, "curve": [(10, 8.0, 1.0)]}
    equal = dense | {"name": "QSGD", "loss": 1.0 if early else 2.0, "curve": [(10, 4.0, 1.0 if early else 2.0)]}
    longer = equal | {"steps": 15, "loss": 1.0, "curve": [(15, 6.0, 1.0)]}
    results["training"] = {"link": "1gbit", "runs": [dense, equal, *([] if early else [longer])]}
    page = questions.training()
    assert ("in more but shorter steps" in page.verdict) != early
    assert "1 Gbit/s, 1 seeds" in page.tables[0].note


def test_a_fault_that_only_a_later_run_had_is_counted(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    run = {"place": "2 ranks", "seconds": 60.0, "broken": [], "front_ends": {"DDP": 1}, "kinds": {"kill": [1.0]}}
    later = run | {"front_ends": {"FSDP2": 3}, "kinds": {"kill": [2.0], "stop": [None, None]}}
    results |= {"soak_0": run, "soak_1": later}
    monkeypatch.setattr(fault_questions, "SOAKS", ["soak_0", "soak_1"])
    page = fault_questions.soak()
    assert page.verdict.startswith("4 random faults in 2 minutes")
    assert page.tables[0].rows == [["kill", "2", "1.50 (1.00–2.00)", "0"], ["stop", "2", "", "2"]]
    assert page.tables[0].note == "2 ranks; DDP 1, FSDP2 3."


def test_of_systems_that_do_not_go_on_some_end_and_some_hang():
    row = {"system": "plain DDP", "fault": "kill", "went_on": False, "seconds": 2.0}
    ways = {(True, True): "ended after 2.00 (2.00) s", (False,): "hung"}
    ways[True, False] = "ended after 2.00 (2.00) s, 1 of 2 hung"
    for ended, words in ways.items():
        assert fault_table.lines_of([row | {"ended": each} for each in ended])[0][1] == words


def test_a_verdict_has_what_speaks_against_gradwire(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """That it goes on later than others, and that simulated steps without compression are further off than others."""
    took = {("torchft", "kill"): 2.0, ("Gradwire", "kill"): 4.0, ("torchft", "stop"): 3.0, ("Gradwire", "stop"): 20.0}
    row = {"ended": False, "back": None, "equal": True, "finite": True, "went_on": True}
    faults = [row | {"system": name, "fault": fault, "seconds": own} for (name, fault), own in took.items()]
    faults.append(row | {"system": "plain DDP", "fault": "kill", "seconds": 0.0, "ended": True, "went_on": False})
    results["faults_beside"] = {"ranks": 3, "timeout_s": 15.0, "stop_s": 18.0, "rows": faults}
    verdict = fault_questions.faults_beside().verdict
    assert "ends plain DDP; torchft and Gradwire go on after 2.0 and 4.0 s (a stop: 3.0 and 20.0)" in verdict
    figures = {"published": {"FP32": 50, "Cupcake": 80}, "simulated": {"FP32": 70, "Cupcake": 85, "HiPress": 60}}
    results["published"] = {"rows": [figures | {"cluster": "c", "model": "m", "compressor": "DGC"}]}
    monkeypatch.setattr(systems, "_cupcake_gains", list)
    monkeypatch.setattr(systems, "_over", lambda *_: "1x")
    assert "(at most 20)" in systems.cupcake().verdict


def test_gravac_is_never_better_than_what_never_arrives():
    nobody: dict[str, Any] = {"took": dict.fromkeys([*RIVALS, "GraVAC"])}
    assert over_best(nobody) == inf
    assert over_best({"took": nobody["took"] | {"GraVAC": 5.0}}) == 0.0
    assert over_best({"took": nobody["took"] | {"GraVAC": 6.0, f"{FACTORS[0]}x": 3.0}}) == 2.0
    assert systems._sooner([nobody["took"]], "dense") == 0.0
