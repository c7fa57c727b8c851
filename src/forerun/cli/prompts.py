"""Where prompts come from: the command line, a file, a list of them, or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

from forerun.errors import InputError, explain


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts that were asked for; a prompt and a file together are one, in that order."""
    if args.prompts is not None:
        if args.prompt is not None or args.file is not None:
            cure = "Put everything into the list, or leave --prompts out."
            wrong = "--prompts is a list of its own."
            raise InputError(explain(wrong, "it and another prompt", cure))
        return read_list(args.prompts)
    parts = [] if args.prompt is None else [args.prompt]
    if args.file is not None:
        parts.append(_read(args.file))
    elif not parts and not sys.stdin.isatty():
        parts.append(_read("-"))
    prompt = "\n\n".join(parts)
    if not prompt.strip():
        received = "an empty one" if parts else "none"
        cure = "Pass it as an argument, with --file, or through a pipe."
        raise InputError(explain("There is no prompt.", received, cure))
    return [prompt]


def read_list(file: str) -> list[str]:
    """A prompt per line, as it stands or as JSON with "prompt" or Spec-Bench's "turns"."""
    lines = enumerate(_read(file).split("\n"), start=1)
    prompts = [_line(file, number, line) for number, line in lines if line.strip()]
    if not prompts:
        raise InputError(explain("The list holds no prompt.", repr(file), "Write one per line."))
    return prompts


def _line(file: str, number: int, line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    with suppress(ValueError, LookupError, TypeError):
        row = json.loads(line)
        found = row["prompt"] if "prompt" in row else row["turns"][0]
        if isinstance(found, str) and found.strip():
            return found
    cure = 'Write {"prompt": "..."}, or {"turns": ["..."]} as in Spec-Bench, on one line.'
    wrong = f"Line {number} of {file} holds no prompt."
    raise InputError(explain(wrong, repr(line[:60]), cure))


def _read(file: str) -> str:
    """The text of a file, without the newline that ends it."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        text.encode()  # a pipe may have smuggled in what is no text
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        cure = "Name a text file that exists, or - for standard input."
        raise InputError(explain(f"A file cannot be read ({reason}).", repr(file), cure)) from error
    return text.removesuffix("\n")
