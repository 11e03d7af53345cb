"""Before anything is imported: Triton's kernels run in its interpreter, for there is no GPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"
