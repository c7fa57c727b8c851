"""Lets `python -m forerun.cli` run the command."""

import sys

from forerun.cli import main

sys.exit(main())
