"""`forerun generate`: prints the answer to standard output, notes and statistics to standard
error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forerun import rules
from forerun.base import clock
from forerun.base.errors import InputError, explain
from forerun.cli.flags.shared import SAMPLING, check_least
from forerun.cli.lists import tree
from forerun.cli.loading import (
    follow,
    is_follower,
    load_drafter,
    load_target,
)
from forerun.cli.prompts import as_text, read_prompts
from forerun.cli.screen import Screen, legend, wants_colour
from forerun.engine.results import Generation, Piece
from forerun.generation.generate import stream
from forerun.gguf.magic import is_gguf
from forerun.loading.lean_pass import Lean
from forerun.sampling.options import Sampling


def summary(generation: Generation) -> str:
    """Some lines on rounds and speed, on acceptance if anything was drafted, and on the time of
    each stage."""
    stats, total = generation.stats, generation.stats.seconds.total
    speed = f"{stats.emitted / total:.1f} tokens/s" if total else "no time at all"
    lines = [
        f"{stats.emitted} tokens in {stats.rounds} rounds, {stats.tokens_per_round:.2f} per round; "
        f"{total:.2f} s, {speed}; finish reason: {generation.finish_reason}"
    ]
    if stats.drafted:
        rates = zip(stats.acceptance_by_position, stats.reached_by_position, strict=True)
        positions = " ".join(f"{rate:.0%}" if reached else "-" for rate, reached in rates)
        lines.append(
            f"draft: {stats.accepted} of {stats.drafted} tokens accepted "
            f"({stats.acceptance_rate:.0%}); by position, once reached: {positions}"
        )
    if stats.speed_against_plain is not None:
        lines[-1] += f"; about {stats.speed_against_plain:.2f}x as fast as without drafts"
    if stats.why_few is not None:
        lines.append(f"few drafts: {stats.why_few}")
    if total:
        shares = vars(stats.seconds).items()
        lines.append(
            "time: " + ", ".join(f"{stage} {spent / total:.1%}" for stage, spent in shares)
        )
    if stats.compiling:
        when = "once on this machine"
        if not clock.is_code_kept:
            when = "at every start: Numba may write nowhere; set NUMBA_CACHE_DIR to a folder"
        lines.append(f"compiling: {stats.compiling:.1f} s more, {when}")
    return "\n".join(lines)


def as_dict(generation: Generation, index: int = 0, sample: int = 0) -> dict[str, Any]:
    """The generation as a dictionary, with the indices of its prompt and sample."""
    report: dict[str, Any] = {
        "index": index,
        "sample": sample,
        "text": generation.text,
        "tokens": generation.tokens,
        "fates": [fate.value for fate in generation.fates],
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "stats": generation.stats.to_dict(),
    }
    return report if generation.error is None else {**report, "error": generation.error}


def run(args: argparse.Namespace) -> int:
    """Answer the prompts. Returns status 1 if one failed, 130 if Ctrl-C stopped it."""
    if is_follower(args.tensor_parallel):
        return follow()
    args.prompt, args.system = (
        None if word is None else as_text(word) for word in (args.prompt, args.system)
    )
    args.stop = [as_text(stop) for stop in args.stop]
    sampling, rule = _checked(args)
    shape = tree("--tree", args.tree)
    prompts = read_prompts(args)
    drafter = load_drafter(args.drafter, args.device, args.dtype)
    lean: Lean = False if args.no_lean else "auto"
    target = load_target(
        args.model, args.device, args.dtype, lean, args.quantize, args.tensor_parallel,
        args.gpu_memory, args.kv_dtype,
    )  # fmt: skip
    pieces = stream(
        target,
        [_chat(target, prompt, args) for prompt in prompts],
        drafter=drafter,
        draft_length=args.draft_length,
        tree=shape,
        rule=rule,
        sampling=sampling,
        max_new_tokens=args.max_tokens,
        stop=args.stop,
        errors="return",
    )
    screen = Screen(prompts, colour=wants_colour())
    interrupted, num_told = False, 0
    try:
        if args.json:
            for index in in_order(pieces, len(prompts)):
                print(json.dumps(as_dict(pieces.generation(index), index)), flush=True)
                num_told += 1
        else:
            if screen.colour and drafter is not None and sys.stderr.isatty():
                print(legend(), file=sys.stderr)
            screen.show(pieces)
    except KeyboardInterrupt:
        interrupted = True
        if not args.json:
            screen.break_off()
    generations: list[Generation] = pieces.results()
    if args.json:
        for index, generation in enumerate(generations[num_told:], start=num_told):
            print(json.dumps(as_dict(generation, index)))
    if args.stats:
        print(_which_pass(target), file=sys.stderr)
    failed = _report(generations, with_stats=args.stats)
    return 130 if interrupted else int(failed)


def in_order(pieces: Iterable[Piece], count: int) -> Iterator[int]:
    """The indices of finished answers, in order: each as soon as it and all before it are
    finished."""
    has_ended = [False] * count
    first = 0  # of those not given out
    for piece in pieces:
        has_ended[piece.index] |= piece.finish_reason is not None
        while first < count and has_ended[first]:
            yield first
            first += 1


def _checked(args: argparse.Namespace) -> tuple[Sampling, rules.Rule]:
    """Check the arguments before a model is loaded."""
    sampling = Sampling(**{name: getattr(args, name) for name in (*SAMPLING, "seed")})
    rule = rules.get(args.rule)
    check_least(args, draft_length=0, max_tokens=1)
    if "" in args.stop:
        cure = "Pass the text that should end the answer."
        raise InputError(explain("A stop string is empty.", args.stop, cure))
    if args.raw and args.system is not None:
        cure = "Leave out one of them."
        raise InputError(explain("Raw text has no system message.", "--raw and --system", cure))
    if not rule.lossless:
        print(f"note: the rule {rule.name} is lossy, so the text may change", file=sys.stderr)
    return sampling, rule


def _chat(target: Any, prompt: str, args: argparse.Namespace) -> Any:
    """The prompt as chat messages if the model has a chat template, else as text."""
    if target.tokenizer is None:
        wrong, kind = "The model has no tokenizer, so it cannot read a text.", "folder"
        cure = "Save its tokenizer into the folder: tokenizer.save_pretrained(folder)."
        if is_gguf(Path(target.name)):
            kind, cure = "GGUF file", "Use a file with a vocabulary, or the original checkpoint."
        raise InputError(explain(wrong, f"the {kind} {target.name}", cure))
    has_template = getattr(target.tokenizer, "chat_template", None) is not None
    if args.system is not None and not has_template:
        cure = "Leave out --system, or write it into the prompt."
        wrong = "A system message needs a chat template."
        raise InputError(explain(wrong, f"{target.name} without one", cure))
    if args.raw or not has_template:
        return prompt
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [*system, {"role": "user", "content": prompt}]


def _which_pass(target: Any) -> str:
    """Which implementation of the model ran, and why not the lean one."""
    reason = getattr(target, "why_not_lean", "")
    return f"target: {target!r}" + (f"; not the lean CPU pass: {reason}" if reason else "")


def _report(generations: list[Generation], *, with_stats: bool) -> bool:
    """Print all notes and failures, and statistics if asked. Returns whether anything failed."""
    for number, generation in enumerate(generations, start=1):
        which = f"[{number}/{len(generations)}] " if len(generations) > 1 else ""
        if with_stats:
            print(which + summary(generation), file=sys.stderr)
        for note in generation.stats.notes:
            print(f"{which}note: {note}", file=sys.stderr)
        if generation.error is not None:
            print(f"{which}failed: {generation.error}", file=sys.stderr)
    return any(generation.error is not None for generation in generations)
