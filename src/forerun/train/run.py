"""Trains a drafter from prompts: collect, train, measure, save; a stopped run resumes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from forerun.base.errors import InputError, explain
from forerun.drafters.heads.eagle3_export import export
from forerun.drafters.heads.files import Trained, load, save
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.network import balance
from forerun.train.chat import Chat
from forerun.train.collection import MOST_REPEATS, Collection, Source, collect, count_answers
from forerun.train.course import OBJECTIVES, Recipe
from forerun.train.fit import (
    check_disk,
    check_prompts,
    check_trainable,
    least_likely_token,
    likeliest_tokens,
)
from forerun.train.held_out import HeldOut, HeldOutFigures, divided, held_out_answers, measure
from forerun.train.prompts import TrainingPrompt
from forerun.train.run_folder import DATA, HELD_OUT, Beginning, card, check_data, open_run
from forerun.train.shards import Spoken, epoch, list_shards, read, write
from forerun.train.stages import Assignment, Scale, Stages
from forerun.train.teacher import Batch, Teacher
from forerun.train.training import Optimiser, Training, TrainingBudget, TrainingProgress, steps_of

Spread = Callable[[Assignment, Collection, Fingerprint], AbstractContextManager[Source]]
"""A function that makes a source whose conversations are generated outside this process."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of the command line, with defaults filled in."""

    out: Path
    data: Path  # folder of the answers: `out`, or an earlier run's folder
    prompts: Sequence[TrainingPrompt]
    held_out: Sequence[TrainingPrompt]
    num_answer_tokens: int
    answer_limit: int  # tokens of one answer
    data_seconds: float | None
    num_rows: int
    data_only: bool
    seconds: float | None
    steps: int | None
    pause_after: float | None
    batch_tokens: int
    objective: str
    optimizer: str
    learning_rate: float
    draft_vocab: int
    mlp_size: int | None
    recipe: Recipe
    start: Beginning | None
    seed: int
    spread: Spread | None = None  # answers are collected elsewhere
    layout: str | None = None  # of other engines, in which the drafter is written as well

    def settings(self) -> dict[str, Any]:
        """The options that must not change when a run is resumed."""
        if self.data_only:
            return {"seed": self.seed}
        names = (
            "objective optimizer learning_rate draft_vocab mlp_size batch_tokens seconds steps seed"
        )
        start = self.start.name if self.start else None
        chosen = {name: getattr(self, name) for name in names.split()}
        return chosen | {"start_from": start} | self.recipe.settings()


def train(target: Any, options: TrainOptions) -> int:
    """Collect answers and train the network; steps that an earlier run finished are skipped."""
    if options.objective not in OBJECTIVES:
        cure = f"Use one of {', '.join(OBJECTIVES)}."
        raise InputError(explain("Unknown objective.", repr(options.objective), cure))
    model = target.model.requires_grad_(False)
    with _explained("--rows", options.num_rows):
        check_trainable(model)
    config = model.config.get_text_config(decoder=True)
    design = options.recipe.design(config, options.draft_vocab, options.mlp_size, 0)
    check_disk(options.out, design, options.num_answer_tokens if options.prompts else 0)
    chat, scales = Chat.of(target.tokenizer), _scales(model, options)
    held_out, prompts = divided(options.prompts, options.held_out, HeldOut.on(model.device))
    if options.prompts:
        check_prompts(chat, prompts, scales[0].context)
    fingerprint = Fingerprint.of(model, target.name)
    if options.start:
        options.start.check(fingerprint, design)
    if options.data != options.out:
        check_data(options.data, fingerprint)
    open_run(options.out, fingerprint, options.settings())
    try:
        with _explained("--rows", options.num_rows):
            if options.prompts:
                _collect(model, chat, fingerprint, held_out, prompts, scales, options)
        if options.data_only:
            return 0
        with _explained("--batch-tokens", options.batch_tokens):
            return _train(model, fingerprint, options)
    except KeyboardInterrupt:
        _tell(f"\nstopped; {_saved(options)}; the same command goes on")
        raise


