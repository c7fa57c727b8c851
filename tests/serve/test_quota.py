"""What a key may do unless its line says otherwise, and what costs it nothing."""

from __future__ import annotations

import pytest
from serving import an_ask

from forerun.serve.errors import ApiError
from forerun.serve.quota import KeyLimits, Quota


def test_a_key_goes_before_others_only_where_its_line_says_so() -> None:
    Quota().enter(an_ask(priority=0))
    with pytest.raises(ApiError) as caught:
        Quota().enter(an_ask(priority=1))
    assert caught.value.code == "priority_not_allowed"


def test_a_request_that_was_not_taken_in_costs_nothing() -> None:
    quota = Quota(KeyLimits(requests_per_minute=1, max_running=1), clock=lambda: 0.0)
    for _ in range(3):
        quota.enter(an_ask())
        quota.leave(0)
    quota.enter(an_ask())
    quota.leave(10)
    with pytest.raises(ApiError, match="requests per minute"):
        quota.enter(an_ask())
