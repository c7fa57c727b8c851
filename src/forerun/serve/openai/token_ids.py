"""Lists of token ids, of which a body may hold hundreds of thousands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Schema, Whole, wrong_size, wrong_type


@dataclass(frozen=True)
class TokenIds:
    """Ids of a vocabulary, at most a context full of them.

    The length is looked at first, and then all ids at once; one by one only to name a wrong one.
    """

    vocab_size: int
    most: int | None  # what the context holds
    least: int = 0

    @property
    def _id(self) -> Whole:
        return Whole(0, self.vocab_size - 1)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self._id.fits(value[0]))

    def check(self, value: Any, where: str) -> list[int]:
        if not isinstance(value, list):
            raise wrong_type(value, where, "a list")
        if len(value) < self.least:
            limit = f"at least {self.least} items long"
            raise wrong_size(f"{len(value)} items", where, limit, "array_below_min_length")
        if self.most is not None and len(value) > self.most:
            message = (
                f"This model's context is {self.most} tokens, and '{where}' is {len(value)} "
                "tokens long. Shorten it."
            )
            raise ApiError(message, param=where, code="context_length_exceeded")
        if set(map(type, value)) <= {int} and (
            not value or (min(value) >= 0 and max(value) < self.vocab_size)
        ):
            return value
        return [self._id.check(item, f"{where}[{place}]") for place, item in enumerate(value)]

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self._id.schema()}
        if self.least:
            schema["minItems"] = self.least
        return schema if self.most is None else {**schema, "maxItems": self.most}
