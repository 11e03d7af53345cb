"""Plans and profiles of files that are named on the command line, with parts of the user's own."""

from functools import partial
from pathlib import Path
from typing import TypeVar

from gradwire.importing import imported
from gradwire.plan_parts import users_parts
from gradwire.plans import Plan, from_file
from gradwire.schedule.profile import Profile

T = TypeVar("T", Plan, Profile)


def saved(kind: type[T], path: str | Path) -> T:
    """The plan or the profile of a file. The modules of users' parts are imported, as where a text names them; a script
    that has moved is looked for in the working folder, then beside the file. Raises ValueError for what cannot be
    read."""
    return from_file(path, partial(_read, kind, Path(path).parent))


def _read(kind: type[T], beside: Path, text: str) -> T:
    for part in users_parts(text):
        place, _, name = part.rpartition(":")
        file = Path(place).name
        found = next((each for each in (place, file, beside / file) if Path(each).is_file()), place)
        imported(f"{found}:{name}")
    return kind.from_json(text)
