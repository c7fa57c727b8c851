"""Reads prompts from the command line, a file, a list or a pipe, and what `plan` and `sweep`
measure."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forerun import prompts
from forerun.base.errors import InputError, explain
from forerun.cli.flags.shared import flag_of
from forerun.cli.loading import usual_drafters


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts that were given. A prompt and a file together make one prompt, in that order."""
    if args.prompts is not None:
        if args.prompt is not None or args.file is not None:
            cure = "Put everything into the list, or leave --prompts out."
            wrong = "--prompts is a list of its own."
            raise InputError(explain(wrong, "it and another prompt", cure))
        return read_list(args.prompts)
    is_dash = args.prompt == "-"  # the usual name of standard input
    parts = [] if args.prompt is None else [_read("-") if is_dash else args.prompt]
    if args.file is not None:
        parts.append(_read(args.file))
    elif not parts and not sys.stdin.isatty():
        parts.append(_read("-"))
    elif not is_dash and _is_left_unread():
        told = "note: the text at standard input is not read; --file - puts it after the prompt"
        print(told, file=sys.stderr)
    prompt = "\n\n".join(parts)
    if not prompt.strip():
        received = "an empty one" if parts else "none"
        cure = "Pass it as an argument, with --file, or through a pipe."
        raise InputError(explain("There is no prompt.", received, cure))
    return [prompt]


def _is_left_unread() -> bool:
    """Whether a file or a pipe with text in it stands at standard input."""
    with suppress(ImportError, OSError, ValueError):  # no such call here, or no file at all
        from fcntl import ioctl
        from termios import FIONREAD

        about = os.fstat(number := sys.stdin.fileno())
        if stat.S_ISREG(about.st_mode):
            return about.st_size > os.lseek(number, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(about.st_mode):
            return ioctl(number, FIONREAD, bytes(4)) != bytes(4)
    return False


def as_text(word: str) -> str:
    """A command-line argument as valid text; bytes that the locale could not decode are read as
    UTF-8."""
    if not any("\ud800" <= character <= "\udfff" for character in word):
        return word
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError as error:
        cure = "Pass UTF-8 text, or put it into a file: --file F."
        raise InputError(explain("An argument is no UTF-8 text.", ascii(word), cure)) from error


def read_list(file: str) -> list[str]:
    """The prompts in a file, one per line: plain text, or JSON with "prompt" or Spec-Bench's
    "turns".

    If the file's name ends in .json or .jsonl, a line that is not JSON is an error and not a
    prompt.
    """
    is_json = file.lower().endswith((".jsonl", ".json"))
    return [prompt.text for prompt in prompts.parse(_read(file), file, bare_lines=not is_json)]


def read_subject(args: argparse.Namespace) -> tuple[list[str], list[prompts.Prompt]]:
    """The names of the drafters and the prompts to measure, checked before a model is loaded."""
    if args.max_tokens < 1:
        cure = "Use 1 or more; 64 shows what there is to see."
        wrong = f"{flag_of('max_tokens', args)} is too small."
        raise InputError(explain(wrong, args.max_tokens, cure))
    known = prompts.own() if args.prompts is None else prompts.read(args.prompts)
    names = _drafters(args.drafter or usual_drafters(args.model))
    return names, prompts.pick(known, args.per_group)


def _drafters(names: Sequence[str]) -> list[str]:
    """The named drafters without duplicates; `none` is refused."""
    if "none" in names:
        cure = "Leave it out: plain decoding is always measured."
        raise InputError(explain("`none` drafts nothing.", list(names), cure))
    return list(dict.fromkeys(names))


def _read(file: str) -> str:
    """The text of a file, without the newline at its end."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        text.encode()  # a pipe may have smuggled in what is no text
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        cure = "Name a text file that exists, or - for standard input."
        raise InputError(explain(f"A file cannot be read ({reason}).", repr(file), cure)) from error
    return text.removesuffix("\n")
