"""Clients of other projects against our server: schemathesis, litellm and `llm`.

They are looked for on PATH, and first in the folder that FORERUN_PEERS names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sockets import server_at_a_socket
from talking import HERMES, MESSAGES, generations, talker

import forerun as fr
from forerun.serve.openai.offer import Limits

pytestmark = pytest.mark.serve

FEW = Limits(max_tokens=8, max_choices=4)  # so that thousands of requests take a minute
TEXT = MESSAGES[0]["content"]
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404"]
"""
"""What a JSON schema cannot say may be refused by name: that a token is in the vocabulary, that a
prompt leaves room in the context, that of two fields one needs the other."""
LITELLM = """
import json, sys
import litellm
address, text = sys.argv[1:]
how = {"model": "openai/babbler", "api_base": address + "/v1", "api_key": "any", "seed": 7}
how |= {"temperature": 0.8, "max_tokens": 24}
messages = [{"role": "user", "content": text}]
whole = litellm.completion(messages=messages, **how)
parts = litellm.completion(messages=messages, stream=True, **how)
prompt = litellm.text_completion(prompt=text, **{**how, "model": "text-completion-openai/babbler"})
streamed = "".join(part.choices[0].delta.content or "" for part in parts)
print(json.dumps([whole.choices[0].message.content, streamed, prompt.choices[0].text]))
"""
MODELS = """
- model_id: ours
  model_name: babbler
  api_base: {address}/v1
"""


def peer(name: str) -> Path:
    """The program of that name, or a skipped test that says how to get it."""
    folders = os.pathsep.join([os.environ.get("FORERUN_PEERS", ""), os.environ.get("PATH", "")])
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return Path(found)


def output_of(folder: Path, *command: Any, **environment: str) -> str:
    """What a program prints, in a folder and an environment without anything of ours."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def expected(prompt: Any) -> str:
    sampling = fr.Sampling(seed=7, temperature=0.8)
    (answer,) = generations(talker(HERMES), prompt, sampling=sampling, max_new_tokens=24)
    return str(answer.text)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server_at_a_socket(talker(HERMES)) as address:
        yield address


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Bodies by the schema are answered or refused by name, others are refused, none fails."""
    program = peer("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with server_at_a_socket(talker(HERMES), limits=FEW) as address:
        options = ["--phases", "coverage,fuzzing", "--max-examples", "20", "--seed", "1"]
        told = output_of(
            tmp_path, program, "--config-file", config, "run", f"{address}/openapi.json", *options
        )
    assert "Tested: 11" in told


def test_litellm(address: str, tmp_path: Path) -> None:
    python = peer("litellm").parent / "python"
    command = [python, "-c", LITELLM, address, TEXT]
    told = output_of(tmp_path, *command, LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines()[-1]
    assert json.loads(told) == [expected(MESSAGES), expected(MESSAGES), expected(TEXT)]


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["streamed", "whole"])
def test_llm(address: str, options: list[str], tmp_path: Path) -> None:
    program = peer("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(address=address))
    how = ["-m", "ours", "--key", "any", "-o", "seed", "7", "-o", "temperature", "0.8"]
    command = [program, *how, "-o", "max_tokens", "24", *options, TEXT]
    told = output_of(tmp_path, *command, LLM_USER_PATH=str(tmp_path))
    assert told.rstrip("\n") == expected(MESSAGES).rstrip("\n")
