"""The `forerun` command, one file per subcommand; this file handles interruptions and closed pipes.

`main` imports everything else, so that even Ctrl-C during imports is handled.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from forerun.base.errors import explain

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers which mean that a disk cannot take more data."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status."""
    try:
        from forerun.cli.commands import run

        try:
            return run(argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the exit it would be too late to say what went wrong
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        cure = "Make room there, or write to another place."
        received = f"'{error.strerror}' from the system"
        told = explain("The output cannot be written.", received, cure)
        print(f"forerun: {told}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Discard the rest of the output, so that Python does not try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
