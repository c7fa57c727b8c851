"""Self-distillation: the drafter learns to predict the target's distributions along the target's
own texts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from forerun.base.errors import InputError, explain
from forerun.train.course import Course
from forerun.train.held_out import HeldOutFigures, measure
from forerun.train.shards import Spoken, epoch
from forerun.train.teacher import Batch

WARM_UP = 0.02  # of the budget
MUON_RATE = 2.0  # times the rate of AdamW


def usual_optimiser(device: str) -> str:
    """The default optimiser: Muon, or AdamW on CPUs without bfloat16 products, where Muon would
    take many times as long."""
    return "muon" if device != "cpu" or _has_bfloat16_products() else "adamw"


def _has_bfloat16_products() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # this build of torch has no oneDNN
        return False


class Optimiser:
    """The optimisers for all parameters. The learning rate rises for 2% of the budget, then falls
    linearly to 0."""

    def __init__(self, network: Any, rate: float, *, muon: bool) -> None:
        self.rate = rate
        named = dict(network.named_parameters())
        inner = [p for name, p in named.items() if p.ndim == 2 and name != "head.weight"]
        others = [p for name, p in named.items() if p.ndim != 2 or name == "head.weight"]
        self.parts: list[Any] = []
        self.rates: list[float] = []  # of each part, as a multiple of the rate of AdamW
        if muon and hasattr(torch.optim, "Muon"):
            self.parts.append(
                torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
            )
            self.rates.append(MUON_RATE)
        else:
            others += inner
        self.parts.append(torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.01))
        self.rates.append(1.0)
        self.parameters = list(named.values())

    def step(self, share: float) -> None:
        """Apply and clear the gradients. share: how much of the budget is spent."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = self.rate * min(1.0, share / WARM_UP) * max(0.0, 1 - share)
        for part, times in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * times
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[Any]:
        """The state of all optimisers, to be saved."""
        return [part.state_dict() for part in self.parts]

    def restore(self, state: list[Any]) -> None:
        """Continue from a saved state."""
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Within the context, Ctrl-C takes effect only when the yielded function is called, so that
    training steps are not interrupted.

    A second Ctrl-C takes effect at once.
    """
    pressed: list[int] = []

    def remember(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    def let_through() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield let_through
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, before)


STATE = "state.pt"
SAVE_EVERY = 60.0  # seconds


def steps_of(folder: Path) -> int:
    """The number of training steps that a run's folder has saved."""
    file = folder / STATE
    if not file.exists():
        return 0
    return int(torch.load(file, map_location="cpu", weights_only=True)["progress"]["steps"])


@dataclass
class TrainingProgress:
    """How far a training run is; together with the weights, this is all that resuming needs."""

    steps: int = 0
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0  # of that epoch, the next one
    tokens: int = 0  # trained on, prompts and repetitions included
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingBudget:
    """The limits that end a run, and the seconds after which this call pauses."""

    seconds: float | None
    steps: int | None
    pause_after: float | None = None

    def share(self, progress: TrainingProgress) -> float:
        """The share of the budget that is spent, 0 to 1."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(progress.seconds / self.seconds)
        if self.steps is not None:
            shares.append(progress.steps / self.steps)
        return min(1.0, max(shares))


@dataclass
class Training:
    """One training run, new or resumed."""

    course: Course
    optimiser: Optimiser
    budget: TrainingBudget
    batch_tokens: int
    seed: int
    folder: Path
    progress: TrainingProgress = field(default_factory=TrainingProgress)

    def resume(self) -> bool:
        """Load the saved state; returns whether there was one."""
        file = self.folder / STATE
        if not file.exists():
            return False
        device = self.course.network.head.weight.device
        try:
            saved = torch.load(file, map_location=device, weights_only=True)
            self.course.network.load_state_dict(saved["network"])
            self.optimiser.restore(saved["optimiser"])
            self.progress = TrainingProgress(**saved["progress"])
        except (RuntimeError, EOFError, LookupError, ValueError, UnpicklingError) as error:
            wrong = "The state of this run cannot be read, so it cannot be gone on with."
            cure = "Name another folder and use this one's answers: --from-data."
            raise InputError(explain(wrong, repr(str(file)), cure)) from error
        return True

    def save(self) -> None:
        """Write weights, optimiser and progress into the folder; the file is never left
        incomplete."""
        unfinished = self.folder / f"{STATE}.part"
        saved = {
            "network": self.course.network.state_dict(),
            "optimiser": self.optimiser.state(),
            "progress": vars(self.progress),
        }
        torch.save(saved, unfinished)
        unfinished.replace(self.folder / STATE)

    def run(
        self,
        spoken: Sequence[Spoken],
        held_out: Sequence[Spoken],
        report: Callable[[TrainingProgress, float], None],
    ) -> bool:
        """Train until the budget is spent, saving on the way. Returns False if it paused before."""
        with held_back() as let_interrupts_through:
            return self._steps(spoken, held_out, report, let_interrupts_through)

    def _steps(
        self,
        spoken: Sequence[Spoken],
        held_out: Sequence[Spoken],
        report: Callable[[TrainingProgress, float], None],
        between_steps: Callable[[], None],
    ) -> bool:
        start = saved = time.perf_counter()
        batches = epoch(spoken, self.batch_tokens, self.seed, self.progress.epoch)
        tallied = torch.zeros((), device=self.course.teacher.embedding.device)
        try:
            while (share := self.budget.share(self.progress)) < 1:
                between_steps()
                began = time.perf_counter()
                if self.budget.pause_after is not None and began - start > self.budget.pause_after:
                    return False
                if self.progress.batch >= len(batches):
                    self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                    batches = epoch(spoken, self.batch_tokens, self.seed, self.progress.epoch)
                batch = Batch.of(batches[self.progress.batch], self.course.teacher.embedding.device)
                tallied += self._step(batch, share)
                self.progress.batch += 1
                self.progress.steps += 1
                self.progress.tokens += batch.tokens.numel()
                if self.progress.steps % 20 == 0:
                    loss, tallied = float(tallied) / 20, torch.zeros_like(tallied)
                    report(self.progress, loss)
                self.progress.seconds += time.perf_counter() - began
                if time.perf_counter() - saved > SAVE_EVERY:
                    self.note(held_out)
                    self.save()
                    saved = time.perf_counter()
            return True
        finally:
            self.save()

    def note(self, held_out: Sequence[Spoken]) -> list[HeldOutFigures]:
        """Measure on held-out texts, and append the results to the history."""
        figures = measure(self.course, held_out)
        row: dict[str, float] = {
            "step": self.progress.steps,
            "seconds": round(self.progress.seconds, 1),
        }
        row |= {f"temperature {entry.temperature:g}": round(entry.mean(5), 3) for entry in figures}
        self.progress.history.append(row)
        return figures

    def _step(self, batch: Batch, share: float) -> Tensor:
        """One training step. Returns the loss, on the device."""
        loss = self.course.loss(batch, self.progress.steps)
        loss.backward()
        self.optimiser.step(share)
        return loss.detach()
