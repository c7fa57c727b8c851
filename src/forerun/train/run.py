"""Trains a drafter from prompts: collect, train, measure, save; a stopped run resumes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.files import Trained, load, save
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.network import Network
from forerun.errors import InputError, explain
from forerun.train.beginning import Beginning
from forerun.train.card import card
from forerun.train.chat import Chat
from forerun.train.collect import Scale, answer_each, collect, count_answers
from forerun.train.fit import check_trainable
from forerun.train.held_out import HeldOutFigures, measure
from forerun.train.objectives import OBJECTIVES
from forerun.train.optimiser import Optimiser
from forerun.train.preflight import check_disk, check_prompts
from forerun.train.prompts import TrainingPrompt, pick
from forerun.train.run_folder import DATA, HELD_OUT, check_data, open_run
from forerun.train.shards import Spoken, list_shards, read, write
from forerun.train.step_weights import STEP_WEIGHTS
from forerun.train.teacher import Teacher
from forerun.train.training import Budget, Progress, Training
from forerun.train.vocabulary import likeliest_tokens

HEAT = 0.8  # the second temperature that is measured


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out prompts, and the length of their answers."""

    per_group: int
    total: int  # taken from the training prompts if there is no held-out file
    num_tokens: int

    @classmethod
    def on(cls, device: Any) -> HeldOut:
        """Sizes that take seconds on this device: smaller ones on a CPU."""
        return cls(8, 48, 128) if device.type == "cuda" else cls(2, 12, 64)


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
    num_unrolled: int
    later_steps: str  # how they are weighted
    start: Beginning | None
    seed: int

    def settings(self) -> dict[str, Any]:
        """The options that must not change when a run resumes."""
        if self.data_only:
            return {"seed": self.seed}
        names = (
            "objective optimizer learning_rate draft_vocab mlp_size num_unrolled "
            "batch_tokens seconds steps seed later_steps"
        )
        start = self.start.name if self.start else None
        return {name: getattr(self, name) for name in names.split()} | {"start_from": start}


def train(target: Any, options: TrainOptions) -> int:
    """Collect answers and train the heads; steps that an earlier run finished are skipped."""
    if options.objective not in OBJECTIVES:
        cure = f"Use one of {', '.join(OBJECTIVES)}."
        raise InputError(explain("Unknown objective.", repr(options.objective), cure))
    model = target.model.requires_grad_(False)
    with _explained("--rows", options.num_rows):
        check_trainable(model)
    config = model.config.get_text_config(decoder=True)
    design = Design.after(config, options.draft_vocab, options.mlp_size)
    check_disk(options.out, design, options.num_answer_tokens if options.prompts else 0)
    chat, scales = Chat.of(target.tokenizer), _scales(model, options)
    held_out, prompts = _divided(model, options)
    if options.prompts:
        check_prompts(chat, prompts, scales[0].context)
    fingerprint = Fingerprint.of(model, target.name)
    if options.start:
        options.start.check(fingerprint, design)
    if options.data != options.out:
        check_data(options.data, fingerprint)
    open_run(options.out, fingerprint, options.settings())
    endings = _endings(model)
    try:
        with _explained("--rows", options.num_rows):
            if options.prompts:
                _collect(model, chat, endings, held_out, prompts, scales, options)
        if options.data_only:
            return 0
        with _explained("--batch-tokens", options.batch_tokens):
            return _train(model, fingerprint, endings, options)
    except KeyboardInterrupt:
        _tell("\nstopped and saved; the same command goes on")
        raise


def _divided(model: Any, options: TrainOptions) -> tuple[list[TrainingPrompt], list[str]]:
    """Prompts to measure with, and prompts to train on."""
    size = HeldOut.on(model.device)
    if options.held_out:
        held_out = pick(options.held_out, size.per_group)
    else:
        held_out = _taken_out(options.prompts, size.total)
    kept = {prompt.text for prompt in (*held_out, *options.held_out)}
    prompts = [prompt.text for prompt in options.prompts if prompt.text not in kept]
    if options.prompts and not prompts:
        wrong = "No prompt is left to train on: all of them are needed to measure with."
        cure = "Add more to --prompts, the more the better."
        raise InputError(explain(wrong, f"{len(options.prompts)} prompts", cure))
    return held_out, prompts


