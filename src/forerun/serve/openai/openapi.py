"""Makes the OpenAPI document from the same tables that bodies are checked by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forerun.base.version import __version__
from forerun.serve.openai.fields import Schema
from forerun.serve.openai.objects import Object

JSON = "application/json"
EVENTS = "text/event-stream"
PLAIN = "text/plain"
OPEN_METRICS = "application/openmetrics-text"
WORDS = {
    "/v1/completions": "Continue a text.",
    "/v1/chat/completions": "Answer a conversation.",
    "/v1/responses": "Answer a conversation, in OpenAI's newer words.",
    "/v1/messages": "Answer a conversation, in Anthropic's words.",
    "/v1/messages/count_tokens": "The number of tokens of a conversation.",
    "/tokenize": "The token ids of a text or a conversation.",
    "/detokenize": "The text of token ids.",
}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
REFUSALS = {
    "400": "A field cannot be honoured; `param` names it.",
    "401": "The key is missing or wrong.",
    "404": "There is no such model, or nothing at this address.",
    "405": "There is no such method here.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON, or packed in another way than by gzip.",
    "421": "The server does not answer to this name.",
    "429": "Too much is asked for at once; Retry-After says when to come again.",
    "500": "The request failed.",
    "503": "The server or the model is busy, not ready, or shutting down.",
}
OBJECTS: dict[str, Schema] = {
    "/v1/completions": {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"],
        "properties": {"object": {"const": "text_completion"}, "choices": {"type": "array"}},
    },
    "/v1/chat/completions": {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"],
        "properties": {"object": {"const": "chat.completion"}, "choices": {"type": "array"}},
    },
    "/v1/responses": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
        "properties": {"object": {"const": "response"}, "output": {"type": "array"}},
    },
    "/v1/messages": {
        "type": "object",
        "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
        "properties": {"type": {"const": "message"}, "content": {"type": "array"}},
    },
    "/v1/messages/count_tokens": {
        "type": "object",
        "required": ["input_tokens"],
        "properties": {"input_tokens": {"type": "integer"}},
    },
    "/tokenize": {
        "type": "object",
        "required": ["count", "max_model_len", "tokens"],
        "properties": {
            "count": {"type": "integer"},
            "tokens": {"type": "array", "items": {"type": "integer"}},
        },
    },
    "/detokenize": {
        "type": "object",
        "required": ["prompt"],
        "properties": {"prompt": {"type": "string"}},
    },
}
MODEL: Schema = {
    "type": "object",
    "required": ["id", "object", "owned_by", "root", "loaded"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "root": {"type": "string", "description": "The model's id, of which `id` is a name."},
        "loaded": {"type": "boolean"},
        "max_model_len": {"type": ["integer", "null"]},
    },
}

MODELS: Schema = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"data": {"type": "array", "items": MODEL}},
}
STATUS: Schema = {"type": "object", "required": ["status"]}
STATS: Schema = {
    "type": "object",
    "properties": {
        "acceptance_alarm": {"enum": ["low", "high", None]},
        "models": {"type": "object", "description": "The same for each of several models."},
    },
    "additionalProperties": {"type": ["number", "null"]},
}
METRICS: Schema = {"type": "string"}
PREFIX: Schema = {
    "name": "prefix",
    "in": "query",
    "description": "Of the names, instead of forerun; vllm for dashboards made for it.",
    "schema": {"type": "string", "pattern": "^[a-z_]{0,32}$"},
}


class Described(Protocol):
    """A route whose body is described by a table of fields."""

    path: str
    body: Object


class Document:
    """`GET /openapi.json`."""

    path = "/openapi.json"
    method = "GET"

    def __init__(self, routes: Sequence[Described], *, has_keys: bool) -> None:
        self._content = document(routes, has_keys=has_keys)

    def answer(self, body: Mapping[str, Any], **_: str) -> dict[str, Any]:
        return self._content


def document(routes: Sequence[Described], *, has_keys: bool) -> dict[str, Any]:
    """The OpenAPI document for these routes and for those that every server has."""
    paths = {route.path: {"post": _post(route.path, route.body)} for route in routes}
    paths |= {
        "/v1/models": {"get": _get("The models of this server.", MODELS)},
        "/v1/models/{name}": {"get": _get("One of them.", MODEL, "name")},
        "/v1/stats": {"get": _get("What the last seconds were like.", STATS)},
        "/metrics": {
            "get": {
                **_get("All counts, for Prometheus.", METRICS, kinds=(PLAIN, OPEN_METRICS)),
                "parameters": [PREFIX],
            }
        },
        "/health": {"get": _get("Whether the server runs.", STATUS)},
        "/ready": {"get": _get("Whether it takes requests.", STATUS, is_probe=True)},
    }
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Forerun",
            "version": __version__,
            "description": "OpenAI's API over speculative decoding: same seed, same text.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }
    if has_keys:
        content["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        content["security"] = [{"key": []}, {"header": []}]
        for path in ("/health", "/ready"):
            paths[path]["get"]["security"] = []
    return content


def _post(path: str, body: Object) -> dict[str, Any]:
    """The description of a POST route."""
    content: dict[str, Any] = {JSON: {"schema": OBJECTS[path]}}
    if "stream" in body.fields:
        content[EVENTS] = {"schema": {}}  # events differ from route to route
    return {
        "summary": WORDS[path],
        "operationId": path.strip("/").replace("/", "_"),
        "requestBody": {
            "required": True,
            "description": "May be packed, with Content-Encoding: gzip.",
            "content": {JSON: {"schema": body.schema()}},
        },
        "responses": {"200": {"description": "The answer.", "content": content}, **_refusals()},
    }


def _get(
    summary: str,
    schema: Schema,
    parameter: str | None = None,
    *,
    kinds: Sequence[str] = (JSON,),
    is_probe: bool = False,
) -> dict[str, Any]:
    """The description of a GET route. is_probe: a 503 has the same shape as a success."""
    answer = {"description": "The answer.", "content": {kind: {"schema": schema} for kind in kinds}}
    unwell = {"503": {**answer, "description": REFUSALS["503"]}} if is_probe else {}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": answer, **_refusals(), **unwell},
    }
    if parameter is not None:
        shape = {"type": "string", "minLength": 1}
        operation["parameters"] = [
            {"name": parameter, "in": "path", "required": True, "schema": shape}
        ]
    return operation


def _refusals() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        status: {"description": words, "content": {JSON: {"schema": schema}}}
        for status, words in REFUSALS.items()
    }
