"""The error of a task that fails in a step. Nothing here loads torch."""


class TaskError(ValueError):
    """A mistake in a user's model or loss that only a step shows. The command line and each rank print its message
    alone, without a traceback."""
