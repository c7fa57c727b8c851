"""One request at the desk: runs its choices on engines, and passes their pieces to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.base.clock import now
from forerun.base.errors import LOG, GenerationError, UnsupportedError
from forerun.engine.request import Request, Status
from forerun.engine.results import Fate, Generation, Piece, Seconds, Stats, TokenLogprob
from forerun.generation.intake import make_request
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.engine_deaths import Death, Trial
from forerun.serve.admission.engine_roles import Pair, Pool, PooledEngine, Writing
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.row_budget import RowBudget
from forerun.serve.watching.roles import Watcher


@dataclass
class Progress:
    """The state of one choice so far: its tokens, its counts from earlier engines, and the failures
    of engines that it was in."""

    tokens: list[int] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats | None = None  # of engines that died
    num_before: int = 0  # tokens when the present engine was entered
    deaths: list[Death] = field(default_factory=list)  # of engines that it was in
    is_suspect: bool = False  # has not been tried since the last of them

    @property
    def has_gained(self) -> bool:
        """Whether the present engine has added any token."""
        return len(self.tokens) > self.num_before

    def add(self, piece: Piece) -> None:
        """Add a piece of the present engine."""
        self.tokens += piece.tokens
        self.fates += piece.fates
        self.logprobs += piece.logprobs or ()

    def leave(self, partial: Generation | None) -> None:
        """Prepare for another engine, which continues after the tokens that exist."""
        if partial is not None:
            self.stats = self._all_stats(partial.stats)
        self.num_before = len(self.tokens)

    def complete(self, answer: Generation) -> Generation:
        """The answer of the last engine, joined with the output of earlier ones."""
        if self.stats is None:
            return answer
        logprobs = None if answer.logprobs is None else self.logprobs
        stats = self._all_stats(answer.stats)
        return replace(answer, fates=self.fates, logprobs=logprobs, stats=stats)

    def _all_stats(self, last: Stats) -> Stats:
        return last if self.stats is None else added(self.stats, last)


def added(first: Stats, second: Stats) -> Stats:
    """The summed counts of one request that ran on two engines in turn."""
    seconds = zip(vars(first.seconds).values(), vars(second.seconds).values(), strict=True)
    return replace(
        second,
        rounds=first.rounds + second.rounds,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        emitted=first.emitted + second.emitted,
        reached_by_position=_sums(first.reached_by_position, second.reached_by_position),
        accepted_by_position=_sums(first.accepted_by_position, second.accepted_by_position),
        drafted_by_round=first.drafted_by_round + second.drafted_by_round,
        accepted_by_round=first.accepted_by_round + second.accepted_by_round,
        emitted_by_round=first.emitted_by_round + second.emitted_by_round,
        seconds_by_round=first.seconds_by_round + second.seconds_by_round,
        seconds=Seconds(*(one + other for one, other in seconds)),
        compared=(first.compared[0] + second.compared[0], first.compared[1] + second.compared[1]),
        notes=list(dict.fromkeys(first.notes + second.notes)),
    )


def _sums(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The sums entry by entry; missing entries of the shorter list count as 0."""
    size = max(len(first), len(second))
    padded = ([*row, *[0] * (size - len(row))] for row in (first, second))
    return [one + other for one, other in zip(*padded, strict=True)]


