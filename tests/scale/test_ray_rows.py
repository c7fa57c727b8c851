"""What of Ray Data and sweeps on Ray needs no Ray: requests of rows, shares, equal machines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from forerun.base.errors import InputError, MissingExtraError
from forerun.batch.lines import seed_of
from forerun.measure.grid import Job
from forerun.measure.machine import Machine
from forerun.measure.records import Cell
from forerun.measure.running import Question
from forerun.scale.ray_cluster import share_of_nodes, start_ray
from forerun.scale.ray_data import requests_of
from forerun.scale.ray_sweep import check_equal, groups_of


def test_the_seed_of_a_row_is_made_of_the_row_alone() -> None:
    prompts = np.array(["a", "b", "a"], dtype=object)
    first = requests_of({"prompt": prompts}, 5, {"max_tokens": 3})
    moved = requests_of({"prompt": prompts[::-1]}, 5, {"max_tokens": 3})
    seeds = [request.body["seed"] for request in first]
    assert seeds == [request.body["seed"] for request in moved][::-1]
    assert seeds[0] == seeds[2] != seeds[1]
    assert first[1].body == {"seed": seed_of(5, json.dumps("b")), "max_tokens": 3, "prompt": "b"}
    named = requests_of({"prompt": prompts, "custom_id": ["x", "y", "z"]}, 5, {"seed": 1})
    assert [request.custom_id for request in named] == ["x", "y", "z"]
    assert named[0].body["seed"] == 1  # one that is asked for counts
    unseeded = requests_of({"prompt": prompts, "custom_id": ["x", "y", "z"]}, 5, {})
    assert len({request.body["seed"] for request in unseeded}) == 3


def test_messages_as_arrow_keeps_them() -> None:
    messages = np.array([{"role": "user", "content": "é", "name": None}], dtype=object)
    batch = {"messages": np.array([messages, messages], dtype=object)}
    (request, _) = requests_of(batch, 0, {})
    assert request.body["messages"] == [{"role": "user", "content": "é"}]
    json.dumps(request.body)


def test_rows_without_a_prompt() -> None:
    with pytest.raises(InputError, match=r"columns \['text'\]"):
        requests_of({"text": ["a"]}, 0, {})


def test_workers_fit_on_the_nodes() -> None:
    assert share_of_nodes(1, [2]) == 2
    assert share_of_nodes(2, [2]) == 1
    assert share_of_nodes(3, [8] * 10) == 8
    assert share_of_nodes(12, [8, 16]) == 1
    assert share_of_nodes(4, [9, 16]) == 4


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"forerun\[ray\]"):
        start_ray()


def test_unequal_machines_are_refused_naming_what_differs() -> None:
    machine = Machine(
        "arm", "aarch64", 4, 4, "cpu", "float32", "3.11", "1", {"numpy": "2"}, 0.1, ""
    )
    check_equal([machine, replace(machine, load=9.0, command="x")])
    with pytest.raises(InputError, match=r"cores 3 and 4"):
        check_equal([replace(machine, cores=3), replace(machine, cores=4)])
    with pytest.raises(InputError, match="packages"):
        check_equal([machine, machine, replace(machine, packages={"numpy": "1"})])


def test_what_is_compared_stays_on_one_machine() -> None:
    questions = [Question(str(i), "g", "t", [1], 0) for i in range(2)]
    cells = [Cell("t", None, k, None, 1, 0.0, "match") for k in range(3)]
    jobs = [Job(c, r, (q,)) for r in range(2) for q in questions for c in cells]
    groups = groups_of(jobs)
    assert [len(group) for group in groups] == [3] * 4
    assert [job for group in groups for job in group] == jobs
