"""docs/published.md: all that four published systems' descriptions have, and how Gradwire does it."""

from benchmarks.pages.published import acpsgd, adtopk, cupcake, gravac
from benchmarks.shared.tables import markdown

SYSTEMS = {
    "Cupcake (MLSys 2023)": cupcake.ROWS,
    "GraVAC (2023)": gravac.ROWS,
    "ADTopk (HPDC 2024)": adtopk.ROWS,
    "ACP-SGD (ICDCS 2023)": acpsgd.ROWS,
}

HEAD = """# What four published systems do, row by row

For researchers who know these systems: each row or sentence of their descriptions, and the command or call that does it
here. A test runs all of it, on small models and data. In a call `ddp` is a DistributedDataParallel, `optimizer` and
`scheduler` are torch's; `--data` names [files that you have](tasks.md#real-data); figures are on the pages that rows
name. The page is made of `benchmarks/pages/published/` by `make benchmarks`.

Two things differ in many rows. On a GPU DGC, GaussianK, RedSync, SIDCo and ReusedThreshold select exactly, as TopK does
([kernels](kernels.md#on-a-gpu)): there their rows time one algorithm. And all that travels dense, biases and norm
scales too, is one group, sent last, whatever the groups of the rest; with low rank it travels along; with votes nothing
is dense."""


def page() -> str:
    """The text of docs/published.md."""
    columns = ["published", "in Gradwire", "remark"]
    parts = [
        f"## {system}\n\n{markdown(columns, [_cells(row.cells) for row in rows])}" for system, rows in SYSTEMS.items()
    ]
    return "\n\n".join([HEAD, *parts]) + "\n"


def _cells(cells: list[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]
