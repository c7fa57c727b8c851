"""`forerun serve`: serves a model with OpenAI's API, and a page on which to try it."""

from __future__ import annotations

import argparse
import ipaddress
import json
import math
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from forerun import rules
from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.cli import serve_ray
from forerun.cli.flags.shared import flag_of
from forerun.cli.loading import (
    follow,
    is_follower,
)
from forerun.loading.bundled import NAME

if TYPE_CHECKING:
    from forerun.serve.http.models import Models

MEMORY_SHARE = 0.8
"""The share of the machine's memory that models may take, where several are served."""

GIB = 2**30

NEEDED = ("starlette", "uvicorn", "prometheus_client")


def run(args: argparse.Namespace) -> int:
    """Load a model and serve it until a signal arrives. Under torchrun, ranks other than 0 only
    compute their part."""
    check_extra()
    if is_follower(args.tensor_parallel):
        return follow()
    from forerun.cli import serve_models
    from forerun.serve.admission.keys import Keys
    from forerun.serve.http.app import make_app
    from forerun.serve.http.lifecycle import Renewal, Renewals, Server, at_path, bind
    from forerun.serve.http.requests import Bounds
    from forerun.serve.http.tls import check_certificate
    from forerun.serve.watching.logs import RequestLog, say, set_up
    from forerun.serve.watching.metrics import Families

    sections = sections_of(args)
    chosen = [serve_models.check_rules(one.rule, one.rules) for one in sections.values()]
    for section in sections.values():
        _check_counts(section)
    serve_ray.check(args)
    check_origins(args.cors_origin)
    set_up(is_json=args.log_json)
    if (tls := tls_files(args.tls_cert, args.tls_key)) is not None:
        check_certificate(*tls)
    keys = None if args.api_key_file is None else Keys.from_file(args.api_key_file)
    log = None if args.request_log is None else RequestLog(args.request_log)
    renewals = Renewals()
    if keys is not None:
        renewals.add(Renewal("keys", partial(keys.renew, args.api_key_file)))
    if log is not None:
        renewals.add(Renewal("request log", log.reopen))
    if keys or log or tls:
        renewals.remember()
    bounds = Bounds(args.max_body_mib * 2**20, reader_seconds=args.reader_seconds)
    # before a model is loaded for nothing
    where = bind(args.host, args.port, bounds) if args.uds is None else at_path(args.uds)
    with where as bound, ExitStack() as stack:
        id_, section = next(iter(sections.items()))
        drafters = ",".join(section.drafter or ["auto"])
        say("loading", model=id_ or section.model or NAME, drafters=drafters)
        shared = serve_models.Shared(Families(), log, keys is not None)
        access: dict[str, Any] = {
            "keys": keys,
            "bounds": bounds,
            "cors_origins": args.cors_origin,
            "hosts": hosts_for(args.host, args.allowed_host, has_keys=keys is not None)
            if args.uds is None
            else args.allowed_host,
        }
        if args.ray:
            app = serve_ray.make_app(args, stack, shared, access)
        else:
            models = serve_models.make_models(sections, most_bytes(args.memory_gib), shared)
            app = make_app(models, **access)
        host = args.host if args.uds is None else "localhost"  # its file has an owner and a mode
        allowed = list(dict.fromkeys(rule for rules_here in chosen for rule in rules_here))
        for note in warnings_for(host, allowed, has_keys=keys is not None):
            print(f"warning: {note}", file=sys.stderr)
        address = Address.of(bound, is_tls=tls is not None)
        text = welcome(app.state.models, address, has_keys=keys is not None)
        Server(
            app,
            drain_seconds=args.drain_seconds,
            announce=lambda: print(text, flush=True),
            tls=tls,
            renewals=renewals,
        ).run(sockets=[bound])
    return 0


def sections_of(args: argparse.Namespace) -> dict[str | None, argparse.Namespace]:
    """The options of each model by its id, the default model first. A single model has the key
    None, because its id is known only when it is loaded."""
    if any(not name.strip() for one in (args, *args.models.values()) for name in one.name or ()):
        raise InputError(
            explain("A name of a model is empty.", '--name ""', "Say how it is called.")
        )
    if not args.models:
        return {None: args}
    if any(not id_.strip() for id_ in args.models):
        cure = "Write the id of the model between the quotes."
        raise InputError(explain("A section has no id.", '[models.""]', cure))
    for value, flag in ((args.model, "MODEL"), (args.name, "--name")):
        if value is not None:
            cure = "Say it in the section of the model that it is about."
            received = f"{flag} beside {len(args.models)} sections of models"
            raise InputError(explain(f"{flag} is about one model.", received, cure))
    if args.ray or args.tensor_parallel is not None:
        cure = "Start a server for each, or leave --ray and --tensor-parallel out."
        received = f"{len(args.models)} sections of models"
        raise InputError(explain("Replicas and ranks serve one model.", received, cure))
    names = [name for id_, one in args.models.items() for name in (id_, *(one.name or ()))]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        cure = "Give every model names of its own."
        raise InputError(explain("Two models have one name.", twice, cure))
    return dict(args.models)


