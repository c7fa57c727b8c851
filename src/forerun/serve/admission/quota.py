"""How much one key may ask for at once and per minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forerun.serve.admission.errors import ApiError

BUSY = (429, 503)
"""Refusals that are the server's fault: such requests cost a key nothing."""


@dataclass(frozen=True)
class KeyLimits:
    """None: no limit of its own."""

    max_running: int | None = None  # requests that wait or run
    max_priority: int = 0  # or else everybody would go before everybody
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers


class Bucket:
    """Holds what may be spent, up to a minute's worth, and fills evenly.

    Spending may leave a debt, because what a request costs is known when it has ended.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_second = per_minute / 60
        self._most = float(per_minute)
        self._level = self._most
        self._clock = clock
        self._time = clock()

    def seconds_until(self, amount: float) -> float:
        """How long until so much is there; 0 if it is."""
        time = self._clock()
        self._level = min(self._most, self._level + (time - self._time) * self._per_second)
        self._time = time
        return max(0.0, (amount - self._level) / self._per_second)

    def spend(self, amount: float) -> None:
        self._level -= amount


class Quota:
    """What is left of a key's limits."""

    def __init__(
        self, limits: KeyLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits = limits or KeyLimits()
        self._clock = clock
        self._num_running = 0
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    def within(self, limits: KeyLimits) -> Quota:
        """The same counts under other limits; a count per minute that changes starts anew."""
        before, self.limits = self.limits, limits
        if limits.requests_per_minute != before.requests_per_minute:
            self._requests = _bucket(limits.requests_per_minute, self._clock)
        if limits.tokens_per_minute != before.tokens_per_minute:
            self._tokens = _bucket(limits.tokens_per_minute, self._clock)
        return self

    def enter(self) -> None:
        """Count a request, or refuse it.  Needs its key alone, so its body need not be read."""
        limits = self.limits
        if limits.max_running is not None and self._num_running >= limits.max_running:
            few = f"{limits.max_running} request{'s' * (limits.max_running != 1)}"
            raise _refusal(f"This API key may have {few} at once.", 1.0)
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and (seconds := bucket.seconds_until(1)):
                raise _refusal(f"This API key has used up its {what} per minute.", seconds)
        if self._requests is not None:
            self._requests.spend(1)
        self._num_running += 1

    def check_priority(self, priority: int) -> None:
        """Refuse a priority that this key may not ask for."""
        if priority > self.limits.max_priority:
            message = f"This API key may use priorities up to {self.limits.max_priority}."
            raise ApiError(message, param="priority", code="priority_not_allowed")

    def leave(self, num_tokens: int = 0) -> None:
        """A request has ended; it took so many tokens, prompts included."""
        self._num_running -= 1
        if self._tokens is not None:
            self._tokens.spend(num_tokens)

    def take_back(self) -> None:
        """A request was refused because the server is busy: it counts as never made."""
        self.leave()
        if self._requests is not None:
            self._requests.spend(-1)

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Count a request that the block takes in.  If the block raises, the request has left."""
        self.enter()
        try:
            yield
        except BaseException as error:
            if isinstance(error, ApiError) and error.status in BUSY:
                self.take_back()
            else:
                self.leave()
            raise


def _bucket(per_minute: int | None, clock: Callable[[], float]) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, clock)


def _refusal(message: str, retry_after: float) -> ApiError:
    return ApiError(
        message,
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )
