"""Before anything is imported: Triton's kernels run in its interpreter, for there is no GPU. And output is that of a
file, whoever runs the tests, whatever the terminal's width that pytest-xdist hands on."""

import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("COLUMNS", None)
