"""Fits MTP layers that are modules of transformers to their target: its embedding, head, device and
precision, and how they are read where their files leave that open."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from forerun.drafters.heads.mtp_runner import StageRunner
from forerun.drafters.heads.mtp_stages import PublishedStages
from forerun.drafters.heads.readings import Reading, head_of, likeliest, without_norm
from forerun.models.base import CpuPass


def fit_stages(published: PublishedStages, target: Any) -> tuple[StageRunner, str]:
    """The runner of these layers, and a description of how their files were interpreted ("" if they
    leave nothing open)."""
    embedding, head = _ends(published, target)
    stages, rotary = published.built(target)
    for stage in stages:
        stage.to(head.device)
        for weight in stage.parameters():  # what is no parameter keeps its precision
            weight.data = weight.data.to(head.dtype)
    layout = published.layout
    gains = None if all(layout.reads_normed) else torch.as_tensor(without_norm(target)).to(head)
    runners = {
        words: StageRunner(
            stages,
            rotary.to(head.device),
            embedding,
            head,
            norms_output=norms_output,
            gains=None if reads_normed else gains,
        )
        for words, (reads_normed, norms_output) in layout.readings().items()
    }
    layers, ids = (target.num_layers,), np.arange(len(head))
    readings = {
        words: Reading(layers, target.hidden_size, ids, partial(_itself, runner))
        for words, runner in runners.items()
    }
    best = likeliest(published.name, target, readings)
    return runners[best], best


def _ends(published: PublishedStages, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's embedding and head, (V, D)."""
    subject: Any = target
    if not isinstance(target, CpuPass):
        model = subject.model
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        embedding, head = (each.weight.detach() for each in ends)
        return embedding, head
    table = torch.from_numpy(subject.embedding)
    if published.head in published.stored:
        return table, published.stored[published.head]().to(table)
    return table, torch.from_numpy(head_of(target, np.arange(subject.vocab_size)))


def _itself(runner: StageRunner) -> StageRunner:
    return runner
