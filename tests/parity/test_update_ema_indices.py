"""update_ema_indices beside the reference: what it changes in training and in evaluation."""

from __future__ import annotations

import pytest
import torch
import vector_quantize_pytorch as reference

import torchvq

OPTIONS = dict(dim=8, codebook_size=16, threshold_ema_dead_code=2)
UNUSED = slice(5, None)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(1, 30, 8, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(30)[None] % 5


@pytest.mark.parametrize("cosine", [False, True])
def test_evaluation_moves_the_averages_and_replaces_no_code(cosine: bool) -> None:
    theirs = reference.VectorQuantize(**OPTIONS, use_cosine_sim=cosine).eval()
    ours = torchvq.VectorQuantize(**OPTIONS, use_cosine_sim=cosine, vqp_compat=True).eval()
    ours.load_state_dict(theirs.state_dict())
    for module in (theirs, ours):
        module.update_ema_indices(*data())
    for name in ("embed", "embed_avg", "cluster_size"):
        torch.testing.assert_close(getattr(ours._codebook, name), getattr(theirs._codebook, name))
    assert ours._codebook.replaced.sum() == 0
    # In training, both replace the codes that nothing uses.
    for module in (theirs, ours):
        before = module._codebook.embed.clone()
        module.train().update_ema_indices(*data())
        moved = (module._codebook.embed - before)[0, UNUSED].abs().amax(-1)
        assert (moved > 0.01).all()


def test_flat_indices_are_taken_in_their_order() -> None:
    x, indices = data()
    theirs = reference.VectorQuantize(**OPTIONS).eval()
    ours = torchvq.VectorQuantize(**OPTIONS).eval()
    ours.load_state_dict(theirs.state_dict())
    for module in (theirs, ours):
        module.update_ema_indices(x.view(3, 10, 8), indices.flatten())
    torch.testing.assert_close(ours._codebook.embed_avg, theirs._codebook.embed_avg)


def test_steps_that_are_kept_replace_no_code_in_evaluation() -> None:
    ours = torchvq.VectorQuantize(**OPTIONS, sync_every=2).eval()
    before = ours._codebook.embed.clone()
    for _ in range(2):
        ours.update_ema_indices(*data())
    moved = (ours._codebook.embed - before)[0].abs().amax(-1)
    assert (moved[:5] > 0.1).all()
    assert (moved[UNUSED] < 1e-4).all()