def _saved(options: TrainOptions) -> str:
    """A phrase that says what an unfinished run has saved in its folder."""
    if num_steps := steps_of(options.out):
        return f"{num_steps:,} training steps are saved"
    shards = list_shards(options.data / DATA)
    if num_tokens := sum(count_answers(list(read(shard))) for shard in shards):
        return f"{num_tokens:,} answer tokens are saved, and no training step yet"
    return "nothing was there to be saved yet"


def _scales(model: Any, options: TrainOptions) -> list[Scale]:
    scales = [Scale(options.num_rows, 512, 0.6), Scale(max(1, options.num_rows // 4), 1536, 0.4)]
    longest = getattr(model.config, "max_position_embeddings", None) or 1536
    return [Scale(scale.num_rows, min(scale.context, longest), scale.share) for scale in scales]


def _collect(
    model: Any,
    chat: Chat,
    fingerprint: Fingerprint,
    held_out: Sequence[TrainingPrompt],
    prompts: Sequence[str],
    scales: Sequence[Scale],
    options: TrainOptions,
) -> None:
    """Let the target answer prompts until enough answer tokens are on disk or time is over. A run
    that was stopped continues with what exists."""
    data, endings = options.out / DATA, _endings(model)
    data.mkdir(exist_ok=True)
    if not (data / HELD_OUT).exists():
        answers = held_out_answers(
            model, chat, endings, held_out, num_rows=options.num_rows, seed=options.seed
        )
        write(data / HELD_OUT, list(answers))
    collection = Collection(data, [chat.ask(prompt) for prompt in prompts])
    total = options.num_answer_tokens
    if collection.num_answer_tokens >= total:
        return
    seed = options.seed + 1000 * collection.num_shards  # a resumed run has something new to say
    work = Assignment(prompts, collection.asked, endings, scales, options.answer_limit, seed)
    with (
        tqdm(total=total, desc="answers", unit="tok", unit_scale=True, mininterval=2) as bar,
        options.spread(work, collection, fingerprint)
        if options.spread
        else nullcontext(Stages(model, chat, work)) as source,
    ):
        bar.update(collection.num_answer_tokens)
        collect(
            source,
            collection,
            num_answer_tokens=total,
            seconds=options.data_seconds or float("inf"),
            report=lambda gained: bar.update(gained) and None,
        )
    if not collection.num_answer_tokens:
        wrong = "No answer was complete when the time for collecting was over."
        cure = "Allow more with --data-seconds."
        raise InputError(explain(wrong, f"{options.data_seconds} seconds", cure))
    if collection.num_repeats >= MOST_REPEATS:
        _tell("note: the target only repeats its answers; more prompts would make for new ones")


def _train(model: Any, fingerprint: Fingerprint, options: TrainOptions) -> int:
    """Train the network on the collected answers, save it, measure it on held-out answers, and
    write its model card. Returns the exit status."""
    data = options.data / DATA
    spoken = [
        conversation
        for file in list_shards(data)
        for conversation in read(file)
        if conversation.can_be_drafted
    ]
    held_out = [
        conversation for conversation in read(data / HELD_OUT) if conversation.can_be_drafted
    ]
    if not spoken or not held_out:
        wrong = "No answers have been collected."
        raise InputError(explain(wrong, repr(str(data)), "Collect some with --prompts."))
    vocab_size, endings = fingerprint.vocab_size, _endings(model)
    kept = options.start.trained.tokens if options.start else ()
    tokens, covered = likeliest_tokens(spoken, options.draft_vocab, vocab_size, endings, kept)
    config = model.config.get_text_config(decoder=True)
    recipe, mask = options.recipe, least_likely_token(spoken, vocab_size)
    design = (
        replace(options.start.trained.design, num_tokens=len(tokens))
        if options.start
        else recipe.design(config, len(tokens), options.mlp_size, mask)
    )
    torch.manual_seed(options.seed)
    draft_tokens = torch.from_numpy(tokens).to(model.device)
    teacher = Teacher(model, design.layers, draft_tokens)
    network = recipe.network(design).to(model.device)
    network.initialise(model.get_output_embeddings().weight[draft_tokens].float())
    if options.start:
        options.start.fill(network, tokens)
    else:
        batch = Batch.of(epoch(spoken, options.batch_tokens, options.seed, 0)[0], model.device)
        balance(network.norm_layers, teacher.watch(batch.tokens)[0][batch.rows, batch.places])
    training = Training(
        course=recipe.course(network, teacher, OBJECTIVES[options.objective]),
        optimiser=Optimiser(network, options.learning_rate, muon=options.optimizer == "muon"),
        budget=TrainingBudget(options.seconds, options.steps, options.pause_after),
        batch_tokens=options.batch_tokens,
        seed=options.seed,
        folder=options.out,
    )
    _tell(
        f"{len(spoken)} conversations, {count_answers(spoken) / 1e6:.2f}M answer tokens, "
        f"{covered:.1%} of them in the draft vocabulary; "
        f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f}M weights"
    )
    if training.resume():
        _tell(f"going on after step {training.progress.steps}")
    else:
        training.note(held_out)
    is_over = _run(training, spoken, held_out)
    weights = {name: value.float().cpu().numpy() for name, value in network.state_dict().items()}
    save(options.out, Trained(design, fingerprint, tokens, weights))
    if options.layout is not None:
        export(load(options.out), options.out / options.layout, options.layout)
    figures = _figures_of_saved(options, teacher, held_out)
    facts = {
        "answers": f"{count_answers(spoken) / 1e6:.2f} million tokens in {len(spoken):,} "
        f"conversations, {covered:.1%} of them in the draft vocabulary",
        "objective": f"{options.objective}, {recipe.in_words()}, {options.optimizer}",
        **({"started from": options.start.name} if options.start else {}),
        "device": _device(model.device),
        "command": f"`{' '.join(['forerun', *sys.argv[1:]])}`",
    }
    text = card(fingerprint.name, design, training.progress, figures, facts)
    (options.out / "README.md").write_text(text, encoding="utf-8")
    for entry in figures:
        rows = ", ".join(f"{name} {row[4]:.2f}" for name, row in entry.by_group.items())
        tokens_per_round = f"{entry.mean(5):.3f} tokens/round ({rows})"
        _tell(f"temperature {entry.temperature:g}, K = 5: {tokens_per_round}")
    if not is_over:
        _tell("paused; the same command goes on")
    return 0


def _run(training: Training, spoken: Sequence[Spoken], held_out: Sequence[Spoken]) -> bool:
    """Train with a progress bar that shows how much of the budget is spent."""
    with tqdm(total=1000, desc="training", bar_format=BAR, mininterval=2) as bar:

        def report(progress: TrainingProgress, loss: float) -> None:
            latest = {k: v for k, v in progress.history[-1].items() if "temp" in k}
            held = ", ".join(f"{v:.2f} at {k}" for k, v in latest.items())
            bar.set_postfix_str(
                f"step {progress.steps}, loss {loss:.3f}, tokens/round {held}", refresh=False
            )
            bar.update(int(1000 * training.budget.share(progress)) - bar.n)

        is_over = training.run(spoken, held_out, report)
        bar.update(int(1000 * training.budget.share(training.progress)) - bar.n)
    training.note(held_out)
    training.save()
    return is_over


def _figures_of_saved(
    options: TrainOptions, teacher: Teacher, held_out: Sequence[Spoken]
) -> list[HeldOutFigures]:
    """The tokens per round of the saved drafter, as users load it, with 8-bit weights."""
    saved = load(options.out)
    network = options.recipe.network(saved.design)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in saved.weights.items()})
    network.to(teacher.embedding.device)
    course = options.recipe.course(network, teacher, OBJECTIVES[options.objective])
    return measure(course, held_out)


@contextmanager
def _explained(option: str, value: int) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the option to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_known and "memory" not in str(error):  # how torch reports it on a CPU
            raise
        cure = f"Lower {option}; the same command then goes on where it was."
        raise InputError(explain("Memory ran out.", f"{option} {value}", cure)) from error


def _endings(model: Any) -> list[int]:
    """The ids of the tokens that end a text."""
    endings = model.generation_config.eos_token_id if model.generation_config else None
    endings = model.config.eos_token_id if endings is None else endings
    return [] if endings is None else [endings] if isinstance(endings, int) else list(endings)


def _device(device: Any) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BAR = "{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}"
