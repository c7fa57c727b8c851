"""Scripts of conversations, one per kind, so that the answers cover many tasks.

A script is a generator: it yields the tokens put before the model, receives the model's reply, and
returns when the conversation ends.  Prompts come from a file, from the model itself, which also
writes questions, and from its earlier answers, as texts to summarise, translate or ask about.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from forerun.train.chat import Chat


@dataclass(frozen=True)
class Say:
    """A step of a script: tokens to feed, and how the model replies to them."""

    tokens: Sequence[int]
    temperature: float
    limit: int  # tokens the model may say
    is_answer: bool = True  # train on the reply; False for questions the model writes


Script = Generator[Say, list[int], None]

TEMPERATURES = (0.0, 0.0, 0.0, 0.8)
LONG = 1600  # characters of a prompt that is asked where there is room for long ones
MOST_KEPT = 4096  # passages and questions
ENOUGH = 8  # of them before they are used

FOLLOW_UPS = (
    "Say that again in one sentence.",
    "Explain this to a child.",
    "Give me an example.",
    "Rewrite your answer as a list.",
    "Are you sure? Check it step by step.",
    "What would someone who disagrees say?",
    "Write a short title and a longer version of this.",
    "Which part of that matters most, and why?",
)
TASKS = (
    "Summarize: {text}",
    "Summarize the following text in two sentences.\n\n{text}",
    "Write a summary of this article.\n\n{text}",
    "{text}\n\nWhat are the main points of the text above? Answer with a list.",
    "Rewrite the following text in simpler words:\n{text}",
    "Correct the spelling and grammar of this text:\n\n{text}",
    "Continue this text: {text}",
    "Translate English to German: {text}",
    "Translate the following text to French.\n\n{text}",
    "Translate to Spanish: {text}",
    "Give this text a title and explain your choice.\n\n{text}",
    "Extract all names, places and numbers from the text as JSON.\n\n{text}",
    "Write three questions about the following text, with answers.\n\n{text}",
    "Turn this into an email to a colleague: {text}",
)
BACK = "Translate German to English: {text}"
QUESTION = "Write one short question that the following text answers.\n\n{text}"
FRAMES = (
    "{texts}\n\n{question}",
    "{texts}\n\nQuestion: {question}",
    "Answer the question from the texts below.\n\n{texts}\n\nQuestion: {question}\nAnswer:",
    "Summarize: {texts}",
    "Write a short summary of the following.\n\n{texts}",
)


class Cycle:
    """Yields texts in random order, again and again.

    asked: how many times each text was used in earlier runs.
    """

    def __init__(
        self, texts: Sequence[str], order: random.Random, asked: Sequence[int] = ()
    ) -> None:
        self.texts, self.order = texts, order
        self.asked = asked or [0] * len(texts)
        self.waiting: list[int] = []  # in this cycle
        self.number = -1

    def __len__(self) -> int:
        return len(self.texts)

    def next(self) -> tuple[str, int]:
        """The next text, and how many times it was used before."""
        if not self.waiting:
            self.waiting = self.order.sample(range(len(self.texts)), len(self.texts))
            self.number += 1
        index = self.waiting.pop()
        return self.texts[index], self.asked[index] + self.number


@dataclass
class Author:
    """Writes scripts, and keeps answers and questions as material for later ones."""

    chat: Chat
    prompts: Sequence[str]
    seed: int
    limit: int = 320  # tokens of an answer
    asked: Sequence[int] = ()  # how often each prompt has been answered before
    passages: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    foreign: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    questions: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.short_prompts = self._cycle(is_long=False)
        self.long_prompts = self._cycle(is_long=True)

    def _cycle(self, *, is_long: bool) -> Cycle:
        asked = self.asked or [0] * len(self.prompts)
        pairs = zip(self.prompts, asked, strict=True)
        chosen = [(text, count) for text, count in pairs if (len(text) >= LONG) == is_long]
        return Cycle([text for text, _ in chosen], self.random, [count for _, count in chosen])

    def short(self) -> Script:
        """A script with a short prompt: a question from the file, from the model, or about one of
        its texts."""
        if not self.chat.has_turns or len(self.passages) < ENOUGH:
            return self.from_prompt()
        kinds = (self.from_prompt, self.self_prompted, self.about_text, self.asked_for_question)
        kind = self.random.choices(kinds, (0.5, 0.25, 0.15, 0.1))[0]
        return kind()

    def long(self) -> Script:
        """A script with a long prompt: from the file, or several earlier texts and a question about
        them."""
        if self.long_prompts and self.random.random() < 0.6:
            return self.from_prompt(self.long_prompts)
        return self.about_texts() if len(self.questions) >= ENOUGH else self.short()

    def from_prompt(self, prompts: Cycle | None = None) -> Script:
        """A script for the next prompt of the file: answered greedily the first time, then at
        temperature 0.7 and 1 in turns.

        The greedy answer is always the same, so it is collected only once.
        """
        prompts = prompts or self.short_prompts or self.long_prompts
        prompt, times = prompts.next()
        temperature = (0.7, 1.0)[(times - 1) % 2] if times else 0.0
        chance = 0.7 if prompts is self.long_prompts else 0.25
        yield from self._discussion(self.chat.ask(prompt), chance, temperature)

    def self_prompted(self) -> Script:
        """A script in which the model writes the user's question and then answers it."""
        asked = yield Say(self.chat.encode(self.chat.opening), 1.0, 160, is_answer=False)
        if 4 <= len(asked) < 160:
            yield from self._discussion(self.chat.after_turn(self.chat.to_assistant, asked), 0.25)

    def about_text(self) -> Script:
        if self.foreign and self.random.random() < 0.25:
            text = BACK.format(text=self.random.choice(self.foreign))
            yield Say(self.chat.ask(text), self._temperature(), 160)
            return
        task = self.random.choice(TASKS)
        said = self.chat.ask(task.format(text=self._passage(200)))
        answer = yield Say(said, self._temperature(), min(256, self.limit))
        if "German" in task:
            self.foreign.append(_first_words(self.chat.decode(answer), 60))

    def asked_for_question(self) -> Script:
        passage = self._passage(300)
        asked = yield Say(self.chat.ask(QUESTION.format(text=passage)), 0.7, 48)
        self.questions.append((passage, self.chat.decode(asked)))

    def about_texts(self) -> Script:
        """A script with several texts, then a question about one of them or a request to summarise
        all."""
        passage, question = self.random.choice(self.questions)
        texts = [passage, *(self._passage(300) for _ in range(self.random.randint(1, 3)))]
        self.random.shuffle(texts)
        frame = self.random.choice(FRAMES)
        text = frame.format(texts="\n\n".join(texts), question=question)
        yield from self._discussion(self.chat.ask(text), 0.7)

    def _discussion(
        self, tokens: Sequence[int], chance: float, temperature: float | None = None
    ) -> Script:
        """An answer, followed by up to three further questions, each with the given probability."""
        for _ in range(3):
            temperature = self._temperature() if temperature is None else temperature
            answer = yield Say(tokens, temperature, self.limit)
            self._remember(answer, temperature)
            if not self.chat.has_turns or self.random.random() > chance:
                return
            follow_up = self.random.choice(FOLLOW_UPS) + self.chat.to_assistant
            tokens = self.chat.after_turn(self.chat.to_user + follow_up, answer)
            temperature = None

    def _temperature(self) -> float:
        return self.random.choice(TEMPERATURES)

    def _passage(self, most_words: int) -> str:
        return _first_words(self.random.choice(self.passages), self.random.randint(20, most_words))

    def _remember(self, answer: list[int], temperature: float) -> None:
        """Keep an answer as a text for later scripts, unless it is short, sampled at a high
        temperature, or repetitive."""
        if temperature < 1 and len(answer) >= 60:
            text = self.chat.decode(answer)
            words = text.split()
            if len(set(words)) > len(words) / 3:
                self.passages.append(text)


def _first_words(text: str, count: int) -> str:
    """The first words of a text, with their line breaks."""
    return " ".join(text.split(" ")[:count])
