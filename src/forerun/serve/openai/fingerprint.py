"""`system_fingerprint`: equal if a seed gives the same text, different if it may not.

It covers the weights and configuration, the default sampling options, the tokenizer with its chat
template, the pass and its arithmetic, how noise is drawn, and how grammars are read. It leaves out
the batch and the name under which the model was loaded, which cannot change a text. Drafts cannot
change it either under the rule `match`. Under other rules the drafter and the draft length are
included; if the length depends on measured times, every answer has its own fingerprint.
"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from typing import Any

import numpy as np

from forerun.base.version import __version__
from forerun.generation.intake import ending_tokens
from forerun.models.base import LanguageModel
from forerun.rules.types import DraftLength
from forerun.serve.admission.ask import Ask
from forerun.serve.openai.offer import Offer, defaults_of

NOISE = 1
"""The version of the noise. Raise it if a seed gives other noise than before; a test knows the
noise of version 1."""

UNTOLD = ("_name_or_path", "name_or_path", "transformers_version")
"""Fields of a configuration that cannot change a logit."""


class Fingerprint:
    """Computes the fingerprint of each answer; weights are read only once.

    draft_length: the server's own.
    model: the `model_digest` of a target that is in another process.
    """

    def __init__(
        self, offer: Offer, draft_length: DraftLength = "auto", model: str | None = None
    ) -> None:
        self._offer = offer
        self._draft_length = draft_length
        parts = [model or model_digest(offer.target), f"defaults {sorted(offer.defaults.items())}"]
        self._model = _digest(parts)

    def __call__(self, ask: Ask) -> str:
        return f"fp_{_digest([self._model, *self._drafting(ask)])[:16]}"

    def _drafting(self, ask: Ask) -> list[str]:
        """The settings of drafting that may change the text, as strings."""
        asked = ask.speculation
        rule = asked.rule or self._offer.rules[0]
        if rule == "match":
            return []
        drafter = asked.drafter or self._offer.drafters[0]
        if drafter == "none" or 0 in (ask.options.draft_length, self._draft_length):
            return [rule]
        if self._draft_length == "auto" or "+" in drafter:  # both follow measurements
            return [rule, secrets.token_hex(16)]
        limit = ask.options.draft_length
        length = min(self._draft_length, limit) if isinstance(limit, int) else self._draft_length
        return [rule, drafter, str(length)]


def model_digest(target: LanguageModel) -> str:
    """A digest that is equal for targets that give the same texts."""
    return _digest(_model_parts(target))


def _model_parts(target: LanguageModel) -> Iterator[str]:
    """Everything that may change this target's texts, as strings."""
    yield f"noise {NOISE}"
    yield f"llguidance {_version('llguidance')}"
    yield f"endings {ending_tokens(target)}"
    yield _tokenizer(getattr(target, "tokenizer", None))
    packed = getattr(target, "packed", None)
    if packed is not None:  # on our CPU pass, which reads nothing else
        yield from _packed_weights(packed)
        yield from arithmetic(target)
        return
    model: Any = getattr(target, "model", None)
    weights = getattr(target, "fingerprint", None)  # where they lie in several processes
    if weights is None and not hasattr(model, "state_dict"):  # a function: nothing is known of it
        yield secrets.token_hex(16)
        return
    config = model.config.to_dict()
    yield json.dumps({k: v for k, v in config.items() if k not in UNTOLD}, default=str)
    yield from _weights(model) if weights is None else [weights]
    yield from arithmetic(target)


def arithmetic(target: LanguageModel) -> list[str]:
    """The pass, and the versions and settings that its numbers may depend on. Our CPU pass does not
    use the arithmetic of torch and transformers, so their versions are left out for it."""
    kind = type(target).__name__
    dtype = str(getattr(target, "compute_dtype", ""))
    rounding = next((bits for bits in ("int8", "int4") if target.name.endswith(f"-{bits}")), "")
    told = [kind, dtype, rounding, platform.machine(), f"forerun {__version__}"]
    if kind == "LeanModel":
        import llvmlite.binding as llvm

        from forerun.lean import shape

        packages, processor = ["numba"], llvm.get_host_cpu_name()
        told.append(f"{shape.LANES} {shape.TOKENS} {shape.DOT_PRODUCTS}")
    elif kind == "GpuModel":
        packages, processor = ["torch", "triton"], _device(target)
        told.append(str(getattr(target, "kv_dtype", None)))
    else:
        packages, processor = ["torch", "transformers"], _device(target)
    return [*told, processor, *(f"{package} {_version(package)}" for package in packages)]


def _device(target: LanguageModel) -> str:
    import torch

    device = target.model.device  # type: ignore[attr-defined]
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def _packed_weights(packed: Any) -> list[str]:
    """Each array's digest and each number of a packed model, with their names."""
    from forerun.lean.kept_file import leaves
    from forerun.lean.packed import Rows

    def told(leaf: tuple[str, Any]) -> str:
        name, value = leaf
        if isinstance(value, Rows):
            return f"{name} {value.digest()}"
        if not isinstance(value, np.ndarray):
            return f"{name} {value!r}"
        return f"{name} {value.shape} {value.dtype} {_digest_of(np.ascontiguousarray(value))}"

    return _all_told(told, leaves(packed))


def _weights(model: Any) -> list[str]:
    """A digest of each tensor of a model, ordered by name."""
    import torch

    def told(pair: tuple[str, Any]) -> str:
        name, value = pair
        if not isinstance(value, torch.Tensor):
            return f"{name} {value!r}"
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{name} {tuple(value.shape)} {value.dtype} {_digest_of(flat.numpy())}"

    return _all_told(told, sorted(model.state_dict().items()))


def _all_told(
    told: Callable[[tuple[str, Any]], str], pairs: Iterable[tuple[str, Any]]
) -> list[str]:
    """Apply a function to many (name, value) pairs in parallel; results are in order."""
    with ThreadPoolExecutor() as workers:
        return list(workers.map(told, pairs))


def _digest_of(array: Any) -> str:
    return blake2b(array.reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()


def _tokenizer(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = repr(tokenizer) if backend is None else backend.to_str()
    return f"{words} {getattr(tokenizer, 'chat_template', None)}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _digest(parts: Any) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


@dataclass(frozen=True)
class ModelCard:
    """The facts about a model that reading requests and formatting answers need, without the
    model."""

    name: str
    vocab_size: int
    max_context: int | None
    tokenizer: Any
    generation_defaults: dict[str, float]
    digest: str  # equal where the same seed gives the same text


def card_of(target: LanguageModel) -> ModelCard:
    """The `ModelCard` of a target."""
    return ModelCard(
        target.name,
        target.vocab_size,
        target.max_context,
        getattr(target, "tokenizer", None),
        defaults_of(target),
        model_digest(target),
    )
