"""What an error keeps alive."""

import traceback


def forget_frames(error: BaseException | None) -> None:
    """Gives up the local variables of all calls that an error, and what caused it, came through."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__
