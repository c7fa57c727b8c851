"""A plan as options of the engine that will run it: our own command, vLLM, SGLang.

The option names come from vLLM's `vllm/config/speculative.py` and SGLang's page on speculative
decoding, both of 2026.  Neither engine has a counterpart for `match` or for every drafter.
Notes say what differs; where nothing corresponds, there is no export.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from forerun.drafters.base import Drafter
from forerun.drafters.heads import Heads
from forerun.drafters.mixed import Mixed
from forerun.drafters.model import Model
from forerun.drafters.ngram import NGram
from forerun.drafters.suffix import Suffix
from forerun.measure.planner import SpeculationPlan


@dataclass(frozen=True)
class Export:
    """Arguments for an engine, and notes; `arguments` is None if the engine has no counterpart of
    the plan.

    command: what the arguments follow; MODEL stands for the target.
    lossless: what keeps the target's distribution there, and what would not.
    config: the arguments as values, where the engine takes them as JSON.
    """

    engine: str
    arguments: str | None
    notes: tuple[str, ...] = ()
    command: str = ""
    lossless: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


def exports(plan: SpeculationPlan) -> list[Export]:
    """The plan for each supported engine."""
    return [for_forerun(plan), for_vllm(plan), for_sglang(plan)]


def script(export: Export, plan: SpeculationPlan) -> str:
    """A shell script: the command line, and comments that say what it rests on."""
    comments = [f"{export.engine} for {plan.target}, planned with forerun", str(plan)]
    comments += [*export.notes, *export.lossless]
    lines = ["#!/bin/sh", *(f"# {comment}" for comment in comments)]
    if export.arguments is None:
        return "\n".join(lines)
    if export.config is not None:
        lines += [f"# In Python: LLM({plan.target!r}, **{export.config!r})"]
    command = export.command.replace("MODEL", shlex.quote(plan.target))
    lines.append(f"exec {command} {export.arguments}".rstrip())
    return "\n".join(lines)


def for_forerun(plan: SpeculationPlan) -> Export:
    """The plan as flags of `forerun generate`."""
    if plan.choice is None or plan.drafter_name is None:
        return Export("forerun generate", "--drafter none")
    words = ["--drafter", plan.drafter_name, "--draft-length", str(plan.choice.draft_length)]
    words += [] if plan.choice.tree is None else ["--tree", str(plan.choice.tree)]
    words += [] if plan.choice.rule == "match" else ["--rule", plan.choice.rule]
    return Export("forerun generate", shlex.join(words))


def for_vllm(plan: SpeculationPlan) -> Export:
    """The plan as flags of `vllm serve`, whose values are also arguments of `LLM`.

    Lookup drafters are ours, inside vLLM (`forerun.integrations.vllm`).
    """
    engine, command = "vllm serve", "vllm serve MODEL"
    if plan.choice is None:
        return Export(engine, "", ("Leave --speculative-config out.",), command)
    if plan.choice.tree is not None:
        return Export(engine, None, ("It verifies chains only; plan without trees.",))
    config: dict[str, Any] = {"num_speculative_tokens": plan.choice.draft_length}
    notes, extra = [MEASURED_HERE], {}
    options = _lookup_options(plan.drafter)
    if options is not None:
        config |= {"method": "custom_class", "model": "forerun.integrations.vllm.Proposer"}
        extra = {"additional_config": {"forerun": options}}
        notes += [EXPERIMENTAL, OWN_TEXT] if "suffix" in options else [EXPERIMENTAL]
    elif isinstance(plan.drafter, Model | Heads):
        config |= {"method": "draft_model", "model": plan.drafter_name}
        if isinstance(plan.drafter, Heads):
            folder, written = _head_folder(plan.drafter)
            config |= {"method": "eagle3", "model": folder}
            notes += written
        if plan.temperature > 0:
            config["draft_sample_method"] = "probabilistic"
            notes += [NO_MATCH] if plan.choice.rule == "match" else []
    else:
        return _nothing(engine, plan)
    config["rejection_sample_method"] = "standard"
    values = {"speculative_config": config, **extra}
    flags = [
        f"--{name.replace('_', '-')} {shlex.quote(json.dumps(value))}"
        for name, value in values.items()
    ]
    lossless: tuple[str, ...] = VLLM_LOSSLESS
    if "draft_sample_method" in config:
        lossless = (*VLLM_LOSSLESS, PROBABILISTIC)
    return Export(engine, " ".join(flags), tuple(notes), command, lossless, values)


def _lookup_options(drafter: Drafter | None) -> dict[str, Any] | None:
    """Options of our proposer for vLLM that make this drafter; None if it needs more than texts."""
    parts = drafter.drafters if isinstance(drafter, Mixed) else [drafter]
    options: dict[str, Any] = {"drafter": "+".join(_name(part) for part in parts)}
    for part in parts:
        if isinstance(part, NGram):
            options["ngram"] = {"max_n": part.max_n, "min_n": part.min_n}
        elif isinstance(part, Suffix):
            options["suffix"] = {"max_match": part.max_match, "worth": part.worth}
        else:
            return None
    return options


def for_sglang(plan: SpeculationPlan) -> Export:
    """The plan as flags of `python -m sglang.launch_server`."""
    engine, command = "sglang", "python -m sglang.launch_server --model-path MODEL"
    if plan.choice is None:
        return Export(engine, "", ("Leave --speculative-algorithm out.",), command)
    if plan.choice.tree is not None:
        return Export(engine, None, ("Its trees are of another shape; plan without trees.",))
    steps = plan.choice.draft_length
    notes = [MEASURED_HERE]
    if isinstance(plan.drafter, Model):
        flags = {
            "algorithm": "STANDALONE",
            "draft-model-path": str(plan.drafter_name),
            "num-steps": str(steps),
            "eagle-topk": "1",
            "num-draft-tokens": str(steps + 1),  # it counts the token that the draft follows
        }
    elif isinstance(plan.drafter, Heads):
        design = plan.drafter.design
        if design is not None and design.norms_residual:
            reason = "It leaves out norm_before_residual, with which this head was trained."
            return Export(engine, None, (reason,))
        folder, written = _head_folder(plan.drafter)
        notes += written
        flags = {
            "algorithm": "EAGLE3",
            "draft-model-path": folder,
            "num-steps": str(steps),
            "eagle-topk": "1",
            "num-draft-tokens": str(steps + 1),
        }
    elif isinstance(plan.drafter, NGram):
        flags = {
            "algorithm": "NGRAM",
            "num-draft-tokens": str(steps + 1),
            "ngram-min-match-window-size": str(plan.drafter.min_n),
            "ngram-max-match-window-size": str(plan.drafter.max_n),
            "ngram-max-bfs-breadth": "1",
        }
        notes.append("CUDA only; it looks up earlier answers as well as the prompt.")
    else:
        return _nothing(engine, plan)
    flags |= {"accept-threshold-single": "1.0", "accept-threshold-acc": "1.0"}
    if plan.temperature > 0:
        notes.append(
            "It accepts a draft token with the target's probability of it, as `ratio` does for "
            "guesses without a distribution: expect fewer accepted tokens than predicted here."
        )
    words = [word for name, value in flags.items() for word in (f"--speculative-{name}", value)]
    return Export(engine, shlex.join(words), tuple(notes), command, SGLANG_LOSSLESS)


MEASURED_HERE = (
    "The speed-up was predicted for Forerun on this machine; another engine has other costs."
)
EXPERIMENTAL = (
    "Its method custom_class is experimental: V1 runner, no asynchronous scheduling; Forerun must "
    "be installed beside vLLM.  Its own methods ngram and suffix guess in other ways."
)
OWN_TEXT = (
    'Guesses come from a request\'s own text; "remember": true adds the texts of other requests, '
    "whoever sent them."
)
NO_MATCH = "It has no rule like `match`: the distribution is kept, the text of a seed is not."

VLLM_LOSSLESS = (
    'Lossless: rejection_sample_method "standard".  "block" is not, over several rounds (seen in '
    '0.32.0: coins are met again), and "synthetic" is for benchmarks.',
    "It refuses min_p and logit_bias while it speculates.",
)
PROBABILISTIC = (
    'draft_sample_method "probabilistic" is lossless from 0.32.0 on; versions from April to August '
    "2026 drew drafts and corrections from the same noise."
)
SGLANG_LOSSLESS = (
    "Lossless: both thresholds 1.0, as written here.  Lower ones accept tokens that the target "
    "would not have sampled.",
)


def _head_folder(drafter: Heads) -> tuple[str, list[str]]:
    """The folder of an EAGLE-3 head, and how to make it where the head is one of ours."""
    name, _, place = drafter.name.partition(":")
    if name == "eagle3":
        return place, []
    folder = f"{place or 'heads'}/eagle3"
    command = shlex.join(
        ["forerun", "export", place or name, "--format", "eagle3", "--out", folder]
    )
    return folder, [f"Write the head first: {command}"]


def _nothing(engine: str, plan: SpeculationPlan) -> Export:
    return Export(engine, None, (f"It has no drafter like {_name(plan.drafter)}.",))


def _name(drafter: Drafter | None) -> str:
    return "none" if drafter is None else drafter.name
