"""The budget of an audit: the tokens a request could cost are reserved before it is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from forerun.base.errors import ForerunError


class SpentError(ForerunError):
    """Too few tokens are left for a request, so it is not sent."""


@dataclass
class Budget:
    """The tokens that an audit may generate, `total` in all. Each check may spend a share of
    them."""

    total: int
    spent: int = 0  # by answers
    num_requests: int = 0
    num_prompt_tokens: int = 0
    on_answer: Callable[[], None] = lambda: None  # called after each answer, in any thread
    _reserved: int = 0
    _limit: int | None = None  # of the check that is running, counted like `spent`
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def left(self) -> int:
        """The number of tokens that may still be reserved."""
        limit = self.total if self._limit is None else min(self.total, self._limit)
        return max(0, limit - self.spent - self._reserved)

    @contextmanager
    def share(self, tokens: int) -> Iterator[None]:
        """Within this block, at most `tokens` tokens may be spent."""
        before, self._limit = self._limit, self.spent + tokens
        try:
            yield
        finally:
            self._limit = before

    def reserve(self, tokens: int) -> None:
        """Reserve tokens for a request; raises `SpentError` if too few are left."""
        with self._lock:
            if tokens > self.left:
                raise SpentError(f"{tokens} tokens are needed and {self.left} are left.")
            self._reserved += tokens

    def settle(self, reserved: int, used: int, num_prompt_tokens: int = 0) -> None:
        """Replace a request's reservation by what its answer used; that may be more than was
        allowed."""
        with self._lock:
            self._reserved -= reserved
            self.spent += used
            self.num_requests += 1
            self.num_prompt_tokens += num_prompt_tokens
        self.on_answer()
