"""What a request means that leaves sampling options out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from talking import MESSAGES, Talker, offer_of, with_end

from forerun.base.errors import InputError
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.completions import Completions
from forerun.serve.openai.routes.responses import Responses


def test_defaults_are_the_models_where_it_has_them() -> None:
    target = with_end(Talker())
    target.model.generation_config = SimpleNamespace(
        temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, max_new_tokens=9
    )
    route = Completions(offer_of(target))
    ask = route.read({"prompt": "a"})
    chosen = ask.options.sampling
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.7, 0.8, 20)
    assert (chosen.repetition_penalty, chosen.min_p) == (1.05, 0.0)
    assert ask.options.max_new_tokens == 9
    said = route.read({"prompt": "a", "temperature": 1, "top_k": 0, "max_tokens": 3}).options
    assert (said.sampling.temperature, said.sampling.top_k, said.max_new_tokens) == (1, None, 3)
    for other, body in ((Chat, {"messages": MESSAGES}), (Responses, {"input": "a"})):
        assert other(offer_of(target)).read(body).options.max_new_tokens == 9
    assert route.body.schema()["properties"]["temperature"]["default"] == 0.7
    target.model.generation_config.temperature = 7
    with pytest.raises(InputError, match="temperature=7"):
        Completions(offer_of(target))
