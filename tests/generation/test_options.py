"""Options that do not exist are answered with those that do."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, get_type_hints

import pytest

import forerun as fr
from forerun.generation.options import ELSEWHERE, IN_SAMPLING, OF_ENGINE, GenerateOptions
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=5, order=1, seed=0)


@pytest.mark.parametrize("call", [fr.generate, fr.stream])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": 0.8},
            r"`sampling`. Received temperature=0.8. Write .*forerun.Sampling\(temperature=0.8\)",
        ),
        ({"top_p": 0.9, "seed": 3}, r"Write sampling=forerun.Sampling\(top_p=0.9, seed=3\)"),
        ({"num_return_sequences": 2}, r"Write sampling=forerun.Sampling\(n=2\)"),
        (
            {"max_tokens": 5},
            "has no option 'max_tokens'. Received max_tokens=5. Use max_new_tokens",
        ),
        ({"max_length": 5}, "Received max_length=5. Use max_new_tokens"),
        ({"streamer": 1}, "has no option 'streamer'. Received streamer=1. Iterate over forerun.st"),
        ({"num_beams": 4}, "no beam search here"),
        ({"streames": 1}, "Its options are target, prompt"),
        ({"assistant_model": None}, "Use drafter."),
        ({"max_new_token": 5}, "Use max_new_tokens."),
        ({"temperature": 1, "stops": "x"}, "no option 'stops'.*Use stop"),
        ({"xyzzy": 1}, "no option 'xyzzy'. Received xyzzy=1. Its options are target, prompt, draf"),
    ],
)
def test_an_unknown_option_says_what_to_write(
    call: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(fr.InputError, match=message) as refused:
        call(TABLE, [1], **options)
    assert call.__name__ in str(refused.value)


def test_so_does_a_request() -> None:
    async def ask() -> None:
        async with fr.AsyncEngine(TABLE) as engine:
            with pytest.raises(fr.InputError, match=r"told to submit.*Sampling\(temperature=1\)"):
                engine.submit([1], temperature=1)  # type: ignore[call-arg]
            with pytest.raises(fr.InputError, match=r"Its options are prompt, sampling, max_new_"):
                engine.submit([1], xyzzy=1)  # type: ignore[call-arg]
            with pytest.raises(fr.InputError, match="of a request that fails raises"):
                engine.submit([1], errors="return")  # type: ignore[call-arg]
            for name, ours in (OF_ENGINE | {"assistant_model": "drafter"}).items():
                message = rf"no option '{name}'.*write AsyncEngine\(target, {ours}=...\)"
                with pytest.raises(fr.InputError, match=message):
                    engine.submit([1], **{name: "ngram"})

    asyncio.run(ask())


def test_what_requests_share_is_what_the_engine_takes_and_they_do_not() -> None:
    engine, submit = (
        inspect.signature(function).parameters.keys()
        for function in (fr.AsyncEngine, fr.AsyncEngine.submit)
    )
    assert {*OF_ENGINE.values()} == engine - submit - {"target"}


def test_the_types_name_the_options_that_there_are() -> None:
    parameters = dict(inspect.signature(fr.generate).parameters)
    assert list(parameters)[:2] == ["target", "prompt"]
    assert list(parameters)[2:] == list(get_type_hints(GenerateOptions))
    assert inspect.signature(fr.stream).parameters == parameters
    for name, ours in ELSEWHERE.items():
        assert name not in parameters
        assert ours in parameters
    assert set(IN_SAMPLING.values()) == set(inspect.signature(fr.Sampling).parameters)
