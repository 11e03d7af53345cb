"""Before anything is imported: Triton's kernels run in its interpreter, for there is no GPU. Output is that of a file,
whoever runs the tests, whatever the terminal's width that pytest-xdist hands on. And what is started can be
interrupted, which a job in the background could not."""

import os
import signal

os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("COLUMNS", None)
signal.signal(signal.SIGINT, signal.default_int_handler)
