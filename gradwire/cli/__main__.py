"""`python -m gradwire.cli` is `gradwire`."""

import sys

from gradwire.cli import main

sys.exit(main())
