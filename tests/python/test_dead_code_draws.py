"""Which dead codes are replaced, and by which tokens: equal chances for all."""

from __future__ import annotations

import torch
from test_replace_dead_codes_ import GOOD, one_codebook

ops = torch.ops.torchvq


def test_every_dead_code_is_replaced_equally_often():
    """Chi-square over steps: one of 10 dead codes has the only token."""
    hits = torch.zeros(10)
    for step in range(3000):
        state = (torch.zeros(1, 10, 1), torch.zeros(1, 10, 1), torch.zeros(1, 10))
        counts = torch.zeros(1, 10, dtype=torch.long)
        x, rng = torch.ones(1, 1, 1), torch.tensor([1, step])
        one_codebook(*state, x, counts, rng, **GOOD)
        hits += state[0][0, :, 0] > 0
    assert hits.sum() == 3000
    assert (
        (hits - 300) ** 2 / 300
    ).sum() < 33.7  # 9 degrees of freedom, one chance in ten thousand


def test_choice_is_uniform_over_tokens():
    """Chi-square over steps: every one of 10 tokens replaces the one dead code equally often."""
    x = torch.arange(10.0)[None, :, None] + 1
    hits = torch.zeros(10)
    for step in range(3000):
        keys, candidates = ops.dead_code_candidates(x, torch.tensor([1, step]), 1)
        hits[int(candidates[0, 0, 0]) - 1] += 1
    assert (
        (hits - 300) ** 2 / 300
    ).sum() < 33.7  # 9 degrees of freedom, one chance in ten thousand
