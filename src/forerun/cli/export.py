"""`forerun export`: writes a trained drafter as files that vLLM and SGLang load."""

from __future__ import annotations

import argparse
from pathlib import Path

from forerun.drafters.heads.eagle3_export import export
from forerun.drafters.heads.files import load
from forerun.drafters.heads.fitting import load_shipped


def run(args: argparse.Namespace) -> int:
    """Write the files, and print their paths."""
    name = args.drafter.removeprefix("heads:")
    trained = load_shipped() if name == "heads" else load(name)
    export(trained, Path(args.out), args.format, args.dtype)
    print(f"{args.out}: a head of {trained.target.name} in the layout {args.format}")
    return 0