def _scales(model: Any, options: TrainOptions) -> list[Scale]:
    scales = [Scale(options.num_rows, 512, 0.6), Scale(max(1, options.num_rows // 4), 1536, 0.4)]
    longest = getattr(model.config, "max_position_embeddings", None) or 1536
    return [Scale(scale.num_rows, min(scale.context, longest), scale.share) for scale in scales]


def _collect(
    model: Any,
    chat: Chat,
    endings: Sequence[int],
    held_out: Sequence[TrainingPrompt],
    prompts: Sequence[str],
    scales: Sequence[Scale],
    options: TrainOptions,
) -> None:
    data = options.out / DATA
    data.mkdir(exist_ok=True)
    if not (data / HELD_OUT).exists():
        size = HeldOut.on(model.device)
        write(data / HELD_OUT, list(_answers(model, chat, endings, held_out, options, size)))
    total = options.num_answer_tokens
    with tqdm(total=total, desc="answers", unit="tok", unit_scale=True, mininterval=2) as bar:
        collect(
            model,
            chat,
            prompts,
            data,
            endings=endings,
            scales=scales,
            num_answer_tokens=total,
            answer_limit=options.answer_limit,
            seconds=options.data_seconds or float("inf"),
            seed=options.seed,
            report=lambda gained: bar.update(gained) and None,
        )


def _taken_out(prompts: Sequence[TrainingPrompt], count: int) -> list[TrainingPrompt]:
    """Every n-th prompt, held out of training to measure with."""
    return list(prompts[:: max(2, len(prompts) // count)][:count])


def _answers(
    model: Any,
    chat: Chat,
    endings: Sequence[int],
    prompts: Sequence[TrainingPrompt],
    options: TrainOptions,
    size: HeldOut,
) -> Iterator[Spoken]:
    """The target's answers to held-out prompts, greedy and sampled."""
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    count = min(size.num_tokens, context // 2)
    longest = context - count
    asked = [chat.ask(prompt.text)[-longest:] for prompt in prompts]
    for temperature in (0.0, HEAT):
        for index, text, start in answer_each(
            model,
            asked,
            endings=endings,
            temperature=temperature,
            num_rows=min(options.num_rows, 64),
            max_new_tokens=count,
            seed=options.seed,
        ):
            is_answer = np.arange(len(text)) >= start
            yield Spoken(np.array(text, np.int32), is_answer, prompts[index].group, temperature)


def _train(
    model: Any, fingerprint: Fingerprint, endings: Sequence[int], options: TrainOptions
) -> int:
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
    vocab_size = fingerprint.vocab_size
    kept = options.start.trained.tokens if options.start else ()
    tokens, covered = likeliest_tokens(spoken, options.draft_vocab, vocab_size, endings, kept)
    config = model.config.get_text_config(decoder=True)
    design = Design.after(config, len(tokens), options.mlp_size)
    torch.manual_seed(options.seed)
    draft_tokens = torch.from_numpy(tokens).to(model.device)
    teacher = Teacher(model, design.layers, draft_tokens)
    network = Network(design).to(model.device)
    network.initialise(model.get_output_embeddings().weight[draft_tokens].float())
    if options.start:
        options.start.fill(network, tokens)
    training = Training(
        network=network,
        teacher=teacher,
        objective=OBJECTIVES[options.objective],
        optimiser=Optimiser(network, options.learning_rate, muon=options.optimizer == "muon"),
        budget=Budget(options.seconds, options.steps, options.pause_after),
        num_unrolled=options.num_unrolled,
        step_weights=STEP_WEIGHTS[options.later_steps],
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
    figures = _figures_of_saved(options.out, teacher, held_out)
    facts = {
        "answers": f"{count_answers(spoken) / 1e6:.2f} million tokens in {len(spoken):,} "
        f"conversations, {covered:.1%} of them in the draft vocabulary",
        "objective": f"{options.objective}, unrolled {options.num_unrolled} steps, "
        f"{options.optimizer}, later steps {options.later_steps}",
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
    """Train under a progress bar that counts the budget."""
    with tqdm(total=1000, desc="training", bar_format=BAR, mininterval=2) as bar:

        def report(progress: Progress, loss: float) -> None:
            latest = {k: v for k, v in progress.history[-1].items() if "temp" in k}
            held = ", ".join(f"{v:.2f} at {k}" for k, v in latest.items())
            bar.set_postfix_str(
                f"step {progress.steps}, loss {loss:.3f}, tokens/round {held}", refresh=False
            )
            bar.update(int(1000 * training.budget.share(progress)) - bar.n)

        is_over = training.run(spoken, held_out, report)
    training.note(held_out)
    training.save()
    return is_over


def _figures_of_saved(
    folder: Path, teacher: Teacher, held_out: Sequence[Spoken]
) -> list[HeldOutFigures]:
    """Figures of the drafter as users load it, in 8 bits."""
    saved = load(folder)
    network = Network(saved.design)
    network.load_state_dict({name: torch.from_numpy(w) for name, w in saved.weights.items()})
    return measure(network.to(teacher.embedding.device), teacher, held_out)


@contextmanager
def _explained(option: str, value: int) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the option to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "memory" not in str(
            error
        ):  # how torch reports it on a CPU
            raise
        cure = f"Lower {option}; the same command then goes on where it was."
        raise InputError(explain("Memory ran out.", f"{option} {value}", cure)) from error


def _endings(model: Any) -> list[int]:
    """The tokens that end a text."""
    endings = model.generation_config.eos_token_id if model.generation_config else None
    endings = model.config.eos_token_id if endings is None else endings
    return [] if endings is None else [endings] if isinstance(endings, int) else list(endings)


def _device(device: Any) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BAR = "{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}"
