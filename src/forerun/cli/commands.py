"""All subcommands of `forerun`: builds the parser, suggests corrections, and runs a command."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from shlex import quote
from typing import Any, NoReturn

from forerun.base.errors import ForerunError, meant
from forerun.base.version import __version__
from forerun.cli.flags import answering, checking, measuring, training
from forerun.cli.flags.config import LayeredParser
from forerun.cli.flags.shared import is_model, settle

COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "generate": (answering.generate, "answer a prompt with any Hugging Face causal model"),
    "serve": (answering.serve, "a server for OpenAI's clients, with a page"),
    "batch": (
        answering.batch,
        "answer a file of requests, resumable; on this machine or on Ray",
    ),
    "audit": (checking.audit, "is the speculation of an OpenAI-compatible endpoint lossless?"),
    "doctor": (
        checking.doctor,
        "compare speculative with plain text, and explain every difference",
    ),
    "certify": (checking.certify, "prove that an acceptance rule keeps the target's distribution"),
    "simulate": (measuring.simulate, "speed-up by draft length and batch, without running a model"),
    "plan": (
        measuring.plan,
        "which drafter, draft length and rule are fastest on this machine, if any",
    ),
    "sweep": (
        measuring.sweep,
        "measure drafters, draft lengths, batches and temperatures; resumable",
    ),
    "plot": (measuring.plot, "draw a sweep: pictures, and a report that opens from disk"),
    "train": (training.train, "train a drafter for a target on the target's own answers"),
    "export": (training.export, "write a trained drafter as an EAGLE-3 head for other engines"),
    "demo": (
        answering.demo,
        "plain and speculative side by side: the same text, and the measured ratio",
    ),
    "info": (checking.info, "this machine, the versions, which passes run here, and the caches"),
    "completion": (
        checking.completion,
        "print a script that completes commands and options in your shell",
    ),
}
"""The flags and the help of each command; `forerun.cli.NAME` runs it."""

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
  forerun export my-drafter --format eagle3 --out my-head
  forerun plan
  forerun sweep --out sweep
  forerun plot sweep
  forerun demo
  forerun info
"""

ELSEWHERE = {"bench": "sweep", "benchmark": "sweep", "chat": "generate", "run": "generate"}
"""Names that commands have in other tools, with ours."""


class Parser(LayeredParser):
    """An `ArgumentParser` that accepts no abbreviated options and suggests corrections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, suggesting the most similar one."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            known = list(map(str, action.choices or ()))
            if action.dest == "command":
                self._no_such_command(str(value), known)
            error.message += meant(str(value), known)
            raise

    def _no_such_command(self, word: str, known: Sequence[str]) -> NoReturn:
        """Exit with an error that suggests similar commands, or lists all."""
        begun = [name for name in known if name.startswith(word)]
        question = f" Did you mean {' or '.join(begun)}?" if begun else meant(word, known)
        if not question and word in ELSEWHERE:
            question = f" Here it is called {ELSEWHERE[word]}."
        question = question or f" There are {', '.join(known)}."
        self.exit(2, f"forerun: there is no command {word!r}.{question}\n")


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
    for name, (add_flags, about) in COMMANDS.items():
        command = subparsers.add_parser(
            name, help=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_flags(command)
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Errors that a user can cause are printed as one line, with exit status
    2."""
    parser = make_parser()
    args, extra = parser.parse_known_args(argv)
    if args.command is None and not extra:
        parser.print_help()
        return 0
    if args.command is None:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    try:
        if "words" in args:
            extra = settle(args, extra)
        if extra:
            known = commands_of(parser)[args.command]
            known.error(f"unrecognized arguments: {' '.join(extra)}{hint(known, args, extra)}")
        return _run(args)
    except ForerunError as error:
        print(f"forerun {args.command}: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    """Import the module of the command and run it."""
    command = import_module(f"forerun.cli.{args.command}")
    from forerun.engine.drafting import HARMLESS

    warnings.filterwarnings(
        "ignore", f"(?s).*{HARMLESS}", RuntimeWarning
    )  # commands print the note
    return int(command.run(args))


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands by name, in the order of the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a command, without positional arguments."""
    return [action for action in parser._actions if action.option_strings]


def hint(parser: argparse.ArgumentParser, args: argparse.Namespace, extra: Sequence[str]) -> str:
    """A suggestion for the first unknown argument, for the error message."""
    flag, is_flag = extra[0].partition("=")[0], extra[0].startswith("-")
    if args.command == "generate" and flag == "--prompt":
        return ' (the prompt stands alone: forerun generate "..."; --prompts F is a file of them)'
    if args.command == "certify" and not is_flag:
        return f" (a function of your own: --function {flag if ':' in flag else flag + ':NAME'})"
    if args.command == "generate" and not is_flag and len(extra) == 1 and is_model(extra[0]):
        prompt = " ".join(word for word in args.words if word != extra[0])
        return f" (the model stands first: forerun generate {extra[0]} {quote(prompt)})"
    if args.command == "generate" and not is_flag:
        first = args.words[0] if len(args.words) + len(extra) > 1 else ""
        model = f"; if {first} is a model: --model {first}" if first and " " not in first else ""
        return f" (put the prompt in quotes; several go into a file: --prompts F{model})"
    flags = [name for option in options_of(parser) for name in option.option_strings]
    alike = [name for name in flags if is_flag and name.startswith(flag)]
    alike = alike or get_close_matches(flag, flags, 1)
    return f" (did you mean {' or '.join(alike[:3])}?)" if is_flag and alike else ""
