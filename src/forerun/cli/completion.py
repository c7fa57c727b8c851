"""`forerun completion`: prints a script with which a shell completes commands, options and
values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from functools import cache

from forerun import rules
from forerun.cli.commands import commands_of, make_parser, options_of
from forerun.drafters.registry import names
from forerun.loading.bundled import installed_names

MAY_BE_FOLDERS = {"--target", "--model", "--drafter"}
"""Options that name a model, which may be a folder."""


def run(args: argparse.Namespace) -> int:
    """Print the script for the named shell."""
    scripts = {"bash": bash, "zsh": zsh, "fish": fish}
    print(scripts[args.shell](make_parser()))
    return 0


def values_of(option: argparse.Action) -> list[str]:
    """The possible values of an option, if they can be listed; none for files and free text."""
    if option.choices is not None:
        return [str(choice) for choice in option.choices]
    known = known_values()
    return next((known[flag] for flag in option.option_strings if flag in known), [])


@cache
def known_values() -> dict[str, list[str]]:
    """The possible values of some options, by the option's name. Collecting them takes 20 ms, so it
    is done once."""
    models = installed_names()
    return {
        "--drafter": ["auto", *names(), "none"],
        "--rule": rules.names(),
        "--device": ["cpu", "cuda", "mps"],
        "--target": models,
        "--model": models,
    }


def bash(parser: argparse.ArgumentParser) -> str:
    """The completion function for bash. After an option that takes a file or text, it completes
    file names."""
    commands = commands_of(parser)
    cases = "\n".join(_bash_case(name, command) for name, command in commands.items())
    flags = " ".join(_flags(parser))
    return f"""\
_forerun() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W {shlex.quote(f"{' '.join(commands)} {flags}")} -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    [[ $word == -* ]] && COMPREPLY=($(compgen -W "$options" -- "$word"))
}}
complete -o default -F _forerun forerun"""


def _bash_case(name: str, command: argparse.ArgumentParser) -> str:
    """The branch for one command in the shell's `case`: its options, and the values of each."""
    lines = [f"    {name})", f"        options={shlex.quote(' '.join(_flags(command)))}"]
    known = [(option.option_strings, values_of(option)) for option in options_of(command)]
    lines += [
        f"        case $before in {'|'.join(flags)}) "
        f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- "$word"'
        f"{_folders(flags)})); return ;; esac"
        for flags, values in known
        if values
    ]
    for words in _positional_choices(command):
        lines.append(f'        COMPREPLY=($(compgen -W {shlex.quote(words)} -- "$word"))')
    return "\n".join([*lines, "        ;;"])


def _folders(flags: Sequence[str]) -> str:
    """A shell command to append for options that name a model, so that folders are completed
    too."""
    return '; compgen -d -- "$word"' if MAY_BE_FOLDERS & {*flags} else ""


def zsh(parser: argparse.ArgumentParser) -> str:
    """The script for zsh, which runs the bash function through zsh's bridge."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(parser)}"


def fish(parser: argparse.ArgumentParser) -> str:
    """The script for fish: one `complete` line for each command and option, with its help."""
    lines = ["complete -c forerun -f -n __fish_use_subcommand -l version -d version"]
    helps = _helps(parser)
    for name, command in commands_of(parser).items():
        about = _fish_quoted(helps.get(name, ""))
        lines.append(f"complete -c forerun -f -n __fish_use_subcommand -a {name} -d {about}")
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for option in options_of(command):
            flags = [
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in option.option_strings
            ]
            line = f"complete -c forerun {condition} {' '.join(flags)}"
            if option.nargs != 0:
                values = values_of(option)
                takes = " -x" if not MAY_BE_FOLDERS & {*option.option_strings} else " -r"
                line += f"{takes} -a {_fish_quoted(' '.join(values))}" if values else " -r"
            lines.append(f"{line} -d {_fish_quoted(_plain(option.help))}")
        lines += [
            f"complete -c forerun -f {condition} -a {_fish_quoted(words)}"
            for words in _positional_choices(command)
        ]
    return "\n".join(lines)


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """All flags of a parser."""
    return [flag for option in options_of(parser) for flag in option.option_strings]


def _positional_choices(command: argparse.ArgumentParser) -> list[str]:
    """The choices of each positional argument, as words separated by spaces."""
    actions = [action for action in command._actions if not action.option_strings]
    return [" ".join(map(str, action.choices)) for action in actions if action.choices]


def _helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The help line of each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._choices_actions}
    return {}


def _plain(text: str | None) -> str:
    """A help text as argparse prints it, with "%%" as "%"."""
    return (text or "").replace("%%", "%")


def _fish_quoted(text: str) -> str:
    """A text in single quotes for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