def most_bytes(gib: float | None) -> int:
    """The memory that all models together may use; by default a share of this machine's."""
    if gib is not None:
        return int(gib * GIB)
    return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def tls_files(certificate: str | None, key: str | None) -> tuple[str, str] | None:
    """The files of a certificate and of its key, which may be the same file."""
    if certificate is None and key is not None:
        cure = "Add --tls-cert, or leave it out."
        raise InputError(explain("--tls-key is about a certificate.", "no --tls-cert", cure))
    return None if certificate is None else (certificate, key or certificate)


def check_extra() -> None:
    """Raise if a package that the server needs is missing, before anything is loaded."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        cure = 'Install it with: pip install "forerun[serve]"'
        received = f"no {', '.join(missing)}"
        raise MissingExtraError(explain("The server is an extra.", received, cure))


def _check_counts(args: argparse.Namespace) -> None:
    """Refuse counts that are too small, and ports that do not exist."""
    for name, least in (
        ("max_batch", 1),
        ("max_queue", 0),
        ("max_tokens", 1),
        ("max_body_mib", 1),
        ("drain_seconds", 0),
        ("reader_seconds", 1),
        ("draft_length", 0),
    ):
        value = getattr(args, name)
        if isinstance(value, int) and value < least:
            raise InputError(
                explain(f"{flag_of(name)} is too small.", value, f"Use {least} or more.")
            )
    if not args.slowdown >= 1:
        cure = "Use 1 or more; 1 reads a prompt a token at a time beside answers."
        raise InputError(explain("--slowdown is too small.", args.slowdown, cure))
    for name in ("needs_gib", "memory_gib"):
        if (gib := getattr(args, name)) is not None and not 0 < gib < math.inf:
            flag = "--" + name.replace("_", "-")
            raise InputError(explain(f"{flag} is no amount of memory.", gib, "Use 0.5 or 8."))
    if not 0 <= args.port < 2**16:
        cure = "Use a number from 0 to 65535."
        raise InputError(explain("There is no such port.", args.port, cure))


def check_origins(origins: Sequence[str]) -> None:
    """Refuse origins that are not written as browsers write them, because they would never
    match."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s?#@]+", origin):
            cure = "Write it as browsers do, like https://chat.example.org, or * for all."
            raise InputError(explain("--cors-origin is no origin.", origin, cure))


def warnings_for(host: str, chosen: Sequence[str], *, has_keys: bool) -> list[str]:
    """Warnings about the server's settings, for whoever starts it."""
    notes = []
    if not is_loopback(host) and not has_keys:
        notes.append(
            f"everybody who can reach {host} can use this server; --api-key-file asks for keys"
        )
    lossy = [name for name in chosen if not rules.get(name).lossless]
    if lossy:
        notes.append(f"requests may ask for lossy rules, which change the text: {', '.join(lossy)}")
    return notes


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hosts_for(host: str, allowed: Sequence[str], *, has_keys: bool) -> list[str]:
    """The host names that the server answers to; an empty list means any.

    A web page can make its own host name resolve to a loopback address, and so reach a server
    without keys there. It cannot use one of these names, so others are refused.
    """
    if has_keys or not is_loopback(host):
        return list(allowed)
    return ["localhost", "127.0.0.1", "::1", host, *allowed]


@dataclass(frozen=True)
class Address:
    """The address of a server on this machine. path: that of its Unix socket, if it has one."""

    url: str
    path: str = ""

    @classmethod
    def of(cls, bound: socket.socket, *, is_tls: bool = False) -> Address:
        scheme = "https" if is_tls else "http"
        name = bound.getsockname()
        if isinstance(name, str):
            return cls(f"{scheme}://localhost", name)
        host, port = name[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = "127.0.0.1" if bound.family == socket.AF_INET else "::1"
        return cls(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")


def pass_of(target: Any) -> str:
    """A description of the model's implementation: which one runs, its room for tokens, and why not
    the lean one."""
    parts = [getattr(target, "pass_name", "")]
    if tokens := getattr(target, "num_tokens_free", None):
        parts.append(f"room for {tokens:,} tokens of all requests together")
    if reason := getattr(target, "why_not_lean", ""):
        parts.append(f"not the lean pass: {reason}")
    return "; ".join(filter(None, parts))


def welcome(models: Models, where: Address, *, has_keys: bool) -> str:
    """The text printed when the server is ready."""
    served = models.default.served
    assert served is not None
    desk, (name, *others) = served.desk, models.default.names
    lines = [f"Serving {name}; drafters {', '.join(desk.drafters)}; rule {desk.rule}"]
    waiting = [card["id"] for card in models.cards() if not card["loaded"]]
    for title, told in (
        ("pass ", pass_of(desk.target)),
        ("also called ", ", ".join(others)),
        ("loaded when asked for ", ", ".join(waiting)),
        ("socket ", where.path),
    ):
        lines += [f"  {title} {told}"] if told else []
    messages = [{"role": "user", "content": "Hello!"}]
    body = json.dumps({"model": name, "messages": messages, "max_tokens": 64})
    how = f" --unix-socket {where.path}" if where.path else ""
    key = ' -H "Authorization: Bearer $KEY"' if has_keys else ""
    lines += [
        f"  page  {where.url}/",
        f"  API   {where.url}/v1",
        f"  try   curl{how} {where.url}/v1/chat/completions{key} "
        f"-H 'Content-Type: application/json' -d '{body}'",
    ]
    return "\n".join(lines)
