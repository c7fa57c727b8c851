"""The flags that several commands share, so that each has one name and one help text."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.base.errors import InputError, explain
from forerun.loading.bundled import NAME, installed_names
from forerun.loading.device_choice import DTYPES

if TYPE_CHECKING:
    from forerun.rules.types import DraftLength

MODEL = f"hub name, folder or GGUF file (default: {NAME})"
DRAFTERS = (
    "ngram",
    "suffix",
    "early-exit",
    "quantized",
    "heads",
    "eagle3",
    "block",
    "dflash",
    "medusa",
    "mtp",
    "through-text",
)
DRAFTER = (
    f"auto, {', '.join(DRAFTERS)}, a model, none, or several as a+b (default: auto, a trained "
    "drafter that fits the target with suffix, as heads+suffix for the default model, or suffix)"
)
RULES = ("match", "ratio", "block", "siblings", "traversal", "lenient", "typical", "threshold")
SAMPLING: dict[str, tuple[type, float | None, str]] = {
    "temperature": (float, 0.0, "0 is greedy"),
    "top_k": (int, None, "keep only the k likeliest tokens"),
    "top_p": (float, 1.0, "keep only the likeliest tokens whose probabilities add up to this"),
    "min_p": (float, 0.0, "drop tokens below this share of the likeliest token's probability"),
    "repetition_penalty": (float, 1.0, "divide the logits of tokens in prompt and answer by this"),
    "presence_penalty": (float, 0.0, "subtract this from the logits of tokens in the answer"),
    "frequency_penalty": (float, 0.0, "the same, once per occurrence"),
}
"""The fields of `Sampling` that have flags, with their types, defaults and help texts. The seed is
not among them, because it means something else to each command."""

Group = argparse._ActionsContainer


class Named(argparse.Action):
    """Stores a value, and under which of its names the flag was given."""

    def __call__(
        self, parser: object, args: argparse.Namespace, value: object, flag: str | None = None
    ) -> None:
        setattr(args, self.dest, value)
        setattr(args, f"{self.dest}_flag", flag)


def flag_of(name: str, args: argparse.Namespace | None = None) -> str:
    """The flag for the name of an argument, as it was typed if it has several names: `max_tokens`
    gives `--max-tokens`."""
    return getattr(args, f"{name}_flag", None) or "--" + name.replace("_", "-")


def check_least(args: argparse.Namespace, **least: int) -> None:
    """Refuse arguments that are smaller than the least that makes sense."""
    for name, number in least.items():
        value = getattr(args, name)
        if isinstance(value, int) and value < number:
            wrong = f"{flag_of(name, args)} is too small."
            raise InputError(explain(wrong, value, f"Use {number} or more."))


def add_model(parser: argparse.ArgumentParser, *, then: str = "", about: str = "") -> None:
    """Let MODEL be given as the first word without a flag, or as `--model`; `settle` finds out
    which.

    then: the name of the positional argument after it; if MODEL was given by flag, the only one.
    about: help text for that argument.
    """
    if not then:
        parser.add_argument("words", nargs="?", metavar="MODEL", help=MODEL)
    else:
        words = f"[MODEL] {then.upper()}"
        parser.add_argument("words", nargs="*", metavar=words, help=f"{about}; MODEL: {MODEL}")
        parser.usage = f"{parser.prog} {words} [options]"
    parser.add_argument("--model", "--target", metavar="MODEL", help="the same, as an option")
    parser.set_defaults(then=then)


def settle(args: argparse.Namespace, extra: Sequence[str]) -> list[str]:
    """Set `args.model`, and the argument after it, from the positional words. Returns the words
    left over.

    extra: what the parser did not recognise, such as a word after an option.
    """
    words = [args.words] if isinstance(args.words, str) else list(args.words or ())
    if any(word.startswith("-") for word in extra):
        return list(extra)
    if args.then:
        words, extra = [*words, *extra], []
        is_model_alone = args.then == "prompt" and len(words) == 1 and _is_alone(words[0], args)
        last = words.pop() if words and not is_model_alone else None
        setattr(args, args.then, last)
        if len(words) > 1 or (last is not None and words and not _may_be_model(words[0])):
            return [*words[1:], str(last)]
    if words:
        if args.model is not None:
            received = f"{words[0]} and --model {args.model}"
            raise InputError(explain("The model is named twice.", received, "Drop one of them."))
        args.model = words[0]
    return list(extra)


def _is_alone(word: str, args: argparse.Namespace) -> bool:
    """Whether the only word given to `generate` is a model, because the prompt comes from
    elsewhere."""
    is_asked_elsewhere = args.prompts is not None and _may_be_model(word)
    return is_asked_elsewhere or _is_certain(word)


def is_model(word: str) -> bool:
    """Whether a word after a prompt is meant as a model: by its kind, or as an explicit path."""
    is_path = word.startswith(("./", "../", "/", "~/")) and not re.search(r"\s", word)
    return is_path or _is_certain(word)


def _is_certain(word: str) -> bool:
    """Whether a word can hardly be anything but a model: a folder with one, a hub name, a GGUF
    file."""
    is_here = os.path.exists(os.path.join(word, "config.json"))
    is_hub_name = re.fullmatch(r"[\w.-]+/[\w.-]*[\d-][\w.-]*", word) is not None
    return is_here or is_hub_name or _is_known(word)


def _may_be_model(word: str) -> bool:
    """Whether the first of two words is probably a model and not the beginning of a prompt."""
    is_path = "/" in word and not any(letter.isspace() for letter in word)
    return is_path or os.path.exists(word) or _is_known(word)


def _is_known(word: str) -> bool:
    return word.endswith(".gguf") or word in installed_names()


def add_drafter(group: Group) -> None:
    """Add the flag that names one drafter."""
    group.add_argument("--drafter", metavar="D", help=DRAFTER)


def add_draft_length(group: Group) -> None:
    """Add the flag for the draft length: a number of guesses, or `auto`."""
    group.add_argument(
        "--draft-length",
        metavar="K",
        type=draft_length,
        default="auto",
        help="guesses per round, at most (default: auto, chosen in each round by what is faster)",
    )


def draft_length(text: str) -> DraftLength:
    """The value of the flag: a number, or "auto"."""
    if text != "auto" and not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number or auto, not {text!r}")
    return "auto" if text == "auto" else int(text)


def add_rule(group: Group) -> None:
    """Add the flag that names an acceptance rule."""
    group.add_argument("--rule", default="match", help=f"{', '.join(RULES)} (default: match)")


def add_max_tokens(group: Group, default: int) -> None:
    """Add the flag for the length of an answer, under both of its names."""
    group.add_argument(
        "--max-tokens",
        "--max-new-tokens",
        metavar="N",
        action=Named,
        type=int,
        default=default,
        help=f"new tokens of an answer, at most (default: {default})",
    )


def add_sampling(group: Group) -> None:
    """Add the sampling options, the length of an answer and what ends it."""
    for name, (kind, default, text) in SAMPLING.items():
        text += "" if default is None else f" (default: {default:g})"
        group.add_argument(flag_of(name), metavar="X", type=kind, default=default, help=text)
    add_max_tokens(group, 256)
    group.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end an answer before this text; repeatable",
    )


def add_seed(group: Group, text: str = "") -> None:
    """Add the flag for a seed, which is 0 by default."""
    group.add_argument(
        "--seed", metavar="N", type=int, default=0, help=f"{text} (default: 0)".strip()
    )


def add_place(group: Group) -> None:
    """Add the flags for the model's device and precision."""
    group.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... (default: a GPU if any)")
    group.add_argument(
        "--dtype", choices=DTYPES, help="(default: the one the weights were saved in)"
    )


