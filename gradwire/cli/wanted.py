"""Options of `gradwire train`, as the user typed them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from gradwire.cli.option_groups import Compared, RecipeChanges
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.presets import preset as preset_of
from gradwire.lab.experiments.training import Training
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.names import AUTO, DDP, DENSE, LOCAL, NOCOMM, PLAN
from gradwire.lab.torch_hooks import TORCH_HOOKS
from gradwire.lab.workloads import TASKS, UserModel


@dataclass(frozen=True)
class Wanted:
    """Options of `gradwire train`, None where they were not given."""

    compared: Compared
    options: Sequence[str] | None
    model: str | None
    preset: str | None
    pretrained: Path | None
    task: str | None
    folder: Path | None
    recipe: RecipeChanges
    seed: int
    checkpoint_every: int | None

    @property
    def nothing(self) -> bool:
        given = vars(self) | vars(self.compared) | {"compared": None}
        given |= {"recipe": self.recipe != RecipeChanges(), "checkpoint_every": self.checkpoint_every is not None}
        return not any(given.values())

    @property
    def training(self) -> Training:
        """The training that the user names, with the options of its task."""
        options = [*(self.options or []), *([f"pretrained={self.pretrained}"] if self.pretrained else [])]
        return described(self.task, self.model, options, self.folder, self.preset)

    def check_for_suite(self, suite: str) -> None:
        """Raises ValueError for options that a suite has by itself."""
        if any((*vars(self.compared).values(), self.options, self.model, self.preset)):
            raise ValueError(f"suite {suite} has configurations and options of its own: give none")

    def comparison(self, training: Training, cluster: LabCluster) -> Comparison:
        """The runs of a training, with the user's changes.

        Raises ValueError for what cannot be."""
        # the user's configurations in place of the training's; options in place of single values
        chosen = texts(self.compared, training.configurations)
        altered = training.altered(configurations=chosen, **vars(self.recipe))
        return altered.comparison(cluster.ranks, self.seed, self.checkpoint_every, cluster.shard)


def described(
    task: str | None, model: str | None, options: Sequence[str] | None, folder: Path | None, preset: str | None = None
) -> Training:
    """The training that the user names: a task, a function of their own, or a preset on the files in `folder`, with
    these options of the task.

    Raises ValueError for two of them, for a preset without files, for files that the task does not read, and for an
    option that is given twice."""
    # one of three, on files where there are some
    if sum(each is not None for each in (task, model, preset)) > 1:
        raise ValueError("a task, a --model of your own and a --preset are three things to train: give one")
    if preset is not None and folder is None:
        raise ValueError(f"preset {preset} trains on files that you have ({preset_of(preset).files}): give --data")
    if preset is not None:
        named = preset_of(preset)
    else:
        named = Training(task=task or "lm") if model is None else Training(task=UserModel.name)
    if folder is not None and "folder" not in signature(TASKS[named.task]).parameters:
        if model is not None:
            raise ValueError("your own --model reads its own files: leave --data out")
        raise ValueError(f"{named.task} takes no --data: name a --task that reads files, such as text or images")
    # --model and --data are options of the task, too
    given = [*([f"function={model}"] if model else []), *([f"folder={folder}"] if folder else []), *(options or [])]
    names = [option.partition("=")[0] for option in given]
    if twice := [option for option, name in zip(given, names, strict=True) if names.count(name) > 1]:
        raise ValueError(f"an option of {named.task} is given twice: {', '.join(twice)}")
    return named.altered(options=given)


def texts(compared: Compared, others: Sequence[str] = ()) -> list[str]:
    """The configurations to compare, as text: the `others` where none is named, with the plan if there is one. Raises
    ValueError for none, and for a controller and rules that change nothing."""
    named = compared.configurations or []
    # a controller and rules for each configuration that compresses
    if controller := compared.controller:
        named = _each(named, lambda text: _controlled(text, controller), f"--controller {controller}", (AUTO, LOCAL))
    if rules := compared.rules:
        named = _each(named, lambda text: _ruled(text, rules), f"--rule {rules[0]}")
    named = [*(named or others), *([f"{PLAN}{compared.plan}"] if compared.plan else [])]
    if not named:
        raise ValueError("CONFIG is missing: name what to compare, or a --plan")
    return named


def _each(texts: Sequence[str], changed: Callable[[str], str], option: str, others: Sequence[str] = ()) -> list[str]:
    """The configurations, changed but for dense ones, torch's hooks, plans and `others`, by their first word. Raises
    ValueError, naming the `option`, where none is changed."""
    alone = (DENSE, DDP, NOCOMM, PLAN.removesuffix(":"), *TORCH_HOOKS, *others)
    after = [text if re.split("[:+@;]", text.lower())[0] in alone else changed(text) for text in texts]
    if after == list(texts):
        raise ValueError(f"{option} has no CONFIG that compresses: name one, such as topk:0.01")
    return after


def _controlled(text: str, controller: str) -> str:
    """The configuration with this controller."""
    plain, semicolon, rules = text.partition(";")
    head, at, groups = plain.partition("@")
    return f"{head}+{controller}{at}{groups}{semicolon}{rules}"


def _ruled(text: str, rules: Sequence[str]) -> str:
    """The configuration with these rules, which come before its own."""
    head, *own = text.split(";")
    return ";".join((head, *rules, *own))
