"""Finds out whether an endpoint speculates, from its metrics, its answers, or the sizes of
chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from forerun.audit.questions import Chunk
from forerun.audit.wire import Raw

COUNTERS = re.compile(
    r"^(?P<name>\w*:?(?:spec_decode_num_draft_tokens|spec_decode_num_drafts"
    r"|spec_decode_num_accepted_tokens|spec_verify_calls|n_drafted|draft_tokens)\w*)"
    r"(?:\{[^}]*\})?\s+(?P<value>[0-9.eE+-]+)",
    re.MULTILINE,
)
"""Matches counters of speculation on a metrics page. llama.cpp and forerun use vLLM's names with
their own prefixes; SGLang has a name of its own."""
GAUGE = re.compile(
    r"^sglang:spec_accept_length(?:\{[^}]*\})?\s+(?P<value>[0-9.eE+-]+)", re.MULTILINE
)
"""Matches SGLang's gauge of the mean number of accepted tokens."""
KNOWN = re.compile(r"^(?:vllm|llamacpp|sglang|forerun):", re.MULTILINE)
"""Matches metrics of servers that count speculation whenever they speculate."""
TOLD = ("drafted", "draft_n", "spec_verify_ct", "num_draft_tokens", "accepted_prediction_tokens",
        "accepted_draft_tokens_count", "draft_tokens")  # fmt: skip
"""Fields of answers that count drafted or accepted tokens, from forerun, llama.cpp, SGLang, vLLM,
OpenAI and LM Studio."""
RUN_GAP = 0.1
"""A chunk belongs to a run if it follows within this fraction of the usual time between chunks."""


@dataclass(frozen=True)
class Speculation:
    """Whether an endpoint speculates (is_on, None if unknown), and how that is known."""

    is_on: bool | None
    reason: str


def counters(raw: Raw) -> dict[str, float] | None:
    """The counters about speculation on a metrics page; None if there is no such page."""
    if raw.status != 200 or not isinstance(raw.body, str):
        return None
    totals: dict[str, float] = {}
    for match in COUNTERS.finditer(raw.body):
        totals[match["name"]] = totals.get(match["name"], 0.0) + float(match["value"])
    for match in GAUGE.finditer(raw.body):
        totals["sglang:spec_accept_length"] = float(match["value"])
    if not totals and KNOWN.search(raw.body):
        totals["a counter of speculation"] = 0.0
    return totals


def told(extras: Mapping[str, Any]) -> tuple[str, float] | None:
    """The name and value of a field in an answer that counts drafted tokens; None if there is
    none."""
    for name, value in _fields(extras):
        if name in TOLD and isinstance(value, int | float):
            return name, float(value)
    return None


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All fields of an answer with their names, at any depth."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _fields(inner)


def judge(
    before: Mapping[str, float] | None,
    after: Mapping[str, float] | None,
    fields: tuple[str, float] | None,
    streams: Sequence[Sequence[Chunk]],
) -> Speculation:
    """Decide whether the endpoint speculates, by the most reliable source available.

    before, after: counters around some long answers.
    fields: what an answer reported about drafts.
    streams: the chunks of streamed answers.
    """
    if fields is not None and fields[1] > 0:
        return Speculation(True, f"an answer says {fields[0]} = {fields[1]:g}")
    if before is not None and after:
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        name, value = max(grown.items(), key=lambda item: item[1])
        if value > 0:
            return Speculation(True, f"{name} of /metrics grew by {value:g}")
        return Speculation(False, f"{name} of /metrics did not grow while text was generated")
    if fields is not None:
        return Speculation(False, f"an answer says {fields[0]} = 0")
    return _by_chunks(streams)


def _by_chunks(streams: Sequence[Sequence[Chunk]]) -> Speculation:
    """Judge by how tokens arrive: several in a chunk, or chunks in quick succession."""
    sizes = [chunk.num_tokens for chunks in streams for chunk in chunks if chunk.num_tokens]
    if len(sizes) >= 4 and sum(size > 1 for size in sizes) >= 2:
        mean = sum(sizes) / len(sizes)
        return Speculation(True, f"streams bring {mean:.1f} tokens a chunk: it looks like it")
    gaps = [
        later.seconds - earlier.seconds for chunks in streams for earlier, later in pairwise(chunks)
    ]
    if len(gaps) < 12:
        return Speculation(None, "no counters, nothing told, and too few chunks to time")
    usual = sorted(gaps)[int(0.8 * len(gaps))]
    runs = sum(gap < RUN_GAP * usual for gap in gaps)
    if usual > 0.002 and runs >= 0.3 * len(gaps):
        share = runs / len(gaps)
        return Speculation(True, f"{share:.0%} of chunks come in runs: it looks like it")
    words = f"no counters; chunks come one by one, {1e3 * median(gaps):.0f} ms apart"
    return Speculation(None, words)
