"""The parser of the command: options are never shortened, and a wrong one names the right one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from forerun.base.errors import meant


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that does not take `--prompt` for `--prompts`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Of a wrong choice, also say which one was probably meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += meant(str(value), map(str, action.choices or ()))
            raise


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands by name, in the order of the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a command, without arguments that stand alone."""
    return [action for action in parser._actions if action.option_strings]


MODELS = ("--target", "--model")
"""Options that name the model in some commands, and not in others."""


def hint(parser: argparse.ArgumentParser, command: str, extra: Sequence[str]) -> str:
    """What was probably meant by the first of the arguments that are not known."""
    flag, is_flag = extra[0].partition("=")[0], extra[0].startswith("-")
    if command == "generate" and flag == "--prompt":
        return ' (the prompt stands alone: forerun generate "..."; --prompts F is a file of them)'
    if command == "generate" and not is_flag:
        return " (put the prompt in quotes; several go into a file, one a line: --prompts F)"
    chosen = commands_of(parser)[command]
    flags = [name for option in options_of(chosen) for name in option.option_strings]
    if flag in MODELS and (way := _way_to_name_a_model(chosen, flags)):
        return f" ({way})"
    alike = [name for name in flags if is_flag and name.startswith(flag)]
    alike = alike or get_close_matches(flag, flags, 1)
    return f" (did you mean {' or '.join(alike[:3])}?)" if is_flag and alike else ""


def _way_to_name_a_model(command: argparse.ArgumentParser, flags: Sequence[str]) -> str | None:
    """How this command takes its model, if it takes one."""
    for flag in MODELS:
        if flag in flags:
            return f"the model is given as {flag}: {command.prog} {flag} MODEL"
    if any(action.dest in ("model", "target") for action in command._actions):
        return f"the model is given without an option: {command.prog} MODEL"
    return None
