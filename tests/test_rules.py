"""Rules by layer: what they match, the plans that they make, and what is no rule."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gradwire as gw
from gradwire.communicators import Communicator
from gradwire.controllers.recompress import Defaults, recompress
from gradwire.frontends.options.choices import Choices, StepChoices
from gradwire.frontends.options.given_rules import Planner, rules_of
from gradwire.frontends.options.parameters import slots_of
from gradwire.frontends.summary import table
from gradwire.notation import way_of
from gradwire.plans import SIZES, Plan, uniform
from gradwire.rules import Rule, joined, matches
from gradwire.runtime.stats import Stats
from gradwire.slots import Slot

RULES = [("*.embedding.*", gw.Quantized(8)), ("*.norm.*", gw.FP32()), ("*", gw.PowerSGD(1 / 6, bits=4))]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "linear": nn.Linear(16, 16)}) for _ in range(3)
        )


def plan_of(rules: Any, compressor: Any = None, model: nn.Module | None = None, **options: Any) -> Plan:
    parameters = dict((model or Model()).named_parameters())
    choices = StepChoices.of(compressor, rules=rules, **options)
    choices.check()
    return choices.plan(parameters, lambda: 1)(slots_of(parameters))


def slot(name: str, *shape: int) -> Slot:
    return Slot.of(name, torch.empty(shape))


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.norm.*", ["norm.weight", "a.norm.bias"], ["normal.weight", "a.norms.bias"]),
        ("layers.?.*", ["layers.0.weight"], ["layers.10.weight"]),
        ("*.weight&numel>99", ["big.weight"], ["big.bias", "small.weight"]),
        ("dim<2", ["big.bias", "a.norm.bias"], ["small.weight"]),
        ("dim>1&numel<100", ["small.weight"], ["big.weight", "big.bias"]),
        ("*.norm.* & *.bias", ["a.norm.bias"], ["big.bias"]),
        (" dim < 2 & numel >99 ", ["big.bias"], ["a.norm.bias", "small.weight"]),
    ],
)
def test_patterns_match_names_sizes_and_axes(pattern: str, fits: list[str], others: list[str]):
    shapes = {"big.weight": (10, 10), "small.weight": (3, 3), "big.bias": (100,), "a.norm.bias": (5,)}
    assert all(matches(pattern, slot(name, *shapes.get(name, (4, 4)))) for name in fits)
    assert not any(matches(pattern, slot(name, *shapes.get(name, (4, 4)))) for name in others)


def test_a_rule_that_matches_no_parameter_is_named_once(caplog: pytest.LogCaptureFixture):
    model = Model()
    # frozen, sparse and already matched ones may be meant
    model.layers[0].requires_grad_(False)
    rules = [
        ("*.nrom.*", gw.FP32()),
        ("layers.0.*", gw.FP32()),
        ("*.linear.*", gw.FP16()),
        ("*", gw.TopK(0.1)),
        ("dim>1", gw.FP16()),
    ]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"rules": rules, "transport": gw.Threads.group(1)[0]}
    for elastic in (False, True):
        caplog.clear()
        optimizer = gw.DistributedOptimizer(sgd, model, elastic=elastic, **options)
        assert [record.getMessage() for record in caplog.records] == [
            "the rule '*.nrom.*' matches no parameter that is reduced, such as 'layers.2.linear.bias'"
        ]
        optimizer.handle.detach()
    caplog.clear()
    gw.LocalSteps(sgd, model, inner_steps=3, **options).handle.detach()
    # which leaves alone what is frozen at first
    gw.attach(model, rules=rules)
    named = [record.getMessage().split()[2] for record in caplog.records]
    assert named == ["'*.nrom.*'", "'*.nrom.*'", "'layers.0.*'"]


def test_each_parameter_goes_by_the_first_rule_that_it_matches_and_no_group_has_two():
    plan = plan_of(RULES)
    plan.check(slots_of(dict(Model().named_parameters())))
    for group in plan.groups:
        for name in group.slots:
            assert group.rule == next(pattern for pattern, _ in RULES if matches(pattern, slot(name, 4)))
    assert {group.rule: group.compressor for group in plan.groups} == dict(RULES)
    assert len(plan.groups) == len(RULES)


def test_vectors_of_a_rule_travel_dense_and_apart_from_other_rules():
    plan = plan_of([("*.norm.*", gw.FP32()), ("*", gw.TopK(0.1))])
    dense = [group for group in plan.groups if group.compressor == gw.FP32()]
    assert {group.rule for group in dense} == {"*.norm.*", "*"}
    assert all("norm" in name for group in dense if group.rule == "*.norm.*" for name in group.slots)


def test_one_rule_for_all_is_the_plan_without_rules():
    slots = slots_of(dict(Model().named_parameters()))
    plan = plan_of([("*", "topk:0.1+residual:0.9")])
    assert plan == Plan(tuple(
        gw.Group(g.slots, g.compressor, g.memory, g.communicator, "*")
        for g in uniform(slots, gw.TopK(0.1), gw.Residual(0.9)).groups
    ))  # fmt: skip


def test_what_no_rule_matches_goes_by_the_compressor():
    plan = plan_of(RULES[1:2], gw.TopK(0.1), memory=gw.Residual(0.5))
    rest = [group for group in plan.groups if group.rule == "*" and group.compressor == gw.TopK(0.1)]
    assert {name for group in rest for name in group.slots} >= {"embedding.weight", "layers.0.linear.weight"}
    assert all(group.memory == gw.Residual(0.5) for group in rest)


@pytest.mark.parametrize(("ranks", "communicator"), [(2, gw.AllGather()), (64, gw.ScatterReduce())])
def test_where_a_rule_names_only_a_memory_the_communicator_suits_the_ranks(ranks: int, communicator: Communicator):
    slots = [slot("weight", 64, 64)]
    for given, rest in (([("*", "quantized:8+residual")], None), ([], way_of(gw.Quantized(8), gw.Residual(), None))):
        (group,) = Planner(None, None, SIZES["cpu"], lambda: ranks).by_rules(rules_of(given, rest), slots).groups
        assert (group.memory, group.communicator) == (gw.Residual(), communicator)


def test_groups_of_several_plans_are_sent_when_they_are_complete_in_each_plans_order():
    slots = [Slot.of(name, torch.empty(1)) for name in "abcdef"]
    group = gw.Group((), gw.FP32(), gw.NoMemory(), gw.AllReduce())
    plans = [["f"], ["b", "e", "d"], ["ac"]]
    made = [Plan(tuple(replace(group, slots=tuple(names)) for names in plan)) for plan in plans]
    assert ["".join(group.slots) for group in joined(made, slots).groups] == ["b", "ac", "e", "d", "f"]


def test_groups_are_cut_within_each_rule():
    plan = plan_of(RULES, groups=gw.groups.of(megabytes=0))
    assert len([group for group in plan.groups if group.rule == "*.norm.*"]) == 6
    assert all(len(group.slots) == 1 for group in plan.groups if group.compressor != gw.FP32())


def test_listed_groups_are_cut_within_each_rule():
    names = list(dict(Model().named_parameters()))
    pairs = [("*.linear.*", gw.TopK(0.1)), ("*", gw.FP32())]
    matrices = [f"layers.{number}.linear.weight" for number in range(3)]
    others = [name for name in names if name not in matrices and "linear" not in name]
    plan = plan_of(pairs, groups=gw.groups.listed([[*matrices[:2], "embedding.weight"], [matrices[2], *others[1:]]]))
    assert {frozenset(group.slots) for group in plan.groups if "linear.bias" not in str(group.slots)} == {
        frozenset(part) for part in (matrices[:2], matrices[2:], others[:1], others[1:])
    }
    with pytest.raises(ValueError, match=re.escape("the groups lack 'layers.2.linear.weight'; list every")):
        plan_of(pairs, groups=gw.groups.listed([matrices[:2], others]))


def test_partial_sparsification_passes_rules_without_a_ratio_over():
    rules = [("*.norm.*", gw.FP32()), ("embedding.*", gw.Quantized(8)), ("*", gw.TopK(0.01))]
    plan = plan_of(rules, groups=gw.groups.partial(threshold=256))
    assert {name for group in plan.groups if group.compressor == gw.FP32() for name in group.slots} >= {
        "layers.0.linear.weight", "layers.0.norm.weight",
    }  # fmt: skip
    assert any(group.compressor == gw.Quantized(8) for group in plan.groups)
    with pytest.raises(ValueError, match="FP32 has no ratio, so no budget"):
        plan_of(rules[:1], gw.Quantized(8), groups=gw.groups.partial())


def test_a_plan_keeps_its_rules_in_a_file_and_under_controllers():
    plan = plan_of(RULES)
    assert Plan.from_json(plan.to_json()) == plan
    other = recompress(plan, lambda group, name: gw.FP16(), Defaults())
    assert [group.rule for group in other.groups] == [group.rule for group in plan.groups]
    with pytest.raises(ValueError, match="no plan that"):
        Plan.from_json(plan.to_json().replace('"*.norm.*"', "3"))


def test_the_summary_has_a_column_of_rules_where_there_are_any():
    numel = {name: p.numel() for name, p in Model().named_parameters()}
    stats = Stats(0, 0, 0, 0, 0, 0, 0)
    lines = table(plan_of(RULES), numel, stats).splitlines()
    assert lines[0].split()[-1] == "rule"
    assert all(any(line.endswith(f"  {pattern}") for line in lines) for pattern, _ in RULES)
    assert "rule" not in table(uniform(slots_of(dict(Model().named_parameters())), gw.FP16()), numel, stats)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"rules": RULES[:2]}, "no rule matches parameter 'layers.2.linear.bias'; end the rules with one for '*'"),
        ({"rules": [("*", "tpok:0.1")]}, "there is no compressor 'tpok': did you mean topk"),
        ({"rules": [("*", "topk:0.1@4")]}, "and 'topk:0.1@4' more"),
        ({"rules": [("*", "topk:0.1+gravac")]}, "and 'topk:0.1+gravac' more"),
        ({"rules": [("*", gw.TopK)]}, "is no rule"),
        ({"rules": ["*=fp32"]}, "is no rule"),
        ({"rules": {"*": gw.FP32()}}, "is no list"),
        ({"rules": [("*", gw.FP32()), ("*", gw.FP16())]}, "two rules are for '*'"),
        ({"rules": [("*", gw.FP32())], "compressor": gw.FP16()}, "two rules are for '*'"),
        ({"rules": [("numel<=3", gw.FP32())]}, "'numel<=3' cannot be read"),
        ({"rules": [("", gw.FP32())]}, "is no rule"),
        ({"rules": [("*", [gw.FP32(), 3])]}, "has 3 in place of a compressor"),
        ({"rules": [("*", gw.FP32())], "memory": gw.Residual()}, "need a compressor; or add rule"),
        ({"rules": [("*", gw.FP32())], "candidates": [gw.FP16()]}, "each has candidates of its own"),
        ({"rules": [("*", gw.FP32())], "fidelity": 0.1}, "fidelity bounds what the automatic plan may lose"),
        ({"rules": [("*", "auto")], "controller": gw.GraVAC()}, "GraVAC needs a compressor to start from"),
        ({"rules": [("*", "auto")], "elastic": True}, "elastic=True cannot find a plan"),
        ({"rules": [("*", gw.FP32())], "compressor": gw.NATIVE}, "pass it alone"),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments: dict, why: str):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        gw.attach(Model(), **arguments)
    assert "\n" not in str(error.value)


def test_local_steps_have_no_automatic_plan():
    with pytest.raises(ValueError, match=re.escape("no automatic plan here; name one compressor for '*'")):
        Choices.of(None, rules=[("*", [gw.FP16(), gw.TopK(0.1)])]).check()


def test_a_pattern_is_said_with_its_ways():
    assert str(Rule("*", (gw.FP16(), gw.BF16()))) == "'*': FP16() or BF16()"
    assert str(Rule("dim<2")) == "'dim<2': auto"
