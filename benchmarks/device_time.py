"""How captured rounds spend the time of a device: noted while something else is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

from forerun.engine.plan import RoundPlan
from forerun.engine.stepwise import Decision
from forerun.gpu.rows import GpuRows
from forerun.gpu_rounds.blocks import count
from forerun.gpu_rounds.executor import Captured
from forerun.gpu_rounds.flight import Flight


class Round(NamedTuple):
    """One that has landed."""

    draft_length: int
    block: int  # tokens of prompts that it has room for
    num_lanes: int
    num_emitted: int  # tokens
    seconds: float  # since the one before it


@dataclass
class DeviceTime:
    """Rounds, and the tokens that passes of their own have read since the last one began."""

    rounds: list[Round] = field(default_factory=list)
    in_blocks: int = 0  # prompt tokens
    apart: Counter[str] = field(default_factory=Counter)  # tokens, by who reads them

    def summary(self) -> dict[str, Any]:
        """Of each kind of round: its share of all rounds and of their time, the median time of one,
        and the tokens that one emits; of those that read prompts, the tokens that one reads."""
        kinds: dict[str, list[Round]] = {}
        for made in self.rounds:
            kind = "reading" if made.block else f"drafts of {made.draft_length}"
            kinds.setdefault(kind if made.block or made.draft_length else "plain", []).append(made)
        total = sum(made.seconds for made in self.rounds)
        table: dict[str, Any] = {kind: self._row(some, total) for kind, some in kinds.items()}
        if reading := kinds.get("reading"):
            table["reading"]["read"] = round(self.in_blocks / len(reading))
            table["reading"]["room"] = round(mean(made.block for made in reading))
        return {"rounds": len(self.rounds), "seconds": round(total, 3), **table,
                "read_apart": dict(self.apart)}  # fmt: skip

    def _row(self, some: Sequence[Round], total: float) -> dict[str, Any]:
        return {
            "of_rounds": round(len(some) / len(self.rounds), 3),
            "of_time": round(sum(made.seconds for made in some) / total, 3),
            "ms": round(1e3 * median(made.seconds for made in some), 2),
            "emitted": round(mean(made.num_emitted for made in some), 1),
        }


@contextmanager
def noting_rounds(target: Any) -> Iterator[DeviceTime]:
    """Note the rounds of engines of this target meanwhile."""
    noted, decide, feed = DeviceTime(), Captured._decision, GpuRows.feed
    launch = Captured._launch

    def deciding(
        self: Captured, plan: RoundPlan, flight: Flight | None, results: Any, begin: Any, end: Any
    ) -> Decision:
        if flight is not None:
            shape, table = flight.round.shape, flight.table()
            emitted = sum(row[0] + 1 for row in table if row[0] >= 0)
            made = shape.draft_length, shape.block, shape.num_lanes, emitted, end - begin
            noted.rounds.append(Round(*made))
        return decide(self, plan, flight, results, begin, end)

    def feeding(rows: GpuRows, parts: Sequence[Any]) -> None:
        is_target = rows.storage.weights is target._weights
        noted.apart["target" if is_target else "drafter"] += count(parts)
        feed(rows, parts)

    def launching(self: Captured, *args: Any, **named: Any) -> Flight:
        parts = args[3] if len(args) > 3 else named.get("parts", ())
        before = noted.apart["target"]
        flight = launch(self, *args, **named)
        noted.in_blocks += count(parts) - (noted.apart["target"] - before)
        return flight

    names = {"_decision": deciding, "_launch": launching}
    old = {name: getattr(Captured, name) for name in names}
    try:
        for name, method in names.items():
            setattr(Captured, name, method)
        GpuRows.feed = feeding  # type: ignore[method-assign]
        yield noted
    finally:
        for name, method in old.items():
            setattr(Captured, name, method)
        GpuRows.feed = feed  # type: ignore[method-assign]
