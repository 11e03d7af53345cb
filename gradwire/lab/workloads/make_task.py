"""Making tasks by name."""

from collections.abc import Sequence

from gradwire.construct import construct
from gradwire.lab.workloads import TASKS, Task
from gradwire.unknown import unknown


def make_task(name: str, options: Sequence[str]) -> Task:
    """The task `name` with options such as `width=128`; it reads its data.

    Raises ValueError for an unknown task, an unknown or bad option, and data that is not there."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    for option in options:
        if "=" not in option:
            raise ValueError(f"{option!r} is not an option of a task: write name=value, such as width=128")
    return construct(TASKS[name], options, name)
