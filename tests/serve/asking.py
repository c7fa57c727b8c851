"""What the tests of the app share: bodies, keys, and a look at errors."""

from __future__ import annotations

from typing import Any

from serving import PROMPT, Answered, call, run, serving

from forerun.serve.admission.keys import Keys

BODY = {"prompt": PROMPT}
LONG = {"prompt": PROMPT, "max_tokens": 400}


def ask(*calls: dict[str, Any], target: Any = None, app: Any = None, **desk: Any) -> Any:
    """The responses to some calls, one after the other."""

    async def main() -> list[Answered]:
        async with serving(target, app=app, **desk) as (made, counter):
            responses = [await call(made, **how) for how in calls]
            assert counter.num_open == 0
            return responses

    responses = run(main())
    return responses[0] if len(calls) == 1 else responses


def error_of(response: Answered) -> Any:
    """The error, after a look at its shape."""
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert response.headers["content-type"] == "application/json"
    return body["error"]


KEYS = Keys.from_lines(["alice:sk-alice-123", "bob:sk-bob-456789 max_running=1"])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
