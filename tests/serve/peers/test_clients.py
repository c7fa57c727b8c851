"""Programs and libraries that others have made for this API, against `forerun serve` as it is.

Each library has a script in `clients/` that uses it as people do and prints what came of it; what
it says of a text must be what the server says to a plain request.  Each has an environment of its
own in the folder that FORERUN_PEERS names, because they want different versions of one another:
`make test-serve-clients` makes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess, server
from sockets import server_at_a_socket
from talking import HERMES, talker

from forerun.loading.bundled import NAME
from forerun.serve.openai.offer import Limits

pytestmark = pytest.mark.serve

CLIENTS = Path(__file__).parent / "clients"
FEW = Limits(max_tokens=8, max_choices=4)  # so that thousands of requests take a minute
QUESTION = "Is this soup good?"
COOK = {"role": "system", "content": "You are a cook."}
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404"]

[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""
"""What a JSON schema cannot say may be refused by name: that a token is in the vocabulary, that a
prompt leaves room in the context, that of two fields one needs the other.  And of what it refuses
some is refused for its size, with 413."""
MODELS = """
- model_id: ours
  model_name: {name}
  api_base: {address}/v1
"""
PEERS = Path(os.environ.get("FORERUN_PEERS", "build/peers")).absolute()
SCRIPTS = {
    "openai_python": ("openai", "openai"),
    "anthropic_python": ("anthropic", "anthropic"),
    "langchain_python": ("langchain-openai", "langchain_openai"),
    "instructor_python": ("instructor", "instructor"),
    "pydantic_ai_python": ("pydantic-ai-slim", "pydantic_ai"),
    "openai_agents": ("openai-agents", "agents"),
    "litellm_python": ("litellm", "litellm"),
}
"""Scripts, and the package and the module that they need."""
MESSAGES: dict[str, tuple[list[Any], int]] = {
    "anthropic_python": ([COOK], 12),
    "pydantic_ai_python": ([COOK], 32),
    "openai_agents": ([COOK], 32),
    "litellm_python": ([], 24),
}
"""What comes before the question, and the tokens of the answer; nothing and 12 where not named."""


def missing(package: str) -> str:
    return f"{package} is not installed: make test-serve-clients"


def peer(name: str) -> Path:
    """The program of a package of the same name, or a skipped test that says how to get it."""
    found = shutil.which(name, path=PEERS / name / "bin") or shutil.which(name)
    if found is None:
        pytest.skip(missing(name))
    return Path(found)


def python_with(package: str, module: str) -> str:
    """A Python that has the module, ours if need be, or a skipped test."""
    for python in (PEERS / package / "bin" / "python", Path(sys.executable)):
        command = [python, "-c", f"import {module}"]
        if python.exists() and not subprocess.run(command, capture_output=True).returncode:
            return str(python)
    pytest.skip(missing(package))


def output_of(folder: Path, *command: Any, **environment: str) -> str:
    """What a program prints, in a folder and an environment without anything of ours."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    offline = {"NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **offline, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def ours() -> Iterator[ServerProcess]:
    with server() as process:
        yield process


def expected(ours: ServerProcess, before: list[Any], max_tokens: int) -> str:
    """The server's answer to the question, by a plain request."""
    messages = [*before, {"role": "user", "content": QUESTION}]
    body = {"messages": messages, "seed": 7, "temperature": 0.8, "max_tokens": max_tokens}
    status, _, told = ours.ask(body=body)
    assert status == 200
    return str(told["choices"][0]["message"]["content"])


def check(told: dict[str, Any], text: str) -> None:
    """The script's texts are the server's, and everything else held."""
    print(told.pop("version"))
    for name in ("whole", "streamed"):
        if isinstance(told.get(name), str):
            assert told.pop(name).strip() == text.strip(), name
    assert told
    assert all(told.values()), told


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_library(script: str, ours: ServerProcess, tmp_path: Path) -> None:
    python = python_with(*SCRIPTS[script])
    address = f"http://127.0.0.1:{ours.port}"
    told = output_of(tmp_path, python, CLIENTS / f"{script}.py", address, NAME).splitlines()[-1]
    check(json.loads(told), expected(ours, *MESSAGES.get(script, ([], 12))))


def test_the_official_client_of_node(ours: ServerProcess, tmp_path: Path) -> None:
    node, folder = peer("node"), PEERS / "node"
    if not (folder / "node_modules" / "openai").exists():
        pytest.skip(missing("npm's openai"))
    address = f"http://127.0.0.1:{ours.port}"
    told = output_of(tmp_path, node, CLIENTS / "openai_node.mjs", address, NAME, folder)
    check(json.loads(told.splitlines()[-1]), expected(ours, [], 12))


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["streamed", "whole"])
def test_llm(ours: ServerProcess, options: list[str], tmp_path: Path) -> None:
    program = peer("llm")
    models = MODELS.format(address=f"http://127.0.0.1:{ours.port}", name=NAME)
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    how = ["-m", "ours", "--key", "any", "-o", "seed", "7", "-o", "temperature", "0.8"]
    command = [program, *how, "-o", "max_tokens", "24", *options, QUESTION]
    told = output_of(tmp_path, *command, LLM_USER_PATH=str(tmp_path))
    assert told.strip() == expected(ours, [], 24).strip()


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Through every operation there is: bodies by the schema are answered or refused by name,
    others are refused, none fails."""
    program = peer("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with server_at_a_socket(talker(HERMES), limits=FEW) as address:
        with urllib.request.urlopen(f"{address}/openapi.json") as document:
            num_operations = sum(map(len, json.load(document)["paths"].values()))
        options = ["--phases", "coverage,fuzzing", "--max-examples", "20", "--seed", "1"]
        told = output_of(
            tmp_path, program, "--config-file", config, "run", f"{address}/openapi.json", *options
        )
    assert f"Tested: {num_operations}" in told
