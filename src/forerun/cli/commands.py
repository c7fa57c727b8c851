"""All subcommands of `forerun`, one file each, and running the one that is asked for."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from forerun.base.errors import ForerunError
from forerun.base.version import __version__
from forerun.cli import (
    audit,
    batch,
    certify,
    completion,
    demo,
    doctor,
    generate,
    info,
    plan,
    plot,
    serve,
    simulate,
    sweep,
    train,
)
from forerun.cli.parsing import Parser, hint
from forerun.engine.drafting import HARMLESS

COMMANDS = (
    generate,
    serve,
    batch,
    audit,
    doctor,
    certify,
    simulate,
    plan,
    sweep,
    plot,
    train,
    demo,
    info,
    completion,
)

EXAMPLES = """examples:
  forerun generate "What is the capital of France?" --stats
  forerun serve
  forerun batch questions.jsonl --out answers
  forerun doctor --temperature 0.8
  forerun certify
  forerun certify --rule block
  forerun audit http://localhost:8000/v1
  forerun simulate --acceptance 0.8 --draft-cost 0.05
  forerun train ./my-model --prompts prompts.jsonl --out my-drafter
  forerun plan
  forerun sweep --out sweep
  forerun plot sweep
  forerun demo
  forerun info
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command, with all subcommands."""
    parser = Parser(
        prog="forerun",
        description="Speculative decoding that provably keeps the target's distribution.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forerun {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    subparsers.choices["completion"].set_defaults(make_parser=make_parser)
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; errors meant for people are one line on stderr and exit status 2."""
    parser = make_parser()
    args, extra = parser.parse_known_args(argv)
    if args.command is None and not extra:
        parser.print_help()
        return 0
    if args.command is None:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    if extra:
        meant = hint(parser, args.command, extra)
        parser.error(f"unrecognized arguments: {' '.join(extra)}{meant}")
    warnings.filterwarnings(
        "ignore", f"(?s).*{HARMLESS}", RuntimeWarning
    )  # commands print the note
    try:
        return int(args.run(args))
    except ForerunError as error:
        print(f"forerun {args.command}: {error}", file=sys.stderr)
        return 2
