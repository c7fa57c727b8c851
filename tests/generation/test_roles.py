"""A chat's roles: what a template drops is refused, what nobody knows is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jinja2
import pytest

import forerun as fr
from forerun.generation.prompts import check_roles, roles_of

CHATML = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
PICKY = (
    "{% for m in messages %}{% if m['role'] == 'user' %}U{{ m.content }}"
    '{% elif m.role == "assistant" %}A{{ m.content }}'
    "{% elif m.role in ['tool', 'ipython'] %}T{{ m.content | tojson }}{% endif %}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}


def check(template: str, *chat: dict[str, Any]) -> None:
    def render(messages: Sequence[Any]) -> str:
        return jinja2.Template(template).render(messages=messages)

    check_roles(chat, render(chat), template, render)


@pytest.mark.parametrize("role", ["system", "developer", "tool", "user", "assistant"])
def test_usual_roles_that_are_worded_pass_silently(role: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(CHATML, USER, {"role": role, "content": " What? "})
        check(PICKY, USER, {"role": "tool", "content": 'a "quoted"\nresult'})  # worded as JSON
        check(PICKY, USER, {"role": "ipython", "content": "4"})
        check(PICKY, {"role": "system", "content": " "}, USER)  # nothing that could be lost


def test_a_role_that_is_worded_but_unknown_is_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match=r"role 'usr' .* Did you mean user\?"):
        check(CHATML, {"role": "usr", "content": "hi"})
    with pytest.warns(RuntimeWarning, match="role 'narrator'"):
        check(CHATML, USER, {"role": "narrator", "content": "meanwhile"})


@pytest.mark.parametrize("role", ["usr", "system", "narrator"])
def test_a_message_that_the_template_drops_is_refused(role: str) -> None:
    with pytest.raises(fr.InputError, match=f"leaves out messages of the role '{role}'") as told:
        check(PICKY, USER, {"role": role, "content": "hi there"})
    assert "Use a role that it knows: user, assistant, tool, ipython." in str(told.value)
    assert ("Did you mean user?" in str(told.value)) is (role == "usr")


def test_a_template_that_looks_into_contents_is_left_alone() -> None:
    fussy = PICKY + "{{ 1 // (messages[-1]['content'] | length - 12) }}"  # fails for the mark
    check(fussy, USER, {"role": "system", "content": "be brief"})


def test_roles_that_a_template_names() -> None:
    assert roles_of(PICKY) == ["user", "assistant", "tool", "ipython"]
    assert roles_of(CHATML) == roles_of({"default": PICKY}) == []
