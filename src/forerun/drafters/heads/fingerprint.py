"""Identifies the target of a drafter by its sizes and a sample of its embedding.

The samples are compared by direction, not bit by bit. So a copy in another precision, even 4 bits,
is the same target, and another model of the same sizes is not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.errors import UnsupportedError, explain

NUM_ROWS, NUM_COLUMNS = 16, 16
ALIKE = 0.9  # the cosine of two samples; unrelated models reach 0.2, 4-bit copies 0.99


@dataclass(frozen=True)
class Fingerprint:
    """Properties that identify a target; two fingerprints match if all properties known to both
    agree."""

    name: str
    hidden_size: int
    num_layers: int | None
    vocab_size: int
    sample: tuple[float, ...]  # of the embedding's rows, spread over the
    # vocabulary; empty: not known

    @classmethod
    def of(cls, model: Any, name: str) -> Fingerprint:
        """The fingerprint of a transformers model."""
        table = model.get_input_embeddings().weight.detach()
        config = model.config.get_text_config(decoder=True)
        part = table[_rows(len(table)), :NUM_COLUMNS].float().cpu().numpy()
        sizes = (config.hidden_size, config.num_hidden_layers, len(table))
        return cls(name, *sizes, _sample(part))

    @classmethod
    def of_lean(cls, target: Any) -> Fingerprint:
        """The fingerprint of a `LeanModel`, made without loading its transformers model."""
        part = target.embeddings_of(_rows(target.vocab_size))[:, :NUM_COLUMNS]
        sizes = (target.hidden_size, target.num_layers, target.vocab_size)
        return cls(target.name, *sizes, _sample(part))

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Fingerprint:
        return cls(**{**saved, "sample": tuple(saved["sample"])})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def fits(self, target: Fingerprint) -> bool:
        """Whether `target` is the one that this fingerprint was taken from."""
        return not self._difference(target)

    def check(self, target: Fingerprint) -> None:
        """Raise if `target` is not the one that this drafter was trained for."""
        difference = self._difference(target)
        if difference:
            wrong = f"This drafter was trained for {self.name} and does not fit {target.name}: "
            cure = "Use it with its own target, or train one for yours with `forerun train`."
            raise UnsupportedError(explain(wrong + difference + ".", target.name, cure))

    def _difference(self, other: Fingerprint) -> str:
        for what in ("hidden_size", "num_layers", "vocab_size"):
            expected, received = getattr(self, what), getattr(other, what)
            if expected is not None and expected != received:
                return f"{what} is {received} rather than {expected}"
        if not self.sample:
            return ""
        a, b = np.array(self.sample), np.array(other.sample)
        if a.shape != b.shape:
            return "their embeddings were sampled differently"
        alike = float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
        return "" if alike >= ALIKE else f"their embeddings differ (cosine {alike:.2f})"


def _rows(num_tokens: int) -> list[int]:
    """Token ids that are spread over the vocabulary."""
    spread: list[int] = np.linspace(0, num_tokens - 1, NUM_ROWS).astype(int).tolist()
    return spread


def _sample(part: HostArray) -> tuple[float, ...]:
    values = part.ravel()
    scale = float(np.abs(values).max()) or 1.0
    return tuple(round(float(value) / scale, 4) for value in values)
