"""A plan as options of the engine that will run it: our own command, vLLM, SGLang.

The option names come from vLLM's `vllm/config/speculative.py` and SGLang's page on speculative
decoding, both of summer 2026.  Neither engine has a counterpart for `match` or for every drafter.
Notes say what differs; where nothing corresponds, there is no export.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from forerun.drafters.base import Drafter
from forerun.drafters.model import Model
from forerun.drafters.ngram import NGram
from forerun.measure.planner import SpeculationPlan


@dataclass(frozen=True)
class Export:
    """Arguments for an engine, and notes; `arguments` is None if it has no counterpart."""

    engine: str
    arguments: str | None
    notes: tuple[str, ...] = ()


def exports(plan: SpeculationPlan) -> list[Export]:
    """The plan for each supported engine."""
    return [for_forerun(plan), for_vllm(plan), for_sglang(plan)]


def for_forerun(plan: SpeculationPlan) -> Export:
    """Flags of `forerun generate`."""
    if plan.choice is None or plan.drafter_name is None:
        return Export("forerun generate", "--drafter none")
    words = ["--drafter", plan.drafter_name, "--draft-length", str(plan.choice.draft_length)]
    words += [] if plan.choice.tree is None else ["--tree", str(plan.choice.tree)]
    words += [] if plan.choice.rule == "match" else ["--rule", plan.choice.rule]
    return Export("forerun generate", shlex.join(words))


def for_vllm(plan: SpeculationPlan) -> Export:
    """The argument of `--speculative-config`, which is also `LLM(speculative_config=...)`."""
    if plan.choice is None:
        return Export("vllm serve", "", ("Leave --speculative-config out.",))
    if plan.choice.tree is not None:
        return Export("vllm serve", None, ("It verifies chains only; plan without trees.",))
    config: dict[str, object] = {"num_speculative_tokens": plan.choice.draft_length}
    notes = [MEASURED_HERE]
    drafter, rule = plan.drafter, plan.choice.rule
    if isinstance(drafter, NGram):
        config |= {
            "method": "ngram",
            "prompt_lookup_max": drafter.max_n,
            "prompt_lookup_min": drafter.min_n,
        }
    elif isinstance(drafter, Model):
        config |= {"method": "draft_model", "model": plan.drafter_name}
        if plan.temperature > 0:
            config["draft_sample_method"] = "probabilistic"
            notes += [NO_MATCH] if rule == "match" else []
        if rule == "block":
            config["rejection_sample_method"] = "block"
    elif _name(drafter) == "suffix":
        config["method"] = "suffix"
        notes.append("It remembers the answers of earlier requests too, in its own way.")
    else:
        return _nothing("vllm serve", plan)
    return Export("vllm serve", f"--speculative-config '{json.dumps(config)}'", tuple(notes))


def for_sglang(plan: SpeculationPlan) -> Export:
    """Flags of `python -m sglang.launch_server`."""
    if plan.choice is None:
        return Export("sglang", "", ("Leave --speculative-algorithm out.",))
    if plan.choice.tree is not None:
        return Export("sglang", None, ("Its trees are of another shape; plan without trees.",))
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
        return _nothing("sglang", plan)
    if plan.temperature > 0:
        notes.append(
            "It accepts a draft token with the target's probability of it, as `ratio` does for "
            "guesses without a law: expect fewer accepted tokens than predicted here."
        )
    words = [word for name, value in flags.items() for word in (f"--speculative-{name}", value)]
    return Export("sglang", shlex.join(words), tuple(notes))


MEASURED_HERE = (
    "The speed-up was predicted for Forerun on this machine; another engine has other costs."
)
NO_MATCH = "It has no rule like `match`: the law is kept, the text of a seed is not."


def _nothing(engine: str, plan: SpeculationPlan) -> Export:
    return Export(engine, None, (f"It has no drafter like {_name(plan.drafter)}.",))


def _name(drafter: Drafter | None) -> str:
    return "none" if drafter is None else drafter.name
