"""The error of a task that fails in a step. Nothing here loads torch."""


class TaskError(ValueError):
    """A mistake in a user's model or loss that a step has shown: the command line, and a rank, make one line of it."""
