"""What a key may do unless its line says otherwise, and what costs it nothing."""

from __future__ import annotations

import pytest

from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import KeyLimits, Quota


def test_a_key_goes_before_others_only_where_its_line_says_so() -> None:
    Quota().check_priority(0)
    with pytest.raises(ApiError) as caught:
        Quota().check_priority(1)
    assert caught.value.code == "priority_not_allowed"


@pytest.mark.parametrize(("status", "is_free"), [(429, True), (503, True), (400, False)])
def test_what_the_server_is_too_busy_for_costs_nothing(status: int, is_free: bool) -> None:
    """Mistakes of the client count; in either case the request has left."""
    quota = Quota(KeyLimits(requests_per_minute=3, max_running=1), clock=lambda: 0.0)
    for _ in range(3):
        with pytest.raises(ApiError, match="no"), quota.entering():
            raise ApiError("no", status=status)
    if is_free:
        quota.enter()
    else:
        with pytest.raises(ApiError, match="requests per minute"):
            quota.enter()
