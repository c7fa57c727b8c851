"""Our lookup drafters inside vLLM, as a proposer of its method "custom_class".

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "forerun.integrations.vllm.Proposer", "num_speculative_tokens": 5}'

vLLM imports the class, calls it with its configuration, and after every step calls `propose` with
the texts of its batch.  Guesses have no probabilities there: they are point masses, which vLLM's
standard rejection keeps exact.  Nothing of vLLM is imported here.

Options come from `--additional-config '{"forerun": {...}}'`:

    drafter   "ngram", "suffix", or both: "suffix+ngram" (the default)
    ngram     fields of `NGram`, for example {"max_n": 4, "min_n": 2}
    suffix    fields of `Suffix`, for example {"max_match": 32}
    remember  whether guesses may come from other requests' texts (default: no).  vLLM does not say
              whose a request is, so one user's speed could tell of another's text; and of two
              requests with one seed the second's guesses would depend on its coins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.base import Drafter, Outcome, Turn
from forerun.drafters.mixed import Mixed
from forerun.drafters.ngram import NGram
from forerun.drafters.suffix import Suffix
from forerun.sampling.options import Sampling

Known = TypeVar("Known")
Text = np.ndarray[Any, Any]
"""Token ids, (N,)."""


@dataclass
class KnownRequest(Generic[Known]):
    """A request in the batch, and what its owner knows about it."""

    text: Text
    known: Known | None = None

    def goes_on_as(self, text: Text, num_sampled: int) -> bool:
        """Whether this text is the request's with `num_sampled` new tokens."""
        end = len(self.text)
        return len(text) == end + num_sampled and bool(np.array_equal(text[:end], self.text))


class Recognition(Generic[Known]):
    """Tells which request a row holds, because vLLM gives texts and no names.

    It keeps the requests of the last step, by row.  Between two steps a text grows by the tokens
    that were just sampled and is the same before them.  Rows may be swapped, filled with other
    requests, or left empty for a while.
    """

    def __init__(self) -> None:
        self._last: list[KnownRequest[Known]] = []

    def update(
        self, texts: Sequence[Text], counts: Sequence[int]
    ) -> tuple[list[KnownRequest[Known]], list[Known]]:
        """The request of each row now, and what was known of those that are in no row any more.

        counts: (R,), how many tokens were sampled.  Equal texts are interchangeable.
        """
        missing = dict(enumerate(self._last))
        present: list[KnownRequest[Known] | None] = [None] * len(texts)
        for take_any in (False, True):  # rows that stayed where they were come first
            for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
                if present[row] is None:
                    candidates = list(missing) if take_any else [row] if row in missing else []
                    for source in candidates:
                        if missing[source].goes_on_as(text, count):
                            present[row] = missing.pop(source)
                            break
        now = []
        for request, text in zip(present, texts, strict=True):
            request = request or KnownRequest(text)
            request.text = np.array(text)
            now.append(request)
        self._last = now
        return now, [gone.known for gone in missing.values() if gone.known is not None]


