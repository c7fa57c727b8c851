"""The OpenAPI document says what the routes do, because both come from one table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import run
from talking import MESSAGES, offer_of, talker, talking

from forerun.serve.http.app import page_routes
from forerun.serve.http.assembly import make_server
from forerun.serve.openai.openapi import document
from forerun.serve.openai.routes import queries, text_routes

OFFER = offer_of()
ROUTES: list[Any] = [
    *text_routes(OFFER),
    *(query for query in queries(OFFER) if hasattr(query, "body")),
]
PATHS = document(ROUTES, has_keys=False)["paths"]


def body_schema(path: str) -> Any:
    content = PATHS[path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_field_is_described_and_no_other_is_allowed(route: Any) -> None:
    schema = body_schema(route.path)
    assert set(schema["properties"]) == {*route.body.fields, *route.body.refused}
    assert schema["additionalProperties"] is False
    required = {name for name, entry in route.body.fields.items() if entry.required}
    assert set(schema.get("required", ())) == required


def test_it_is_served_with_every_route_there_is() -> None:
    async def work() -> Any:
        async with talking() as ask:
            return (await ask("/openapi.json", method="GET")).json()

    told = run(work())
    assert told["openapi"] == "3.1.0"
    paths = {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"}
    paths |= {"/detokenize", "/v1/models", "/v1/models/{name}", "/health", "/ready"}
    paths |= {"/v1/stats", "/metrics", "/v1/messages", "/v1/messages/count_tokens"}
    assert set(told["paths"]) == paths
    for operations in told["paths"].values():
        for operation in operations.values():
            assert {"200", "400", "500"} <= operation["responses"].keys()
    assert "security" not in told


def test_no_route_of_the_server_is_left_out() -> None:
    app, _ = make_server(talker(), {"none": None})
    served = {route.path.replace(":path}", "}") for route in app.routes}
    pages = {page.path for page in page_routes()}
    assert served - pages - PATHS.keys() == {"/openapi.json"}


def test_keys_are_asked_for_where_there_are_some() -> None:
    told = document(ROUTES, has_keys=True)
    assert told["security"] == [{"key": []}, {"header": []}]  # either of them
    schemes = told["components"]["securitySchemes"]
    assert schemes["header"] == {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
    assert told["paths"]["/health"]["get"]["security"] == []
    assert "security" not in told["paths"]["/v1/models"]["get"]
    json.dumps(told)


def test_limits_are_in_the_schema() -> None:
    schema = body_schema("/v1/chat/completions")["properties"]
    assert schema["top_logprobs"]["anyOf"][0]["maximum"] == OFFER.limits.max_logprobs
    assert schema["n"]["anyOf"][0]["maximum"] == OFFER.limits.max_choices
    assert MESSAGES[0]["role"] in json.dumps(schema["messages"])
