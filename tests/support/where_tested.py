"""The table in tests/README.md that says where modules are tested."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def where_tested() -> dict[Path, list[str]]:
    """The test files, such as tests/test_plan.py, of each module that the table names, such as runtime/store."""
    table = README.read_text().partition("| module | tested in |")[2]
    rows = [[re.findall("`(.*?)`", cell) for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    return {Path(module): [test.split()[0] for test in tests] for modules, tests in rows for module in modules}
