"""`python -m gradwire` is `gradwire`."""

import sys

from gradwire.cli import main

sys.exit(main())