class Ticket(AsyncIterator[tuple[int, Piece]]):
    """A request at the desk: iterate over (choice, piece), await `results`, or `abort`.

    requests: one for each choice. Pieces do not repeat output that existed before.
    on_choice_end: called whenever a choice has ended.
    on_end: called when all choices have ended.
    """

    def __init__(
        self,
        ask: Ask,
        owner: str,
        request_id: str,
        requests: Sequence[Request],
        *,
        target: Any,
        pair: Pair,
        engines: Pool,
        rows: RowBudget,
        trial: Trial,
        watcher: Watcher,
        on_choice_end: Callable[[], None],
        on_end: Callable[[Ticket], None],
    ) -> None:
        self.ask = ask
        self.owner = owner
        self.request_id = request_id
        self._requests = requests
        self._target = target
        self._pair = pair
        self._engines = engines
        self._rows = rows
        self._trial = trial
        self._watcher = watcher
        self._on_choice_end = on_choice_end
        self._on_end = on_end
        self._deadline = requests[0].deadline if requests else None
        self._pieces: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()
        self._answers: dict[int, Writing] = {}  # by choice, in the present engine
        self._num_submitted = 0
        self._submitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_aborted = False
        self._has_started = False
        self._error: ApiError | None = None
        self._listeners: list[Callable[[Sequence[Generation]], None]] = []
        self._choices: list[asyncio.Task[Generation]] = []
        self._end = asyncio.create_task(self._run())

    async def submitted(self) -> None:
        """Wait until every choice is in the queue for a row; raises if there is no engine for
        it."""
        await asyncio.shield(self._submitted)

    async def __anext__(self) -> tuple[int, Piece]:
        pair = await self._pieces.get()
        if pair is None:
            self._pieces.put_nowait(None)
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        return pair

    async def batches(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """Yield the pieces in batches of all that have arrived, so that a slow reader can catch
        up."""
        async for first in self:
            batch = [first]
            while not self._pieces.empty():
                pair = self._pieces.get_nowait()
                if pair is None:
                    self._pieces.put_nowait(None)
                    break
                batch.append(pair)
            yield batch

    async def results(self) -> list[Generation]:
        """Wait for all choices and return the answers; raises the `ApiError` of a failed
        request."""
        answers = await asyncio.shield(self._end)
        if self._error is not None:
            raise self._error
        return answers

    def abort(self, error: ApiError | None = None) -> None:
        """End the request. Its reader gets the error, if one is given."""
        self._is_aborted = True
        self._error = self._error or error
        for choice, task in enumerate(self._choices):
            if choice in self._answers:
                self._answers[choice].abort()
            else:
                task.cancel()

    def when_ended(self, listener: Callable[[Sequence[Generation]], None]) -> None:
        """Register a function that is called with the answers, however the request ends."""
        self._listeners.append(listener)

    async def _run(self) -> list[Generation]:
        """Answer all choices. If one fails, the others are ended."""
        count = self.ask.num_choices
        answers: list[Generation] = []
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                self._choices = [group.create_task(self._choice(i)) for i in range(count)]
                for task in self._choices:  # one that is cancelled may never have begun
                    task.add_done_callback(lambda _: self._on_choice_end())
                if self._is_aborted:
                    self.abort()
        for choice, task in enumerate(self._choices):
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                self._error = self._error or self._told(failure)
            lost = task.cancelled() or failure is not None
            answers.append(self._unfinished(choice, "aborted") if lost else task.result())
        self._finish(answers)
        return answers

    def _finish(self, answers: list[Generation]) -> None:
        if self._error is None:
            self._watcher.judged(self.request_id, self._kind, answers)
            self._watcher.ended(self.request_id, answers)
        else:
            self._watcher.failed(self.request_id, self._error.code or str(self._error.status))
        if not self._submitted.done():
            if self._error is None:
                self._submitted.set_result(None)
            else:
                self._submitted.set_exception(self._error)
                self._submitted.exception()  # avoids a warning if nobody waits for it
        self._pieces.put_nowait(None)
        self._on_end(self)
        for listener in self._listeners:
            listener(answers)

    @property
    def _kind(self) -> str:
        """The kind of the request: acceptance is compared only among requests of one kind."""
        sampling = self.ask.options.sampling
        way = "greedy" if sampling.temperature == 0 else "sampled"
        return ", ".join([*self._pair, "guided" if sampling.grammar is not None else way])

    def _told(self, failure: BaseException) -> ApiError:
        """The error to show the client; details are only logged."""
        if isinstance(failure, ApiError):
            return failure
        LOG.error("Request %s failed.", self.request_id, exc_info=failure)
        message = "The request failed while it was being answered."
        error = ApiError(message, status=500, kind="server_error", code="generation_failed")
        error.__cause__ = failure
        return error

    async def _choice(self, choice: int) -> Generation:
        """Answer one choice, moving it to another engine whenever one fails."""
        progress, ask = Progress(), self.ask
        progress.tokens = list(self._requests[choice].given)
        progress.fates = [Fate.GIVEN] * len(progress.tokens)
        progress.num_before = len(progress.tokens)
        await self._engines.get(self._pair)  # or the reason why there is none, before any waiting
        self._num_submitted += 1
        if self._num_submitted == ask.num_choices and not self._submitted.done():
            self._submitted.set_result(None)
        how = (self._pair, self.owner, ask.options.priority, self._seconds_left())
        async with self._rows.row(*how) as has_row:
            if not has_row:
                self._deadline = now()
            while True:
                answer = await self._attempt(choice, progress)
                if answer is not None:
                    return answer

    async def _attempt(self, choice: int, progress: Progress) -> Generation | None:
        """Run a choice on the present engine. Returns its answer; None if another engine is to
        continue."""
        if progress.is_suspect:
            return await self._tried(choice, progress)
        engine = await self._engines.get(self._pair)
        self._trial.enter(engine)
        try:
            return await self._answered(engine, choice, progress)
        except GenerationError as error:
            if engine.failure is None:
                raise
            if self._is_aborted:  # the engine did not live to hear of it
                return self._unfinished(choice, "aborted", progress)
            progress.leave(error.results)
            if choice in self._answers and not self._answers[choice].has_entered:
                return None  # it only waited there
            death = self._trial.accuse(engine)
            progress.deaths.append(death)
            if self._trial.blames(progress.deaths):
                raise
            progress.is_suspect = death.num_untried > 0
        finally:
            self._trial.leave(engine)
            self._answers.pop(choice, None)
            if engine.failure is not None:
                self._engines.replace(self._pair, engine)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds_left()):
                await self._trial.pause(progress.deaths)
        return None

    async def _tried(self, choice: int, progress: Progress) -> Generation | None:
        """Run a suspect choice alone in a separate engine until it has gained a token, after an
        engine has failed. Returns None if that engine survives."""
        death = progress.deaths[-1]
        try:
            async with self._trial.turn, self._engines.alone(self._pair) as engine:
                try:
                    answer = await self._answered(engine, choice, progress)
                finally:
                    death.is_explained |= engine.failure is not None
        finally:
            death.num_untried -= 1
            self._answers.pop(choice, None)
        if answer.finish_reason != "aborted" or self._is_aborted:
            return answer
        progress.is_suspect = False
        progress.leave(answer)
        return None

    async def _answered(self, engine: PooledEngine, choice: int, progress: Progress) -> Generation:
        """Run a choice on one engine and return its answer; raises `GenerationError` if the engine
        fails.

        A suspect is aborted there as soon as it has gained a token.
        """
        answer = self._answers[choice] = self._submit(engine, choice, progress)
        try:
            async for piece in answer:
                is_acquitted = progress.is_suspect and progress.has_gained
                if piece.finish_reason == "error" or (
                    piece.finish_reason == "aborted" and is_acquitted and not self._is_aborted
                ):
                    continue  # its text may still go on in another engine
                progress.add(piece)
                self._tell(choice, piece, answer.stats)
                if progress.is_suspect and progress.has_gained:
                    answer.abort()
            last = await answer
        except asyncio.CancelledError:
            answer.abort()
            raise
        is_over = not progress.is_suspect or last.finish_reason != "aborted" or self._is_aborted
        return progress.complete(last) if is_over else last

    def _submit(self, engine: PooledEngine, choice: int, progress: Progress) -> Writing:
        """Hand a choice to an engine. If another engine had it before, it becomes a new request
        that continues after the tokens written there."""
        request = self._requests[choice]
        if request.status is Status.ENDED or request.given != progress.tokens:
            options, given = request.options, progress.tokens
            request = make_request(self._target, request.prompt, options, given=given)
        request.deadline = self._deadline
        try:
            answer = engine.enqueue(request)
        except UnsupportedError as error:  # its text never fits the memory
            raise ApiError(str(error)) from error
        answer.when_entered(self._start)
        return answer

    def _seconds_left(self) -> float | None:
        """The seconds until the request's deadline, None without one. A request past its deadline
        is still submitted, and the engine ends it with the text so far."""
        return None if self._deadline is None else max(self._deadline - now(), 1e-9)

    def _start(self) -> None:
        """Record that a choice got a row; for the first choice, report that the request has
        started."""
        if not self._has_started:
            self._has_started = True
            self._watcher.started(self.request_id)

    def _tell(self, choice: int, piece: Piece, stats: Stats) -> None:
        self._watcher.piece(self.request_id, choice, piece, stats)
        self._pieces.put_nowait((choice, piece))

    def _unfinished(self, choice: int, reason: str, progress: Progress | None = None) -> Generation:
        """The incomplete answer of a choice that no engine has finished."""
        progress, request = progress or Progress(), self._requests[choice]
        return Generation(
            prompt_tokens=request.prompt,
            tokens=progress.tokens,
            text=None,
            finish_reason=reason,
            seed=request.seed,
            stats=progress.stats or Stats(),
            fates=progress.fates,
            logprobs=None if request.num_logprobs is None else progress.logprobs,
        )
