"""`python -m forerun.ranks FOLDER RANK NUM_RANKS`: a rank, as rank 0 starts it."""

from __future__ import annotations

import os
import sys

from forerun.ranks.follower import main

status = main(sys.argv[1:])
sys.stderr.flush()
os._exit(status)  # taking torch apart in order would keep rank 0 waiting
