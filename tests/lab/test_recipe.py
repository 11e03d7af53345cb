"""Recipes: rates over time, when to record, evaluate and keep, and what cannot be."""

from itertools import pairwise

import pytest
import torch

from gradwire.lab.experiments.recipe import Course, Recipe
from gradwire.lab.workloads import Digits, LanguageModel


def course(steps: int, epoch_steps: int | None = None, **recipe) -> Course:
    return Course(Recipe(**recipe), steps, epoch_steps)


def rates(course: Course) -> list[float]:
    """As the optimizer has them, over a whole training."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, course.share_of_rate)
    seen = []
    for _ in range(course.steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_the_rate_rises_for_twenty_steps_and_falls_to_a_tenth() -> None:
    shares = rates(course(300, schedule="drop:100,200"))
    assert [shares[done] for done in (0, 18, 99, 100, 200)] == pytest.approx([0.05, 0.95, 1, 0.1, 0.01])


def test_drops_and_warm_up_count_epochs_where_the_length_does() -> None:
    shares = rates(course(40, 10, schedule="drop:2", warm_up=1))
    assert shares[:11] == pytest.approx([*(k / 10 for k in range(1, 11)), 1])
    assert [shares[19], shares[20]] == pytest.approx([1, 0.1])


def test_a_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    expected = []
    for _ in range(50):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(course(50, schedule="cosine", warm_up=0)) == pytest.approx(expected)


def test_a_line_falls_evenly_to_one_step_above_nothing() -> None:
    shares = rates(course(10, schedule="linear", warm_up=0))
    assert [a - b for a, b in pairwise(shares)] == pytest.approx([0.1] * 9)
    assert shares[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 12, 50, 99, 300, 2048, 9000])
def test_every_second_record_and_the_last_are_evaluated(steps: int) -> None:
    whole = course(steps)
    recorded = [number for number in range(1, steps + 1) if whole.recorded(number)]
    evaluated = [number for number in recorded if whole.evaluated(number)]
    assert evaluated == [*recorded[1:-1:2], steps]
    assert min(steps, 50) <= len(recorded) < 100


def test_with_epochs_each_is_evaluated_at_its_end() -> None:
    whole = course(70, 7)
    assert [number for number in range(1, 71) if whole.evaluated(number)] == list(range(7, 71, 7))
    assert all(whole.recorded(number) for number in range(7, 71, 7))


def test_checkpoints_come_every_so_many_epochs_and_at_the_end() -> None:
    assert [number for number in range(1, 51) if course(50, 10).kept(number, 2)] == [20, 40, 50]
    assert [number for number in range(1, 51) if course(50).kept(number, 20)] == [20, 40, 50]
    assert not any(course(50).kept(number, None) for number in range(1, 51))


def test_an_epoch_is_as_many_steps_as_the_ranks_fill() -> None:
    task = Digits(width=4, batch=32)
    assert Recipe(epochs=3).course(task, 2) == Course(Recipe(epochs=3), 3 * (1437 // 64), 1437 // 64)
    assert Recipe(steps=5).course(task, 2) == Course(Recipe(steps=5), 5, None)


@pytest.mark.parametrize(
    ("task", "recipe", "expected"),
    [
        (Digits(width=4), {}, ("sgd", {"lr": 0.01, "momentum": 0.9})),
        (Digits(width=4), {"momentum": 0.5, "clip": 1.0}, ("sgd", {"lr": 0.01, "momentum": 0.5})),
        (LanguageModel(width=32), {}, ("adamw", {"lr": 1e-3})),
        (LanguageModel(width=32), {"optimizer": "sgd", "lr": 1.0}, ("sgd", {"lr": 1.0, "momentum": 0.9})),
    ],
)  # fmt: skip
def test_the_optimizer_is_the_tasks_unless_the_user_says_otherwise(task, recipe: dict, expected: tuple) -> None:
    assert Recipe(**recipe).optimizer_of(task) == expected
    made = Recipe(**recipe).make_optimizer(task, [torch.nn.Parameter(torch.zeros(1))])
    assert type(made).__name__.lower() == expected[0]
    assert expected[1].items() <= made.defaults.items()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"steps": 3, "epochs": 2}, "3 steps and 2 epochs are two lengths"),
        ({"steps": 0}, "0 steps are no training"),
        ({"epochs": 0}, "0 epochs are no training"),
        ({"lr": -1.0}, "lr=-1.0 is no learning rate"),
        ({"lr": float("inf")}, "lr=inf is no learning rate"),
        ({"momentum": 1.0}, "momentum=1.0 is not from 0 to below 1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 is not from 0 to below 1e"),
        ({"clip": 0.0}, "clip=0.0 is no norm"),
        ({"optimizer": "adam"}, "there is no optimizer 'adam': did you mean adamw"),
        ({"schedule": "cosin"}, "there is no schedule 'cosin': did you mean cosine"),
        ({"schedule": "30"}, "there is no schedule '30'"),
        ({"schedule": "nan"}, "there is no schedule 'nan'"),
        ({"schedule": "drop:x"}, "schedule drop:x has no steps or epochs: give numbers above 0, as in drop:30,60"),
        ({"schedule": "drop:nan"}, "schedule drop:nan has no steps"),
        ({"schedule": "drop:30,inf"}, "schedule drop:30,inf has no steps"),
        ({"schedule": "drop:-5"}, "schedule drop:-5 has no steps"),
    ],
)
def test_what_cannot_be_is_named(recipe: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**recipe)


def test_adamw_has_no_momentum() -> None:
    with pytest.raises(ValueError, match=r"momentum=0\.5 is for sgd"):
        Recipe(momentum=0.5).optimizer_of(LanguageModel(width=32))
