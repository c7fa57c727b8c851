"""Manners towards an endpoint: a rate, and patience when it says that it is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from forerun.audit.wire import Call, EndpointError, Raw, Transport
from forerun.base.errors import explain

BUSY = (429, 503, 529)
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


@dataclass
class Polite:
    """At most `rate` calls a second; busy answers and lost connections are tried again.

    patience: how often in a row a call is tried again.
    """

    transport: Transport
    rate: float = 20.0
    patience: int = 6
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    waited: float = 0.0  # seconds, because the endpoint was busy
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def send(self, call: Call) -> Raw:
        wait = FIRST_WAIT
        for attempt in range(self.patience + 1):
            self._take_turn()
            is_last = attempt == self.patience
            try:
                raw = self.transport.send(call)
            except EndpointError:
                if is_last or attempt >= 2:
                    raise
                asked = None
            else:
                if raw.status not in BUSY:
                    return raw
                asked = retry_after(raw.headers)
                if is_last:
                    received = f"status {raw.status} {attempt + 1} times"
                    cure = (
                        "Try again later, or with a lower --rate; the journal keeps what is done."
                    )
                    raise EndpointError(explain("The endpoint stays busy.", received, cure))
            self._pause(wait if asked is None else asked)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    def _take_turn(self) -> None:
        with self._lock:
            start = max(self.now(), self._next)
            self._next = start + 1.0 / self.rate
        if (ahead := start - self.now()) > 0:
            self.sleep(ahead)

    def _pause(self, seconds: float) -> None:
        self.waited += seconds
        self.sleep(seconds)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the header of that name asks for: a number, or a date."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
