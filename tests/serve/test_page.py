"""The page in a real browser, with a real server behind it: `forerun serve` and its default model.

One test asks, reads and leaves by keys alone; the others press buttons and fill in settings by
script.  Where the server must err, the browser answers one request in its place.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from contrasts import check_contrasts

from chromium import Tab

pytestmark = pytest.mark.browser

KEY = "a-key-for-tests"
CHAT = "*/v1/chat/completions"
QUESTION = "Repeat word for word: The quick brown fox jumps over the lazy dog, and the fox sleeps."
SIZES = {"desktop": (1280, 800), "phone": (360, 740)}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for a key and drafts four tokens in every round."""
    keys = tmp_path_factory.mktemp("serve") / "keys.txt"
    keys.write_text(KEY + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "forerun.cli", "serve", "--port", "0", "--draft-length", "4"]
    command += ["--drafter", "ngram", "--drafter", "suffix"]
    process = subprocess.Popen(
        [*command, "--api-key-file", str(keys)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        page = next((line.split()[1] for line in lines if line.split()[:1] == ["page"]), None)
        assert page is not None, "the server ended before it was ready"
        yield page
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    tab = Tab(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture
def tab(browser: Tab, address: str) -> Iterator[Tab]:
    """The page, freshly opened, with the key entered; at the end it must have met no error."""
    open_page(browser, address)
    browser.type(KEY)
    browser.press("Enter")
    browser.wait_for("document.querySelector('#model').textContent")
    browser.faults.clear()  # the refusals before the key
    yield browser
    assert browser.faults == []


def open_page(tab: Tab, address: str, *, size: str = "desktop", scheme: str = "light") -> None:
    tab.show_as(*SIZES[size], scheme)
    tab.open(address)
    tab.ask("sessionStorage.clear(); localStorage.clear()")
    tab.open(address)
    tab.wait_for("document.querySelector('#ask-key').open")


def set_up(tab: Tab, **settings: Any) -> None:
    """Fill in the dialog of settings and submit it."""
    tab.ask("document.querySelector('#open-settings').click()")
    for name, value in settings.items():
        field = f"document.querySelector('#settings [name={name}]')"
        tab.ask(f"{field}.value = {json.dumps(str(value))}")
    tab.ask("document.querySelector('#settings form').requestSubmit()")
    tab.wait_for("!document.querySelector('#settings').open")


def send(tab: Tab, message: str = QUESTION) -> None:
    tab.ask("document.querySelector('#message').focus()")
    tab.type(message)
    tab.press("Enter")


def answers(tab: Tab) -> list[str]:
    return tab.ask("[...document.querySelectorAll('.answer')].map((each) => each.textContent)")


def answered(tab: Tab) -> None:
    done = "document.querySelector('.again') && !document.body.matches('.busy')"
    tab.wait_for(done, seconds=300)  # the first answer of a server may compile kernels


def run_again(tab: Tab) -> None:
    tab.ask("document.querySelector('.again').click()")
    tab.wait_for("document.querySelector('.verdict')")


def words(tab: Tab, selector: str) -> str:
    return str(tab.ask(f"document.querySelector({json.dumps(selector)}).innerText"))


def made_up_stream(text: str) -> str:
    """The events of an answer of one token."""
    choice = {
        "index": 0,
        "delta": {"content": text},
        "fates": ["bonus"],
        "tokens": [{"text": text, "fate": "bonus", "logprob": -0.1}],
    }
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events = [json.dumps({"choices": [each]}) for each in (choice, last)]
    return "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))


def answer_next_with(tab: Tab, text: str) -> None:
    tab.answer_next(CHAT, 200, made_up_stream(text), {"Content-Type": "text/event-stream"})


def test_tokens_come_with_their_fates_by_keyboard_alone(tab: Tab) -> None:
    set_up(tab, seed=7, max_tokens=40)
    tab.ask("document.querySelector('#message').focus()")
    tab.type("Repeat word for word:")
    tab.press("Enter", shift=True)
    tab.type("the quick brown fox jumps over the lazy dog, and the quick brown fox sleeps")
    assert "\n" in tab.ask("document.querySelector('#message').value")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.answer .token')")
    tab.wait_for("Number(document.querySelector('[data-gauge=tokens_per_second]').innerText) > 0")
    answered(tab)
    fates = tab.ask("[...document.querySelectorAll('.answer .token')].map((t) => t.classList[1])")
    assert set(fates) == {"accepted", "correction", "bonus"}
    assert "of guesses accepted" in words(tab, ".facts")
    lines = tab.ask("[...document.querySelectorAll('.answer .token')].map(t => t.textContent)")
    assert "".join(lines) == answers(tab)[0]

    for _ in range(20):  # the answer is one stop on the way through the page
        tab.press("Tab")
        if tab.ask("document.activeElement.matches('.answer .token')"):
            break
    tab.press("ArrowRight")
    assert "probable" in words(tab, "#inspector")
    assert tab.ask("document.activeElement === document.querySelectorAll('.answer .token')[1]")
    assert tab.ask("document.querySelectorAll('#inspector li').length") >= 5
    assert "token 2" in words(tab, "#inspector")
    tab.press("Escape")
    assert tab.ask("document.querySelector('#inspector').hidden")


def test_the_probability_is_under_the_pointer(tab: Tab) -> None:
    set_up(tab, seed=1, max_tokens=8)
    send(tab)
    answered(tab)
    tab.point_at(".answer .token")
    shares = tab.ask("[...document.querySelectorAll('#inspector li span')].map(s => s.innerText)")
    assert sum(float(share.strip("<>%")) for share in shares) <= 100.5
    assert tab.ask("document.querySelectorAll('#inspector .chosen').length") == 1
    tab.point_at("#model")
    assert tab.ask("document.querySelector('#inspector').hidden")


def test_a_second_run_says_that_the_text_is_the_same(tab: Tab) -> None:
    set_up(tab, max_tokens=40)  # without a seed: the page draws one and uses it twice
    send(tab)
    answered(tab)
    run_again(tab)
    first, second = answers(tab)
    assert first == second != ""
    assert words(tab, ".verdict h3").startswith("Same text")
    length = len(first)  # line breaks are shown by the style, not by characters
    assert f"All {length} characters identical" in words(tab, ".verdict")
    kinds = "[...document.querySelectorAll('.run')[1].querySelectorAll('.token')]"
    assert tab.ask(f"{kinds}.every((token) => token.matches('.bonus'))")
    passes = tab.ask(
        "[...document.querySelectorAll('tbody tr:first-child td')].map(c=>c.innerText)"
    )
    with_it, without = map(int, passes)
    assert with_it <= without


def test_the_switch_turns_speculation_off(tab: Tab) -> None:
    set_up(tab, seed=3, max_tokens=24, drafter="suffix")
    tab.point_at(".switch", click=True)
    send(tab)
    answered(tab)
    assert tab.ask("document.querySelectorAll('.answer .token:not(.bonus)').length") == 0
    run_again(tab)
    assert tab.ask("document.querySelectorAll('.answer .token.accepted').length") > 0
    assert words(tab, ".verdict h3").startswith("Same text")
    assert "drafter suffix" in words(tab, ".run:last-child .facts")


@pytest.mark.parametrize("changed", ["x", "longer"])
def test_a_text_that_differs_is_found(tab: Tab, changed: str) -> None:
    """The check can fail: one other character, or some more at the end."""
    text = "One, two, 🦊 three."
    other = text.replace("w", "x") if changed == "x" else text + " Four."
    answer_next_with(tab, text)
    send(tab)
    answered(tab)
    answer_next_with(tab, other)
    run_again(tab)
    place = 7 if changed == "x" else len(text) + 1
    assert words(tab, ".verdict h3") == f"The texts differ from character {place}."


def test_text_of_the_model_is_never_markup(tab: Tab) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    answer_next_with(tab, text)
    send(tab, "<b>bold</b>")
    answered(tab)
    assert answers(tab) == [text]
    assert words(tab, ".asked") == "<b>bold</b>"
    assert tab.ask("document.querySelectorAll('#turns img, #turns b b, #turns script').length") == 0


def test_escape_stops_and_the_chat_goes_on(tab: Tab) -> None:
    set_up(tab, max_tokens=400)
    send(tab, "Tell me a long story about a lighthouse.")
    tab.wait_for("document.querySelectorAll('.answer .token').length > 5")
    tab.press("Escape")
    answered(tab)
    assert "stopped" in words(tab, ".facts")
    set_up(tab, max_tokens=5)
    send(tab, "And now?")
    tab.wait_for("document.querySelectorAll('.again').length === 2")
    tab.ask("document.querySelector('#new-chat').click()")
    assert tab.ask("document.querySelectorAll('.turn').length") == 0


def test_a_full_queue_is_tried_again(tab: Tab) -> None:
    set_up(tab, max_tokens=5)
    refusal = json.dumps({"error": {"message": "Too many requests are waiting."}})
    tab.answer_next(CHAT, 429, refusal, {"Retry-After": "1"})
    send(tab)
    tab.wait_for("document.querySelector('.notices').innerText.includes('Trying again in 1 s')")
    answered(tab)
    assert words(tab, ".notices") == ""
    assert len(answers(tab)) == 1
    tab.faults.clear()  # the refusal


def test_a_wrong_key_is_asked_for_again(browser: Tab, address: str) -> None:
    open_page(browser, address)
    browser.type("not-the-key")
    browser.press("Enter")
    send(browser)
    browser.wait_for("document.querySelector('#ask-key').open")
    assert "does not know this key" in words(browser, "#ask-key")
    browser.type(KEY)
    browser.press("Enter")
    answered(browser)
    assert answers(browser)[0]
    assert browser.ask("Object.values(localStorage).length") == 0  # the key stays in the tab
    browser.faults.clear()  # the refusals


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("phone", "dark")]
)
def test_nothing_is_cut_off_or_pale_in_any_size_and_colour(
    tab: Tab, size: str, scheme: str
) -> None:
    tab.show_as(*SIZES[size], scheme, motion="reduce")
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not tab.ask(wide)
    set_up(tab, seed=5, max_tokens=24)
    send(tab)
    answered(tab)
    assert not tab.ask(wide)
    run_again(tab)
    assert not tab.ask(wide)
    shown = "(b => b.top >= 0 && b.bottom <= innerHeight)"
    heading = "document.querySelector('.verdict h3').getBoundingClientRect()"
    assert tab.ask(f"{shown}({heading})")
    check_contrasts(tab, scheme)
    tab.ask("document.querySelector('#theme').click()")
    check_contrasts(tab, "dark" if scheme == "light" else "light")
    tab.ask("document.querySelector('#open-settings').click()")
    box = tab.ask("document.querySelector('#settings').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= SIZES[size][0]


def test_errors_in_the_page_are_seen(browser: Tab, address: str) -> None:
    """The other tests mean something only if this one finds what was put there to be found."""
    open_page(browser, address)
    for fault in (
        "setTimeout(() => { throw new Error('seeded') })",
        "fetch('https://example.invalid')",
    ):
        browser.faults.clear()
        browser.ask(f"void ({fault})")
        for _ in range(100):
            if browser.faults:
                break
            browser.wait_for("true")
        assert browser.faults, fault
    browser.faults.clear()
