"""The folder of a run: its target and options, and the model card of the trained drafter.

A folder can only be resumed by the same run. A run may begin with another drafter's weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.files import Trained, load
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.fitting import load_shipped
from forerun.train.held_out import LENGTHS, HeldOutFigures
from forerun.train.training import TrainingProgress


def card(
    target: str,
    design: Design,
    progress: TrainingProgress,
    figures: Sequence[HeldOutFigures],
    facts: Mapping[str, str],
) -> str:
    """The model card as Markdown; `facts` are extra rows of its first table."""
    rows = {
        "target": target,
        "reads the hidden states after layers": ", ".join(map(str, design.layers)),
        "draft vocabulary": f"{design.num_tokens:,} tokens",
        **facts,
        "steps": f"{progress.steps:,}",
        "tokens trained on": f"{progress.tokens / 1e6:.1f} million, repetitions included",
        "seconds of training": f"{progress.seconds:.0f}",
    }
    lines = [f"# A drafter for {target}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += ["", "## Tokens per round on held-out prompts", ""]
    lines += [
        "Emitted tokens over rounds of a chain of K guesses under the rule `match`, on the",
        "target's own answers; the round that reads the prompt is not counted.",
    ]
    for entry in figures:
        lines += ["", f"Temperature {entry.temperature:g}:", ""]
        lines += ["| group | " + " | ".join(f"K = {length}" for length in LENGTHS) + " |"]
        lines += ["|---" * (len(LENGTHS) + 1) + "|"]
        for group, row in entry.by_group.items():
            lines += [f"| {group} | " + " | ".join(f"{value:.2f}" for value in row) + " |"]
        means = " | ".join(f"{entry.mean(length):.2f}" for length in LENGTHS)
        lines += [f"| mean of the groups | {means} |"]
    lines += ["", "## While it trained", "", "K = 5, mean of the groups.", ""]
    names = list(progress.history[-1]) if progress.history else []
    lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"] if names else []
    lines += [f"| {' | '.join(str(v) for v in row.values())} |" for row in progress.history]
    return "\n".join(lines) + "\n"


RUN, DATA, HELD_OUT = "run.json", "data", "held-out.npz"


def open_run(folder: Path, target: Fingerprint, settings: dict[str, Any]) -> None:
    """Start a run in an empty folder, or resume the same run; refuse any other folder."""
    file = folder / RUN
    if not file.exists():
        if folder.is_dir() and any(folder.iterdir()):
            wrong = "The output folder holds something that is not a training run."
            raise InputError(explain(wrong, repr(str(folder)), "Name a new or empty folder."))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(file, {"target": target.to_dict(), "settings": settings})
        except OSError as error:
            wrong = f"The output folder cannot be written to ({error.strerror})."
            cure = "Name one that you may write to."
            raise InputError(explain(wrong, repr(str(folder)), cure)) from error
        return
    run = _read(file)
    theirs = Fingerprint.from_dict(run["target"])
    try:
        theirs.check(target)
    except UnsupportedError as error:
        wrong = f"The output folder holds a run for {theirs.name}, not for {target.name}."
        raise InputError(explain(wrong, repr(str(folder)), "Name another folder.")) from error
    known = run["settings"]
    changed = [name for name in settings if known.get(name, settings[name]) != settings[name]]
    if changed:
        wrong = "The output folder holds a run that was started with other options."
        received = ", ".join(f"{name} {settings[name]!r}, was {known[name]!r}" for name in changed)
        cure = "Use the same options to go on with it, or name another folder."
        raise InputError(explain(wrong, received, cure))
    _write(file, {**run, "settings": {**known, **settings}})


def check_data(folder: Path, target: Fingerprint) -> None:
    """Refuse answers that were collected from another target."""
    if not (folder / RUN).exists():
        wrong = "There are no collected answers there."
        cure = "Name a folder that `forerun train --data-only --out` wrote."
        raise InputError(explain(wrong, repr(str(folder)), cure))
    theirs = Fingerprint.from_dict(_read(folder / RUN)["target"])
    try:
        theirs.check(target)
    except UnsupportedError as error:
        wrong = f"The answers were collected from {theirs.name}, not from {target.name}."
        cure = "Collect answers of your own target."
        raise InputError(explain(wrong, repr(str(folder)), cure)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {"target": content["target"], "settings": content["settings"]}
    except (OSError, ValueError, LookupError) as error:
        wrong = f"The description of a run cannot be read ({error})."
        raise InputError(explain(wrong, repr(str(file)), "Name another folder.")) from error


def _write(file: Path, content: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(file)


SHIPPED, PREFIX = "heads", "heads:"
SAME = (
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "mlp_size",
    "layers",
    "rope_theta",
    "num_layers",
)
"""The fields of a design that must agree for weights to be reusable."""


@dataclass(frozen=True)
class Beginning:
    """The drafter with whose weights a training run begins."""

    name: str
    trained: Trained

    @classmethod
    def named(cls, name: str) -> Beginning:
        """The drafter with this name: `heads` for the one shipped with Forerun, else a folder or
        hub name, with or without `heads:` before it."""
        return cls(name, load_shipped() if name == SHIPPED else load(name.removeprefix(PREFIX)))

    def check(self, target: Fingerprint, design: Design) -> None:
        """Refuse a drafter of another target, or of other sizes than the network to train."""
        self.trained.target.check(target)
        theirs = self.trained.design
        if theirs.kind != design.kind:
            wrong = (
                f"The drafter to start from is of the kind {theirs.kind}, and not {design.kind}."
            )
            cure = f"Give --kind {theirs.kind}, or start from another."
            raise InputError(explain(wrong, repr(self.name), cure))
        if theirs.num_tokens > design.num_tokens:
            wrong = f"The drafter to start from has a draft vocabulary of {theirs.num_tokens}."
            cure = "Give --draft-vocab at least that size, or leave it out."
            raise InputError(explain(wrong, f"--draft-vocab {design.num_tokens}", cure))
        for name in SAME:
            size, expected = getattr(theirs, name), getattr(design, name)
            if size != expected:
                wrong = f"The drafter to start from has another {name}."
                received = f"{size} in {self.name!r}, {expected} to be trained"
                cure = "Start from a drafter of the same sizes, or without --start-from."
                raise InputError(explain(wrong, received, cure))

    def fill(self, network: Any, tokens: NDArray[np.int64]) -> None:
        """Copy its weights into the network. Draft tokens (Vd,) that it did not have keep their row
        of the head."""
        weights = {name: torch.from_numpy(w) for name, w in self.trained.weights.items()}
        _, places, sources = np.intersect1d(
            tokens, self.trained.tokens, assume_unique=True, return_indices=True
        )
        head: Tensor = network.head.weight.detach().cpu().clone()
        head[places] = weights["head.weight"][sources]
        network.load_state_dict({**weights, "head.weight": head})
