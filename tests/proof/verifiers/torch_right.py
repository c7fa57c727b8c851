"""Right verifiers in Torch, most of which leave `rng` alone and draw from Torch's generator."""

from __future__ import annotations

from typing import Any

import torch


def loop(draft_tokens: Any, draft_probs: Any, target_probs: Any, rng: Any) -> list[int]:
    """The textbook's loop on tensors in double precision."""
    q, p = torch.as_tensor(draft_probs), torch.as_tensor(target_probs)
    out: list[int] = []
    for i, x in enumerate(draft_tokens):
        if torch.rand(1, dtype=torch.float64).item() < min(1.0, (p[i, x] / q[i, x]).item()):
            out.append(int(x))
        else:
            residual = torch.clamp(p[i] - q[i], min=0)
            out.append(int(torch.multinomial(residual / residual.sum(), 1).item()))
            return out
    out.append(int(torch.multinomial(p[-1], 1).item()))
    return out


def whole_batch(draft_tokens: Any, draft_probs: Any, target_probs: Any, rng: Any) -> list[int]:
    """As in large libraries: (1, K) tensors, `rand_like`, and a cumulative sum of refusals."""
    q = torch.tensor(draft_probs, dtype=torch.float32)[None]
    p = torch.tensor(target_probs, dtype=torch.float32)[None]
    new = torch.tensor(draft_tokens, dtype=torch.long)[None]
    k = new.shape[1]
    q_i = q.gather(2, new[..., None]).squeeze(2)
    p_i = p[:, :k].gather(2, new[..., None]).squeeze(2)
    ratio = p_i / q_i
    accepted = torch.rand_like(ratio) <= ratio
    n = int(((~accepted).cumsum(dim=-1) < 1).sum())
    p_next = p[:, n]
    if n < k:
        p_next = torch.clamp(p_next - q[:, n], min=0)
        p_next = p_next / p_next.sum()
    t = torch.multinomial(p_next, num_samples=1)
    return torch.cat((new[:, :n], t), dim=-1)[0].tolist()


def exponential_race(draft_tokens: Any, draft_probs: Any, target_probs: Any, rng: Any) -> Any:
    """As in small inference scripts: no synchronisation, argmax of p / noise."""

    def sample_one(probs: torch.Tensor) -> torch.Tensor:
        noise = torch.empty_like(probs).exponential_(1)
        return torch.argmax(probs / noise, dim=-1, keepdim=True)

    q = torch.from_numpy(draft_probs)
    p = torch.from_numpy(target_probs)
    tokens = torch.as_tensor(draft_tokens, dtype=torch.long)
    k = len(tokens)
    p_x, q_x = p[torch.arange(k), tokens], q[torch.arange(k), tokens]
    accept = torch.minimum(torch.ones(()), p_x / q_x)
    rejected = (torch.rand_like(accept) > accept).nonzero()
    if rejected.shape[0] == 0:
        return torch.cat([tokens, sample_one(p[-1])])
    n = int(rejected[0].item())
    new = p[n] - q[n]
    new = torch.where(new > 0, new, torch.zeros(()))
    return torch.cat([tokens[:n], sample_one(new / new.sum())])


def recovered_tokens(draft_tokens: Any, draft_probs: Any, target_probs: Any, rng: Any) -> list[int]:
    """As in servers: coins of all slots and the recovered token of every slot first."""
    q = torch.as_tensor(draft_probs, dtype=torch.float32)
    p = torch.as_tensor(target_probs, dtype=torch.float32)
    k, vocab = len(draft_tokens), p.shape[1]
    uniform = torch.rand((k,), dtype=torch.float64)
    noise = torch.empty((k + 1, vocab), dtype=torch.float32)
    noise.exponential_()
    recovered = ((p[:k] - q).clamp_min(0) / noise[:k]).argmax(dim=-1)
    bonus = (p[k] / noise[k]).argmax()
    out: list[int] = []
    for i in range(k):
        x = int(draft_tokens[i])
        if q[i, x] > 0 and p[i, x] / q[i, x] >= uniform[i]:
            out.append(x)
        else:
            out.append(int(recovered[i]))
            return out
    return [*out, int(bonus)]


def own_generator(draft_tokens: Any, draft_probs: Any, target_probs: Any, rng: Any) -> list[int]:
    """A generator per request, seeded from `rng`."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    q, p = torch.as_tensor(draft_probs), torch.as_tensor(target_probs)
    for i, x in enumerate(draft_tokens):
        coin = torch.rand((), generator=generator, dtype=torch.float64)
        if coin * q[i, x] >= p[i, x]:
            residual = (p[i] - q[i]).relu()
            extra = torch.multinomial(residual, 1, generator=generator)
            return [*map(int, draft_tokens[:i]), int(extra)]
    return [*map(int, draft_tokens), int(torch.multinomial(p[-1], 1, generator=generator))]


def published_signature(target_probs: Any, draft_probs: Any, draft_tokens: Any) -> list[int]:
    """The exercise with K target rows and no bonus, on tensors."""
    kept: list[int] = []
    for slot in range(len(draft_tokens)):
        token = draft_tokens[slot].item()
        chance = target_probs[slot, token] / draft_probs[slot, token]
        if torch.rand(1).item() >= chance.item():
            left = (target_probs[slot] - draft_probs[slot]).clamp(min=0)
            return [*kept, torch.multinomial(left / left.sum(), 1).item()]
        kept.append(token)
    return kept


RIGHT = (
    loop,
    whole_batch,
    exponential_race,
    recovered_tokens,
    own_generator,
    published_signature,
)
