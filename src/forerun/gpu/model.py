"""A transformers model that runs on the lean GPU pass, as a `LanguageModel`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from forerun.base.capturing import LOCK as CAPTURES
from forerun.base.errors import UnsupportedError, explain
from forerun.gpu.inference import inference
from forerun.gpu.pool import MOST_ROWS, SLACK, DeviceMemoryError, DevicePages, Pool
from forerun.gpu.rows import GpuRows
from forerun.gpu.storage import Storage
from forerun.gpu.weights import Weights, places, take, unfit
from forerun.models.base import (
    GpuPass,
    Kept,
    NotPickled,
    Parents,
    check_copy,
    check_layers,
    check_score,
    check_truncate,
    check_watched,
)
from forerun.models.families import rotary_of
from forerun.models.first_layers import FirstLayers, check_depth
from forerun.models.huggingface import HuggingFaceModel
from forerun.models.rounded import Bits
from forerun.models.trial_results import LOCK, Findings, findings_of

TRIAL_PAGES = 16
"""The number of pages of a model on trial, whose results are compared before it is used."""


@dataclass
class DevicePass:
    """The parts that all wrappers of one model share; they hold no reference to the model."""

    weights: Weights
    places: tuple[int, ...]  # where the parameters lie of which these are views
    pool: Pool
    kv_dtype: str | None = None  # of the pool
    idle: list[Storage] = field(default_factory=list)  # of engines that are gone
    reproduces: bool | None = None  # the model; None: not tried yet

    def is_of(self, model: Any) -> bool:
        """Whether the model still has these weights."""
        return self.places == places(model)


class GpuModel(NotPickled, GpuPass):
    """Scores like the model it was made from, within the rounding of its precision.

    The weights are the model's own: its linear layers become views of larger matrices and go on
    working.  A token's logits are the same bits whatever shares its pass.

    kv_dtype: "float8" keeps keys and values as the nearest numbers of 8 bits (e4m3, of scale 1, up
        to 448).  That is lossy: the logits are those of another model, which keeps all promises.
    """

    why_not_lean = ""

    def __init__(
        self, model: Any, tokenizer: Any = None, kv_dtype: Literal["float8"] | None = None
    ) -> None:
        self.findings = findings_of(model)
        if reason := unfit(model):
            raise UnsupportedError(
                explain(
                    f"The lean GPU pass does not fit this model: {reason}.",
                    type(model).__name__,
                    "Use the plain path: lean=False.",
                )
            )
        made = self.findings.device_pass
        if made is None or not made.is_of(model) or made.kv_dtype != kv_dtype:
            weights = take(model)
            pool = _pool(model, weights, kv_dtype)
            self.findings.device_pass = DevicePass(weights, places(model), pool, kv_dtype)
        self._pass: DevicePass = self.findings.device_pass
        self._weights = self._pass.weights
        self.model = model
        self.tokenizer = tokenizer
        self.name: str = model.config.name_or_path or type(model).__name__
        self.vocab_size: int = model.config.vocab_size
        self.max_context: int | None = model.config.max_position_embeddings
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        self.scores_trees = True
        self.compute_dtype = str(model.dtype).removeprefix("torch.")

    def on_trial(self, num_pages: int = TRIAL_PAGES, *, is_lossless: bool = False) -> GpuModel:
        """A copy of this model that has a few pages of its own, for a trial. The final pool is made
        only when all models that share the device are there.

        is_lossless: keep keys and values in the precision of the model.
        """
        other, weights = copy(self), self._weights
        kv_dtype = None if is_lossless else self.kv_dtype
        small = _pool(self.model, weights, kv_dtype, num_pages)
        other._pass = DevicePass(weights, self._pass.places, small, kv_dtype)
        return other

    def expect_rows(self, memory: float | int | None) -> None:
        """Announce that the model will be used.

        memory: how much of the device this process may fill, weights included: a share, or bytes;
            None: the pool of pages decides.
        """
        self._pass.pool.start(memory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.pass_name})"

    @property
    def device(self) -> Any:
        return self._weights.head.device

    @property
    def identity(self) -> Findings:
        """The key of what is learned about the model; it is equal for wrappers of one model."""
        return self.findings

    @property
    def pass_name(self) -> str:
        """A description of the pass that runs."""
        said = f"lean GPU pass, {self.compute_dtype}, {self.device}"
        rounded = f", keys and values rounded to {self.kv_dtype} (lossy)"
        return said if self.kv_dtype is None else said + rounded

    @property
    def kv_dtype(self) -> str | None:
        """The 8-bit format that keys and values are rounded to; None if they have the model's
        precision."""
        return self._pass.kv_dtype

    @property
    def num_tokens_free(self) -> int | None:
        """The number of further tokens whose keys and values fit into memory."""
        if self.device.type != "cuda":
            return None
        return self._pass.pool.num_unused * self._pass.pool.size

    @property
    def num_tokens_expected(self) -> int | None:
        """Like `num_tokens_free`, if no other model shared the device; takes no memory."""
        if self.device.type != "cuda":
            return None
        return self._pass.pool.num_expected * self._pass.pool.size

    @property
    def room(self) -> str:
        """A phrase on the memory for texts, and on what is reserved besides, for messages."""
        return self._pass.pool.room

    @inference
    def start(self, num_rows: int, capacity: int = 0) -> GpuRows:
        storage = self._storage(num_rows)
        storage.pages.pool.start()
        rows = GpuRows(storage, num_rows, capacity)
        weakref.finalize(rows, _keep, self._pass.idle, storage)
        return rows

    @inference
    def score(
        self,
        state: GpuRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        return state.score(rows, tokens, num_logits, parents)

    @inference
    def commit(self, state: GpuRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        state.commit(rows, kept)

    @inference
    def release(self, state: GpuRows, row: int) -> None:
        state.release(row)

    @inference
    def fresh(self, text: Sequence[int]) -> Any:
        """Logits (V,) after a text, computed from scratch by transformers with the same weights, or
        by the pass where keys and values are rounded."""
        if self.kv_dtype is not None:
            return self.score(self.start(1, len(text)), [0], [text], [1])[0, 0]
        ids = torch.tensor([list(text)], device=self.device)
        return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()

    @inference
    def copy_prefix(self, state: GpuRows, source: int, row: int, length: int) -> int:
        check_copy(state.lengths, source, row, length)
        return state.copy_prefix(source, row, length)

    @inference
    def truncate(self, state: GpuRows, row: int, length: int) -> int:
        check_truncate(state.lengths, row, length)
        return state.truncate(row, length)

    def longest(self, state: GpuRows) -> int:
        pool = self._pass.pool
        pool.make()
        return min(pool.longest, (pool.num_pages - 1) * pool.size) - SLACK

    def reserve(self, state: GpuRows, row: int, length: int) -> bool:
        end = length + SLACK
        return state.has(row, state.lengths[row], end) or self._reserve(state, row, end)

    @inference
    def _reserve(self, state: GpuRows, row: int, end: int) -> bool:
        try:
            state.reserve(row, state.lengths[row], end)
        except DeviceMemoryError:
            return False
        return True

    def rest(self, state: GpuRows, row: int) -> None:
        state.storage.pages.rest(row, state)

    @inference
    def watch(self, state: GpuRows, layers: Sequence[int]) -> None:
        """Keep hidden states of everything that is scored from now on; 0 is the embedding."""
        check_layers(layers, self.num_layers)
        state.watch(layers)

    def watched(self, state: GpuRows, row: int) -> Any:
        check_watched(bool(state.layers), row)
        return state.kept[row]

    def first_layers(self, state: GpuRows, num_layers: int) -> FirstLayers:
        """A model of the first layers under the model's own head, which scores on the given
        rows."""
        check_depth(self.name, self.num_layers, num_layers)
        return FirstLayers(self, num_layers, state, state.shallow(num_layers))

    @property
    def is_routed(self) -> bool:
        """Whether a change in the last bits may choose another expert."""
        return "experts" in self._weights.form.features

    @property
    def decides_on_device(self) -> bool:
        """Whether its logits can be judged on the device that computed them."""
        return True

    def rounded(self, bits: Bits) -> HuggingFaceModel:
        """A copy with linear weights of 8 or 4 bits, run by transformers."""
        return HuggingFaceModel(self.model, self.tokenizer).rounded(bits)

    def _storage(self, num_rows: int) -> Storage:
        """The storage of an earlier engine with its captured passes, or a new one."""
        with LOCK:
            for storage in reversed(self._pass.idle):
                if storage.pages.num_rows >= num_rows:
                    self._pass.idle.remove(storage)
                    break
            else:
                pages = DevicePages(self._pass.pool, max(num_rows, MOST_ROWS))
                return Storage(self._weights, pages, self._pass)
        if self.device.type == "cuda":  # its last round may still run on another stream
            with CAPTURES:  # which waiting for the device would break
                torch.cuda.synchronize(self.device)
        storage.forget_drafters()
        storage.pages.restart()
        storage.watch(())
        return storage


def _pool(model: Any, weights: Weights, kv_dtype: str | None, given: int | None = None) -> Pool:
    angles = partial(_angles, *rotary_of(model))  # holds no whole model
    return Pool(weights, angles, model.config.max_position_embeddings, given, kv_dtype)


def _angles(frequencies: Any, factors: list[float], slots: int) -> tuple[Any, Any]:
    """Cosines and sines (tables, slots, turned dimensions / 2) of a model's rotary tables."""
    places = torch.arange(slots, device=frequencies.device).float()
    turns = places[:, None] * frequencies[:, None]
    scales = torch.tensor(factors, device=turns.device)[:, None, None]
    return turns.cos() * scales, turns.sin() * scales


def _keep(idle: list[Storage], storage: Storage) -> None:
    """Keep the storage of an engine whose rows are gone, for the next engine."""
    storage.pages.clear()
    idle.append(storage)  # without a lock: this may run wherever garbage is collected
