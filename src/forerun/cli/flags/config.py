"""Configuration files: TOML whose keys are the long options of a command, without the dashes.

    port = 9000
    drafter = ["ngram", "suffix"]

    [models.small]
    model = "./small"

Keys are parsed by the command-line parser, so their values are checked in the same way. Options on
the command line override those in the file. Each section `[models.ID]` is read like a command line
of its own: first the file's other keys, then the section, then the command line.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from forerun.base.errors import InputError, explain, meant

SECTIONS = "models"
OWN_WORDS = ("help", "config")
"""Options that only a command line has."""

Parsed = tuple[argparse.Namespace, list[str]]


class LayeredParser(argparse.ArgumentParser):
    """A parser that reads options from the command line and from a configuration file.

    configured: parses a command line together with the file that it names.
    place: where the options come from, if not from the command line; errors name it.
    """

    configured: Callable[[Sequence[str]], Parsed] | None = None
    place = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.configured is None or namespace is not None or args is None:
            return super().parse_known_args(args, namespace)
        return self.configured(args)

    def parse_words(self, layers: Sequence[Sequence[str]]) -> Parsed:
        """Parse several lists of words; options in later lists override those in earlier ones."""
        namespace, extra = argparse.Namespace(), list[str]()
        for words in layers:
            for action in self._actions:
                is_given = any(word.partition("=")[0] in action.option_strings for word in words)
                if isinstance(action, argparse._AppendAction) and is_given:
                    setattr(namespace, action.dest, action.default)
            namespace, extra = super().parse_known_args(list(words), namespace)
        return namespace, extra

    def error(self, message: str) -> NoReturn:
        super().error(message + self.place)


def add_config(parser: argparse.ArgumentParser, in_sections: Collection[str]) -> None:
    """Let a command read its options from a file.

    in_sections: the options that a section may set, by their names in the namespace. The namespaces
    of the sections, by id, become the attribute `models` of the command's namespace.
    """
    assert isinstance(parser, LayeredParser)
    parser.add_argument("--config", metavar="F", help="a TOML file of these options; see the docs")

    def configured(words: Sequence[str]) -> Parsed:
        path = _config_in(words)
        if path is None:
            args, extra = parser.parse_words([words])
            args.models = {}
            return args, extra
        try:
            table = read_table(path)
            sections = table.pop(SECTIONS, {})
            top = words_of(table, parser, path)
            inner = {
                name: words_of(section, parser, path, name, in_sections)
                for name, section in _checked(sections, path).items()
            }
        except InputError as error:
            parser.error(str(error))
        parser.place = f" (in {path})"
        for told in (top, *inner.values()):
            parser.parse_words([told])
        parser.place = ""
        args, extra = parser.parse_words([top, words])
        if args.words:  # the command line's way to name a model
            args.model = parser.parse_words([words])[0].model
        args.models = {n: parser.parse_words([top, own, words])[0] for n, own in inner.items()}
        return args, extra

    parser.configured = configured


def read_table(path: str) -> dict[str, Any]:
    """The contents of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        cure = "Check the path, or pass a text file in TOML."
        wrong = "The configuration cannot be read."
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise InputError(explain(wrong, f"{path} ({reason})", cure)) from error
    except tomllib.TOMLDecodeError as error:
        cure = 'Write lines like max-batch = 8 or host = "0.0.0.0".'
        raise InputError(explain(f"{path} is no TOML.", str(error), cure)) from error


def words_of(
    table: Mapping[str, Any],
    parser: argparse.ArgumentParser,
    path: str,
    section: str | None = None,
    allowed: Collection[str] | None = None,
) -> list[str]:
    """Convert a table of options to the words of a command line.

    allowed: the options that may be set here, by their names in the namespace; None for all.
    """
    actions = {
        _key(action): action
        for action in parser._actions
        if action.option_strings and action.dest not in OWN_WORDS
    }
    known = {key for key, one in actions.items() if allowed is None or one.dest in allowed}
    where = path if section is None else f'section [{SECTIONS}."{section}"] of {path}'
    words: list[str] = []
    for key, value in table.items():
        if key not in known:
            wrong = f"There is no such option in {where}."
            cure = f"Use one of {', '.join(sorted(known))}."
            if key in actions:
                cure = "Write it above all sections: it belongs to the whole server."
            raise InputError(explain(wrong, key, cure + meant(key, known)))
        action = actions[key]
        texts = _texts(value, action, key, where)
        is_flag = action.nargs == 0
        words += [f"--{key}" if is_flag else f"--{key}={text}" for text in texts]
    return words


def _texts(value: Any, action: argparse.Action, key: str, where: str) -> list[str]:
    """The values of one option as texts, one for each time that the option is given."""
    is_flag, is_list = action.nargs == 0, isinstance(action, argparse._AppendAction)
    if is_flag and isinstance(value, bool):
        return ["true"] if value else []
    values = value if is_list and isinstance(value, list) else [value]
    fits = all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values)
    if is_flag or not fits:
        kind = "true or false" if is_flag else "a text or a number"
        kind += ", or a list of them" if is_list else ""
        received = f"{type(value).__name__} {value!r:.60}"
        raise InputError(explain(f"{key} in {where} has a wrong type.", received, f"Use {kind}."))
    return [str(one) for one in values]


def _key(action: argparse.Action) -> str:
    """The first long name of an option, without its dashes."""
    return next(name for name in action.option_strings if name.startswith("--")).removeprefix("--")


def _checked(sections: Any, path: str) -> dict[str, dict[str, Any]]:
    is_table = isinstance(sections, dict) and all(isinstance(o, dict) for o in sections.values())
    if not is_table:
        cure = f'Write a section for each model, beginning with a line [{SECTIONS}."its id"].'
        raise InputError(explain(f"{SECTIONS} in {path} is no section.", repr(sections)[:60], cure))
    return dict(sections)


def _config_in(words: Sequence[str]) -> str | None:
    """The configuration file that a command line names; None if there is none. The last one
    counts."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    path: str | None = finder.parse_known_args(list(words))[0].config
    return path