def add_pass(group: Group) -> None:
    """Add the flags that choose the target's implementation on a CPU."""
    group.add_argument(
        "--no-lean", action="store_true", help="run transformers' forward pass even where ours fits"
    )
    group.add_argument(
        "--quantize",
        choices=("int8",),
        help="round the target's weights to 8 bits, which makes it another model",
    )
    group.add_argument(
        "--gpu-memory",
        metavar="SHARE",
        help="of the GPU that this process may fill with weights, keys and values: 0.9, or 40GiB "
        "(default: half of what the weights leave free, for keys and values)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=("float8",),
        help="round the target's keys and values to 8 bits on a GPU, so that twice as many tokens "
        "fit; lossy: the text is another one",
    )


def add_ranks(group: Group) -> None:
    """Add the flags for models that need several GPUs."""
    group.add_argument(
        "--tensor-parallel",
        metavar="N",
        type=int,
        help="spread the target over N processes, one a GPU; also under torchrun",
    )


def add_subject(parser: argparse.ArgumentParser, *, per_group: int) -> None:
    """Add the flags for what `plan` and `sweep` measure: a target, drafters, and prompts."""
    add_model(parser)
    parser.add_argument(
        "--drafter",
        metavar="D",
        action="extend",
        nargs="+",
        help="one or more: a name that `forerun generate --drafter` takes (default: ngram, suffix, "
        "and for the default model heads+suffix)",
    )
    parser.add_argument(
        "--prompts",
        metavar="F",
        help='JSON lines with "prompt", or Spec-Bench\'s (default: 48 prompts of our own)',
    )
    parser.add_argument(
        "--per-group",
        metavar="N",
        type=int,
        default=per_group,
        help=f"prompts of each task group (default: {per_group})",
    )
    add_max_tokens(parser, 64)
    add_seed(parser)
    add_place(parser)
