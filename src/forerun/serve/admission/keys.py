"""API keys: who may use the server, under which name, and how much.

A file has one key per line, optionally with a name before it and limits after it:

    # comment
    sk-1f0c...
    alice:sk-77aa...  max_running=4 requests_per_minute=60
    batch:sk-90cd...  max_priority=0 tokens_per_minute=20000

A key is ASCII without white space. The part before the first colon is the name, so a key that
contains a colon needs a name; a `#` begins a comment at the beginning of a line or after white
space. Only digests are kept, so no log, traceback or `repr` can show a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.serve.admission.errors import ApiError

BUSY = (429, 503)
"""Statuses of refusals that are the server's fault. Such requests are not counted for a key."""


@dataclass(frozen=True)
class KeyLimits:
    """The limits of one key; None means no limit."""

    max_running: int | None = None  # requests that wait or run
    max_priority: int = 0  # or else everybody would go before everybody
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers


class Bucket:
    """A budget that refills evenly and holds at most a minute's worth.

    It may go below zero, because the cost of a request is known only when it has ended.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_second = per_minute / 60
        self._most = float(per_minute)
        self._level = self._most
        self._clock = clock
        self._time = clock()

    def seconds_until(self, amount: float) -> float:
        """The seconds until the bucket holds this amount; 0 if it already does."""
        time = self._clock()
        self._level = min(self._most, self._level + (time - self._time) * self._per_second)
        self._time = time
        return max(0.0, (amount - self._level) / self._per_second)

    def spend(self, amount: float) -> None:
        """Take this amount out, even if the budget then is negative."""
        self._level -= amount


class Quota:
    """A key's limits, and how much of them is used up."""

    def __init__(
        self, limits: KeyLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits = limits or KeyLimits()
        self._clock = clock
        self._num_running = 0
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    def within(self, limits: KeyLimits) -> Quota:
        """The same quota with new limits. A count per minute starts again if its limit has
        changed."""
        before, self.limits = self.limits, limits
        if limits.requests_per_minute != before.requests_per_minute:
            self._requests = _bucket(limits.requests_per_minute, self._clock)
        if limits.tokens_per_minute != before.tokens_per_minute:
            self._tokens = _bucket(limits.tokens_per_minute, self._clock)
        return self

    def enter(self) -> None:
        """Count a request, or refuse it. This depends only on the key, so the body need not be read
        first."""
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
        """Record that a request has ended. num_tokens: of its prompts and answers."""
        self._num_running -= 1
        if self._tokens is not None:
            self._tokens.spend(num_tokens)

    def take_back(self) -> None:
        """Undo `enter` for a request that was refused because the server is busy."""
        self.leave()
        if self._requests is not None:
            self._requests.spend(-1)

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Count a request for the block that admits it. If the block raises, the request counts as
        ended."""
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


SHORTEST = 8
"""The fewest characters of a key; a shorter one is guessed too easily."""


@dataclass(frozen=True)
class Key:
    """One client. `owner` tells engines which texts belong together; `label` is its name for
    people."""

    label: str
    owner: str
    digest: bytes = field(repr=False)
    quota: Quota = field(repr=False)


ANYBODY = Key("", "", b"", Quota(KeyLimits(max_priority=sys.maxsize)))
"""The key of all clients of a server without keys."""


class Keys:
    """The clients that may use the server."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = list(keys)

    @classmethod
    def from_file(cls, path: str | Path) -> Keys:
        """The keys in a file."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            cure = "Pass a text file with one key per line."
            wrong = "The file of API keys cannot be read."
            raise InputError(explain(wrong, f"{path} ({type(error).__name__})", cure)) from error
        return cls.from_lines(lines)

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Keys:
        """Parse the lines of a key file."""
        keys: list[Key] = []
        for number, line in enumerate(lines, start=1):
            if words := re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split():
                keys.append(_key(number, words[0], words[1:]))
        if not keys:
            cure = "Write one key per line, or leave --api-key-file out."
            raise InputError(explain("There are no API keys.", "an empty file", cure))
        for values in ([key.digest for key in keys], [key.label for key in keys]):
            if len(set(values)) < len(values):
                cure = "Give every client a key and a name of its own."
                raise InputError(explain("A key or a name occurs twice.", "the key file", cure))
        return cls(keys)

    def renew(self, path: str | Path) -> None:
        """Read the file again. A key that is still there keeps its counts, under its new limits."""
        counts = {key.digest: key.quota for key in self._keys}
        fresh = Keys.from_file(path)._keys
        self._keys = [
            replace(key, quota=counts[key.digest].within(key.quota.limits))
            if key.digest in counts
            else key
            for key in fresh
        ]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: str | None, api_key: str | None = None) -> Key:
        """The key that a request sent in `Authorization: Bearer ...`, or else in `X-Api-Key`. All
        keys are compared, in constant time."""
        header = f"Bearer {api_key}" if authorization is None and api_key else authorization
        scheme, _, secret = (header or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            message = (
                "An API key is needed: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
            )
            raise _unauthorized(message)
        digest = _digest(secret.strip())
        matches = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if not matches:
            raise _unauthorized("The API key is not valid.")
        return matches[0]


def _key(number: int, word: str, settings: Sequence[str]) -> Key:
    """Parse one line. Error messages give the line's number, but nothing that it contains."""
    name, colon, secret = word.partition(":")
    if not colon:
        name, secret = f"key-{number}", word
    if not secret.isascii():
        cure = "Use letters, digits and signs of ASCII: headers hold no others."
        raise InputError(explain("An API key is not ASCII.", f"line {number}", cure))
    if len(secret) < SHORTEST or not name:
        cure = f"Use at least {SHORTEST} characters, after a name and a colon if it has one."
        raise InputError(explain("An API key is too short.", f"line {number}", cure))
    digest = _digest(secret)
    owner = hashlib.sha256(b"owner" + digest).hexdigest()[:32]
    return Key(name, owner, digest, Quota(_limits(number, settings)))


def _limits(number: int, settings: Sequence[str]) -> KeyLimits:
    names = [one.name for one in fields(KeyLimits)]
    values: dict[str, int] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        is_number = re.fullmatch("-?[0-9]{1,15}", value) is not None
        if name not in names or not is_number or (int(value) < 1 and name != "max_priority"):
            cure = f"Write limits after the key as name=number: {', '.join(names)}."
            raise InputError(explain("A limit cannot be read.", f"line {number}", cure))
        values[name] = int(value)
    return KeyLimits(**values)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(message, status=401, code="invalid_api_key", kind="authentication_error")
