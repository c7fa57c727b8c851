"""Generates many texts at once, to collect a target's answers by the million tokens.

The engine runs Python code for each token of each request. Here all rows share one static cache and
one pass that also chooses the tokens, and a GPU replays it as a captured graph. Each row attends
only to its own text. The host checks the rows once every few passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from forerun.models.attention import attention_mask, layer_kinds
from forerun.models.forward import without_cudnn_attention

ATTENTION = "forerun_slots"
BLOCK = 64  # slots that the kernel reads at a time


def slot_attention(
    module: Any,
    query: Tensor,  # (R, H, N, d)
    key: Tensor,  # (R, KV, S, d)
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention that reads shared heads once instead of copying them for each query head."""
    window: int = kwargs.get("sliding_window") or key.shape[2]  # told besides the mask
    is_windowed = window < key.shape[2]
    if query.shape[2] > 1 or key.shape[2] == 1:
        mask = _window_mask(key.shape[2], window, query.device) if is_windowed else None
        prompt_output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        return prompt_output.transpose(1, 2).contiguous(), None
    positions = kwargs.get("position_ids")  # (R, 1), from models that hand them down
    if positions is not None and not is_windowed and _has_kernel(query):
        return by_kernel(query, key, value, positions, scaling), None
    grouped = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])  # one token per row
    scores = (grouped @ key.transpose(2, 3)).float() * scaling + attention_mask
    attended = scores.softmax(-1).to(value.dtype) @ value
    return attended.reshape(query.shape[0], 1, query.shape[1], query.shape[3]), None


def _window_mask(length: int, window: int, device: Any) -> Tensor:
    """Which keys each token sees in a sliding window, its own included, (length, length)."""
    at = torch.arange(length, device=device)
    return (at <= at[:, None]) & (at > at[:, None] - window)


def by_kernel(
    query: Tensor,  # (R, H, 1, d)
    key: Tensor,  # (R, KV, S, d)
    value: Tensor,
    positions: Tensor,  # (R, 1)
    scaling: float,
) -> Tensor:
    """Attention (R, 1, H, d) by a kernel that reads only the slots up to each row's position."""
    import triton

    from forerun.gpu.kernels.attention import attend

    num_rows, num_heads, _, size = query.shape
    _, num_shared, num_slots, _ = key.shape
    group = triton.next_power_of_2(num_heads // num_shared)
    output = torch.empty((num_rows, 1, num_heads, size), dtype=query.dtype, device=query.device)
    rows, segments, floats, integers = _constants(num_rows, query.device)
    attend[(num_shared, 1, num_rows)](
        query.reshape(num_rows, -1), key, value, output, floats, floats, integers, rows,
        positions.reshape(-1), integers, integers, segments, None, rows, 1, scaling, 0.0, 0, 0,
        H=num_heads, KV=num_shared, G=num_heads // num_shared, GP=group, HD=size,
        HP=max(16, triton.next_power_of_2(size)), MQ=max(1, 16 // group), CHUNK=num_slots,
        BLOCK=BLOCK, SINKS=False, CAPPED=False, WINDOW=False, TREE=False, ADDS=False,
        PDL=False, num_warps=4, num_stages=3,
    )  # fmt: skip  # a row is its only page
    return output


@lru_cache(maxsize=4)
def _constants(num_rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tensors that never change: row numbers, segments of one token each, and placeholder memory
    that the kernel does not use here."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=device)
    segments = torch.stack((rows, torch.ones_like(rows)), 1).contiguous()
    return rows, segments, torch.zeros(1, device=device), rows.new_zeros(1)


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _has_kernel(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and _has_triton()


AttentionInterface.register(ATTENTION, slot_attention)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Within the context, the model uses `slot_attention`."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        with torch.inference_mode(), without_cudnn_attention():
            yield
    finally:
        config._attn_implementation = before


MOST_PREFILLED = 32_768  # tokens of one pass over new texts, padding included
WARM_UP = 3  # passes before a graph is captured


@dataclass(frozen=True)
class RowTask:
    """A text for a row to continue, and its sampling options."""

    row: int
    tokens: Sequence[int]  # the text so far; the row may already hold its beginning
    temperature: float
    limit: int  # length of the text at which the row stops


class Slots:
    """The rows of one target; each continues one text."""

    def __init__(
        self, model: Any, num_rows: int, context: int, endings: Sequence[int], seed: int
    ) -> None:
        self.model, self.num_rows, self.context = model, num_rows, context
        device = model.device
        config = model.config.get_text_config(decoder=True)
        torch.manual_seed(seed)
        self._kinds = list(dict.fromkeys(layer_kinds(model) or ()))
        self._cache = SlotCache(config.num_hidden_layers, num_rows, context, device)
        self._all = torch.arange(num_rows, device=device)
        self._text = torch.zeros((num_rows, context), dtype=torch.long, device=device)
        self._known = torch.ones(num_rows, dtype=torch.long, device=device)  # given or written
        self._limit = torch.full((num_rows,), context, dtype=torch.long, device=device)
        self._temperature = torch.ones(num_rows, device=device)
        self._is_done = torch.ones(num_rows, dtype=torch.bool, device=device)
        self._is_ending = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
        self._is_ending[list(endings)] = True
        self._graph: Any = None
        self._passes = 0

    @property
    def _position(self) -> Tensor:
        """The position of the next token to feed in each row, (rows,)."""
        return self._cache.position

    def put(self, tasks: Sequence[RowTask], *, fresh: bool) -> None:
        """Assign texts to rows. fresh: the texts are new, and do not extend those that the rows
        hold."""
        if not tasks:
            return
        device = self._text.device
        rows = torch.tensor([task.row for task in tasks], device=device)
        table = torch.zeros((len(tasks), self.context), dtype=torch.long)
        for index, task in enumerate(tasks):
            table[index, : len(task.tokens)] = torch.tensor(task.tokens)
        lengths = torch.tensor([len(task.tokens) for task in tasks])
        self._text[rows] = table.to(device)
        self._known[rows] = lengths.to(device)
        self._limit[rows] = torch.tensor([task.limit for task in tasks], device=device)
        self._temperature[rows] = torch.tensor(
            [task.temperature for task in tasks], dtype=torch.float32, device=device
        )
        self._is_done[rows] = False
        if fresh:
            self._prefill(rows, table, lengths)

    def advance(self, num_passes: int) -> None:
        """Generate up to `num_passes` tokens in every unfinished row."""
        with attending(self.model):
            for _ in range(num_passes):
                self._replay()

    def done(self) -> dict[int, list[int]]:
        """The texts of the finished rows, by row, including the last token."""
        rows = self._is_done.nonzero()[:, 0]
        ends = (self._position[rows] + 2).tolist()
        texts = self._text[rows].tolist()
        return {row: text[:end] for row, text, end in zip(rows.tolist(), texts, ends, strict=True)}

    def _replay(self) -> None:
        """Run one pass; on a GPU, after WARM_UP passes, as a captured graph."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._pass()
        self._passes += 1
        if self._text.is_cuda and self._passes == WARM_UP:
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._pass()
            # Capturing runs nothing, so no row has moved.

    def _pass(self) -> None:
        """Feed one token per row and choose the next one, which is written unless the text already
        has it."""
        at = self._position
        mask = attention_mask(self._kinds, at[:, None], 0, self.context, torch.float32)
        logits = (
            self.model(
                input_ids=self._text.gather(1, at[:, None]),
                position_ids=at[:, None],
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
            )
            .logits[:, 0]
            .float()
        )
        arrivals = torch.empty_like(logits).exponential_().clamp_min_(1e-20).log_()
        chosen = (logits - self._temperature[:, None] * arrivals).argmax(-1)  # 0 is greedy
        after = at + 1
        written = self._text.gather(1, after[:, None])[:, 0]
        is_given = after < self._known
        keeps = is_given | self._is_done
        token = torch.where(keeps, written, chosen)
        self._text.scatter_(1, after[:, None], token[:, None])
        stops = ~is_given & (self._is_ending[token] | (after + 1 >= self._limit))
        self._is_done |= stops
        at.copy_(torch.where(self._is_done, at, after))

    def _prefill(self, rows: Tensor, table: Tensor, lengths: Tensor) -> None:
        """Store all but the last token of new texts; texts of similar length share a pass."""
        self._position[rows] = (lengths - 1).to(rows.device)
        order = lengths.argsort()
        start = 0
        with attending(self.model):
            while start < len(order):
                end = start + 1
                while (
                    end < len(order) and (end + 1 - start) * lengths[order[end]] <= MOST_PREFILLED
                ):
                    end += 1
                group = order[start:end]
                width = int(lengths[group[-1]]) - 1
                if width > 0:
                    ids = table[group, :width].to(rows.device)
                    self._cache.fresh = rows[group.to(rows.device)]
                    self.model.base_model(
                        input_ids=ids,
                        position_ids=torch.arange(width, device=rows.device).expand(len(group), -1),
                        attention_mask=torch.zeros((1, 1, 1, 1), device=rows.device),
                        past_key_values=self._cache,
                        use_cache=True,
                    )
                    self._cache.fresh = None
                start = end


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values (rows, heads, slots, head size), all allocated at once."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        cache = self.cache
        self.keys, self.values = (
            new.new_zeros((cache.num_rows, new.shape[1], cache.context, new.shape[3]))
            for new in (key_states, value_states)
        )
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write one new token per row, and return the keys and values of the whole layer. While new
        texts are being stored (`cache.fresh`), write these whole instead, and return only their own
        keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self.cache
        if cache.fresh is not None:
            width = key_states.shape[2]
            self.keys[cache.fresh, :, :width] = key_states
            self.values[cache.fresh, :, :width] = value_states
            return key_states, value_states
        self.keys[cache.rows, :, cache.position] = key_states[:, :, 0]
        self.values[cache.rows, :, cache.position] = value_states[:, :, 0]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.context, 0

    def get_max_length(self) -> int:
        return self.cache.context

    get_max_cache_shape = get_max_length  # what earlier transformers 5 call it


class SlotCache(Cache):  # type: ignore[misc]
    """All layers, and the position of each row."""

    def __init__(self, num_layers: int, num_rows: int, context: int, device: Any) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])
        self.num_rows, self.context = num_rows, context
        self.rows = torch.arange(num_rows, device=device)
        self.position = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.fresh: Any = None  # (R,): rows whose texts are being stored, or None