DRAFTERS: dict[str, Any] = {"ngram": NGram, "suffix": Suffix}
"""The drafters that need only texts, because vLLM provides neither hidden states nor logits."""
OPTIONS = ("drafter", "remember", *DRAFTERS)
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A stand-in for a target that runs in another engine."""

    name: str
    vocab_size: int = 0
    max_context: int | None = None


@dataclass
class Guessed:
    """One request of vLLM's: its row in the drafter's state, and its last guess."""

    row: int
    position: int = 0  # output tokens so far
    tokens: list[int] = field(default_factory=list)


class Proposer:
    """Proposes continuations of the texts in vLLM's batch.

    vLLM gives no ids of requests.  A request is recognised by its text, which is the one of the
    last step and the tokens sampled since.  One that is not in the batch any more is forgotten, so
    there are never more than `max_num_seqs`.
    """

    def __init__(self, vllm_config: Any) -> None:
        options = _options(getattr(vllm_config, "additional_config", None))
        self.num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len: int = vllm_config.model_config.max_model_len
        self.drafter = make_drafter(options)
        self._remembers = bool(options.get("remember", False))
        num_rows = vllm_config.scheduler_config.max_num_seqs
        name = str(getattr(vllm_config.model_config, "model", "vLLM"))
        target: Any = Elsewhere(name, max_context=self.max_model_len)
        self._state = self.drafter.start(target, num_rows, self.max_model_len)
        self._free = list(range(num_rows))
        self._requests: Recognition[Guessed] = Recognition()

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],  # (R, ragged): of this step
        num_tokens_no_spec: np.ndarray[Any, Any],  # (>= R,): the length of each text
        token_ids_cpu: np.ndarray[Any, Any],  # (>= R, max_model_len): the texts
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """At most `num_speculative_tokens` guesses for each row; none where nothing was sampled."""
        lengths = [int(num_tokens_no_spec[index]) for index in range(len(sampled_token_ids))]
        texts = [token_ids_cpu[index, :length] for index, length in enumerate(lengths)]
        counts = [len(tokens) for tokens in sampled_token_ids]
        present, gone = self._requests.update(texts, counts)
        for known in gone:
            self.drafter.release(self._state, known.row)
            self._free.append(known.row)
        outcomes, turns, asked = [], [], []
        for index, request in enumerate(present):
            if not counts[index]:
                continue
            if request.known is None:
                if not self._free:
                    continue
                request.known = self._enter(texts[index], counts[index])
            else:
                outcomes.append(_outcome(request.known, texts[index][-counts[index] :].tolist()))
            budget = min(self.num_speculative_tokens, self.max_model_len - lengths[index] - 1)
            if budget > 0:
                known = request.known
                turns.append(Turn(known.row, budget, GREEDY, seed=0, position=known.position))
                asked.append((index, known))
        if outcomes:
            self.drafter.observe(self._state, outcomes)
        guesses: list[list[int]] = [[] for _ in counts]
        made = self.drafter.propose(self._state, turns, shared_noise=self._remembers)
        for (index, known), guess in zip(asked, made, strict=True):
            known.tokens = guesses[index] = guess.tokens
        return guesses

    def load_model(self, model: Any) -> None:
        """Does nothing, because there is nothing to load."""

    def _enter(self, text: np.ndarray[Any, Any], num_sampled: int) -> Guessed:
        row = self._free.pop()
        self.drafter.enter(self._state, row, text.tolist(), len(text) - num_sampled)
        return Guessed(row, num_sampled)


def make_drafter(options: Mapping[str, Any]) -> Drafter:
    """Make the drafter that the options name. If it combines several, they are not chosen by
    timings: vLLM runs a proposer in every process of a tensor-parallel group, and all of them must
    guess alike."""
    spec = str(options.get("drafter", "suffix+ngram"))
    made: list[Drafter] = []
    for name in spec.split("+"):
        if name not in DRAFTERS:
            wrong = "vLLM gives a proposer texts and nothing else, which is too little for this."
            cure = f"Use {' or '.join(DRAFTERS)}, or several as suffix+ngram."
            raise UnsupportedError(explain(wrong, f"drafter {name!r}", cure))
        try:
            made.append(DRAFTERS[name](**options.get(name, {})))
        except TypeError as error:
            wrong = f"Unknown options of {name} ({error})."
            cure = f"Use the fields of {DRAFTERS[name].__name__}."
            raise InputError(explain(wrong, options.get(name), cure)) from error
    return made[0] if len(made) == 1 else Mixed(*made, clock=lambda: 0.0)


def _options(additional: Any) -> Mapping[str, Any]:
    options = additional.get("forerun", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(options, Mapping) or (set(options) - set(OPTIONS)):
        cure = f'Use --additional-config with {{"forerun": {{...}}}} and {", ".join(OPTIONS)}.'
        raise InputError(explain("These options are not known here.", options, cure))
    return options


def _outcome(known: Guessed, sampled: list[int]) -> Outcome:
    """The outcome of the last guess: vLLM's tokens begin with the accepted ones."""
    num_accepted = 0
    for token, guess in zip(sampled[:-1], known.tokens, strict=False):
        if token != guess:
            break
        num_accepted += 1
    num_scored = len(known.tokens)
    known.position, known.tokens = known.position + len(sampled), []
    return Outcome(known.row, num_accepted, sampled, range(num_accepted), num_scored=num_scored)
