"""Keys: read, compared, kept secret, and limited."""

from __future__ import annotations

import hmac
import pickle
from pathlib import Path

import pytest

from forerun.base.errors import InputError
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.keys import KeyLimits, Keys, Quota

LINES = [
    "# clients",
    "sk-nameless-1",
    "alice:sk-alice-123   # with a comment",
    "",
    "batch:sk-batch-123 max_priority=-1 tokens_per_minute=600",
]


def test_keys_are_found_by_their_secret() -> None:
    keys = Keys.from_lines(LINES)
    assert len(keys) == 3
    secrets = ("sk-nameless-1", "sk-alice-123", "sk-batch-123")
    labels = [keys.find(f"Bearer {secret}").label for secret in secrets]
    assert labels == ["key-2", "alice", "batch"]
    assert keys.find("bearer  sk-alice-123 ").label == "alice"
    limits = keys.find("Bearer sk-batch-123").quota.limits
    assert limits == KeyLimits(max_priority=-1, tokens_per_minute=600)


def test_a_key_may_hold_signs() -> None:
    keys = Keys.from_lines(["  # a comment", "a:sk#with:signs#12 # and a comment", "#b:sk-alice-1"])
    assert len(keys) == 1
    assert keys.find("Bearer sk#with:signs#12").label == "a"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "sk-alice-123", "Bearer alice:sk-alice-123"]
)
def test_anything_else_is_unauthorized(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        Keys.from_lines(LINES).find(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_every_key_is_compared_whatever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        return one == other

    keys = Keys.from_lines(LINES)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys.find("Bearer sk-nameless-1")
    assert compared == [32, 32, 32]


def test_no_secret_is_kept() -> None:
    keys = Keys.from_lines(LINES)
    kept = repr(vars(keys)) + repr(keys._keys[1]) + str(vars(keys._keys[1]))
    assert "sk-alice" not in kept
    assert b"sk-alice" not in pickle.dumps([(k.label, k.owner, k.digest) for k in keys._keys])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing"], "no API keys"),
        (["short"], "too short. Received line 1"),
        (["", "a:tiny"], "too short. Received line 2"),
        (["sk-alice-123", "b:sk-alice-123"], "occurs twice"),
        (["a:sk-alice-123", "a:sk-alice-456"], "occurs twice"),
        (["a:sk-alice-123 max_runing=3"], "limit cannot be read. Received line 1"),
        (["a:sk-alice-123 max_running=0"], "limit cannot be read"),
        (["a:sk-alice-123 max_running=many"], "limit cannot be read"),
        (["a:sk-alice-123 max_running=²"], "limit cannot be read"),
        (["a:sk-alice-123 max_running=" + "9" * 5000], "limit cannot be read"),
        (["a:sk-alice-123é"], "not ASCII. Received line 1"),
    ],
)
def test_a_file_that_makes_no_sense(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Keys.from_lines(lines)
    assert "sk-alice" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Keys.from_file(tmp_path / "none")
    (tmp_path / "keys").write_text("alice:sk-alice-123\n")
    assert len(Keys.from_file(tmp_path / "keys")) == 1


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def refused(quota: Quota) -> ApiError:
    with pytest.raises(ApiError) as caught:
        quota.enter()
    return caught.value


def test_running_requests_are_limited() -> None:
    quota = Quota(KeyLimits(max_running=2))
    for _ in range(2):
        quota.enter()
    assert refused(quota).status == 429
    quota.leave(10)
    quota.enter()


def test_priorities_have_a_ceiling() -> None:
    quota = Quota(KeyLimits(max_priority=1))
    quota.check_priority(1)
    with pytest.raises(ApiError) as caught:
        quota.check_priority(2)
    assert (caught.value.status, caught.value.param) == (400, "priority")


def test_requests_per_minute() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=3), clock)
    for _ in range(3):
        quota.enter()
    error = refused(quota)
    assert (error.status, error.retry_after) == (429, 20.0)
    clock.time = 19.0
    assert refused(quota).retry_after == pytest.approx(1.0)
    clock.time = 20.0
    quota.enter()
    clock.time = 1e6  # a long silence fills no more than a minute's worth
    for _ in range(3):
        quota.enter()
    refused(quota)


def test_tokens_per_minute_are_paid_afterwards() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(tokens_per_minute=60), clock)
    quota.enter()
    quota.leave(90)  # 30 in debt
    assert refused(quota).retry_after == 31.0
    clock.time = 31.0
    quota.enter()
