"""Prompts: our own set, files in Spec-Bench's format, and files that are something else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from forerun import prompts
from forerun.base.errors import InputError


def test_our_own_set_has_eight_prompts_in_each_of_six_groups() -> None:
    found = prompts.own()
    assert Counter(prompt.group for prompt in found) == dict.fromkeys(prompts.GROUPS, 8)
    assert len({prompt.id for prompt in found}) == len({prompt.text for prompt in found}) == 48
    assert all(len(prompt.turns) == 2 for prompt in found if prompt.group == "chat")
    for prompt in found:
        if prompt.group in ("summarization", "rag"):
            assert 150 <= len(prompt.text.split()) <= 400, prompt.id


def test_spec_bench_lines_keep_their_ids_and_topics_are_chat(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": []},
        {"question_id": 161, "category": "translation", "turns": ["c"]},
        {"prompt": "d", "source": "elsewhere"},
    ]
    file = tmp_path / "set.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    assert prompts.read(file) == [
        prompts.Prompt("81", "chat", ("a", "b")),
        prompts.Prompt("161", "translation", ("c",)),
        prompts.Prompt("3", prompts.UNGROUPED, ("d",)),
    ]


def test_pick_spreads_over_each_group_in_the_leaderboards_order() -> None:
    many = [prompts.Prompt(f"q{i}", "qa", ("x",)) for i in range(9)]
    few = [prompts.Prompt("t", "translation", ("x",)), prompts.Prompt("o", "others", ("x",))]
    found = [prompt.id for prompt in prompts.pick([few[1], *many, few[0]], 3)]
    assert found == ["t", "q0", "q3", "q6", "o"]


def test_bare_lines_are_prompts_only_where_that_was_asked_for() -> None:
    text = 'Say "hello".\n{"prompt": "p"}\n'
    assert [each.text for each in prompts.parse(text, "f", bare_lines=True)] == [
        'Say "hello".',
        "p",
    ]
    with pytest.raises(InputError, match="Line 1 of f holds no prompt"):
        prompts.parse(text, "f")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('["a prompt"]', "Line 1"),
        ('"a prompt"', "Line 1"),
        ("7", "Line 1"),
        ("null", "Line 1"),
        ('{"turns": "not a list"}', "Line 1"),
        ('{"turns": []}', "Line 1"),
        ('{"turns": ["fine", ""]}', "Line 1"),
        ('{"prompt": 7}', "Line 1"),
        ('{"prompt": "p", "category": 7}', "Line 1"),
        ('{"text": "p"}', "Line 1"),
        ('{"prompt": "p", "question_id": 2}\n{"prompt": "q"}', "Line 2 of f repeats an id"),
        ("", "holds no prompt"),
        ("  \n\n", "holds no prompt"),
    ],
)
def test_what_is_no_prompt_set_is_refused_by_line(line: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        prompts.parse(line, "f")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"prompt": "caf\xe9"}')
    for name in ("latin", "missing", "."):
        with pytest.raises(InputError, match="cannot be read"):
            prompts.read(tmp_path / name)
    with pytest.raises(InputError, match="so few"):
        prompts.pick(prompts.own(), 0)
