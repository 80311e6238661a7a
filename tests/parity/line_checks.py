"""Checks of lines of docs/migrating.md that are no row of a table: calls with unusual combinations of arguments."""

from __future__ import annotations

import pytest
import torch
import vector_quantize_pytorch as reference

import torchvq

BOTH = (reference, torchvq)
OPTIONS = dict(dim=8, codebook_size=16)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def loaded(module: torch.nn.Module, theirs: torch.nn.Module) -> torch.nn.Module:
    module.load_state_dict(theirs.state_dict())
    return module


def cosine_length():
    """A long code wins by its dot product, and loses by its angle."""
    codes = torch.nn.functional.normalize(tokens(16, 8), dim=-1)
    x = codes[:1] + 0.1 * codes[1:2]
    codes[1] *= 50
    codes[1] += 60 * codes[0]
    found = []
    for package in BOTH:
        vq = package.VectorQuantize(**OPTIONS, use_cosine_sim=True).eval()
        with torch.no_grad():
            vq._codebook.embed.copy_(codes)
        found.append(vq(x.unsqueeze(0))[1].item())
    assert found == [1, 0]
    options = dict(OPTIONS, use_cosine_sim=True, commitment_use_cross_entropy_loss=True)
    for package, own, along in (
        (reference, {}, True),
        (torchvq, {}, False),
        (torchvq, dict(vqp_compat=True), False),
    ):
        vq = package.VectorQuantize(**options, orthogonal_reg_weight=1.0, **own)
        result = vq(tokens(1, 6, 8), freeze_codebook=True, return_loss_breakdown=True)
        codes = vq._codebook.embed
        torch.testing.assert_close(codes.norm(dim=-1), torch.ones(1, 16))
        (gradient,) = torch.autograd.grad(result[3].commitment, codes)
        assert ((gradient * codes).sum(-1).abs().max() > 1e-3) == along and gradient.any()


def topk_breakdown():
    shapes = []
    for package in BOTH:
        vq = package.VectorQuantize(**OPTIONS, accept_image_fmap=True).train()
        _, _, loss, breakdown = vq(tokens(2, 8, 3, 4), topk=2, return_loss_breakdown=True)
        assert loss.shape == (2, 3, 4, 2)
        vectors = package.VectorQuantize(**OPTIONS).train()
        of_vectors = vectors(tokens(12, 8), topk=2, return_loss_breakdown=True)[3]
        shapes.append((tuple(breakdown.commitment.shape), tuple(of_vectors.commitment.shape)))
    assert shapes == [((2, 12, 2), (12, 1, 2)), ((2, 3, 4, 2), (12, 2))]


def topk_gumbel():
    """The candidates are the nearest codes, as without the option."""
    options = dict(OPTIONS, straight_through=True, rotation_trick=False)
    theirs = reference.VectorQuantize(**options).train()
    x = tokens(2, 6, 8)
    with pytest.raises(RuntimeError):
        theirs(x, topk=2)
    with pytest.warns(UserWarning, match="target size"):
        assert theirs(x, topk=1)[0].shape == (2, 6, 12, 8)
    ours = loaded(torchvq.VectorQuantize(**options), theirs).train()
    codes, indices, loss = ours(x, topk=3)
    assert codes.shape == (2, 6, 3, 8) and loss.shape == indices.shape == (2, 6, 3)
    expected = torch.cdist(x, ours.codebook).topk(3, largest=False).indices
    assert torch.equal(indices, expected)
    torch.testing.assert_close(codes, ours.codebook[expected])


def targets_breakdown():
    counts = []
    for package in BOTH:
        targets = torch.zeros(2, 6, dtype=torch.long)
        vq = package.VectorQuantize(**OPTIONS)
        counts.append(len(vq(tokens(2, 6, 8), indices=targets, return_loss_breakdown=True)))
    assert counts == [2, 3]


def orthogonal_mask():
    """The loss of the codes of real tokens, against that of all tokens."""
    options = dict(orthogonal_reg_weight=1.0, orthogonal_reg_active_codes_only=True)
    theirs = reference.VectorQuantize(**OPTIONS, **options, freeze_codebook=True)
    ours = loaded(torchvq.VectorQuantize(**OPTIONS, **options, freeze_codebook=True), theirs)
    x, mask = tokens(1, 6, 8), torch.arange(6)[None] < 2

    def term(module, x, **call):
        return module(x, return_loss_breakdown=True, **call)[3].orthogonal_reg

    torch.testing.assert_close(term(theirs, x, mask=mask), term(theirs, x))
    torch.testing.assert_close(term(ours, x, mask=mask), term(theirs, x[:, :2]))
    assert not torch.allclose(term(theirs, x), term(theirs, x[:, :2]))


def beam_cosine():
    """With a beam of all codes, our path leaves the shortest residual of both, and the reference's a longer one."""
    options = dict(OPTIONS, num_quantizers=2, use_cosine_sim=True, beam_size=16)
    theirs = reference.ResidualVQ(**options)
    ours = loaded(torchvq.ResidualVQ(**options), theirs)
    x = tokens(2, 20, 8)
    left = []
    for module in (theirs, ours):
        indices = module.eval()(x, beam_size=16)[1]
        left.append((x - ours.get_output_from_indices(indices)).norm(dim=-1))
    assert (left[1] <= left[0] + 1e-5).all()
    assert (left[1] < left[0] - 1e-3).any()


def likeness(codes: torch.Tensor) -> torch.Tensor:
    """The orthogonal loss of codes (1, K, D)."""
    unit = torch.nn.functional.normalize(codes[0].detach(), dim=-1)
    return (unit @ unit.T).square().sum() / len(unit) ** 2 - 1 / len(unit)


def shared_orthogonal():
    """The loss of each level is that of the reference's codes before the step, and of ours after it."""
    options = dict(OPTIONS, num_quantizers=3, shared_codebook=True, decay=0.5)
    options |= dict(orthogonal_reg_weight=1.0, commitment_weight=0.0)
    for package, own in ((reference, {}), (torchvq, {}), (torchvq, dict(vqp_compat=True))):
        rvq = package.ResidualVQ(**options, **own)
        before = likeness(rvq.layers[0]._codebook.embed)
        losses = rvq(tokens(2, 6, 8))[2].flatten()
        after = likeness(rvq.layers[0]._codebook.embed)
        assert (before - after).abs() > 1e-2
        expected = before if package is reference else after
        torch.testing.assert_close(losses, expected.expand(3), rtol=1e-5, atol=1e-6)


def beam_frozen():
    """A call that freezes the codebooks, with a beam: the codes of the reference's first level move."""
    for package, expected in ((reference, [True, False]), (torchvq, [False, False])):
        rvq = package.ResidualVQ(**OPTIONS, num_quantizers=2).train()
        before = [level._codebook.embed.clone() for level in rvq.layers]
        rvq(tokens(2, 30, 8), beam_size=3, freeze_codebook=True)
        moved = [
            not torch.equal(level._codebook.embed, old)
            for level, old in zip(rvq.layers, before, strict=True)
        ]
        assert moved == expected


def beam_losses():
    """With one level a beam takes the same codes."""
    for option in ("codebook_diversity_loss_weight", "orthogonal_reg_weight"):
        for package, same in ((reference, False), (torchvq, True)):
            torch.manual_seed(0)
            rvq = package.ResidualVQ(**OPTIONS, num_quantizers=1, **{option: 1.0}).train()
            state = {name: value.clone() for name, value in rvq.state_dict().items()}
            plain = rvq(tokens(2, 30, 8))
            rvq.load_state_dict(state)
            beam = rvq(tokens(2, 30, 8), beam_size=3)
            assert torch.equal(plain[1], beam[1])
            assert torch.allclose(plain[2], beam[2]) == same


def targets_mask():
    """What padding holds changes the reference's loss and output, and not ours."""
    mask = torch.arange(6)[None] < 3
    targets = torch.arange(6)[None]
    for package, seen in ((reference, True), (torchvq, False)):
        vq = package.VectorQuantize(**OPTIONS).train()
        state = {name: value.clone() for name, value in vq.state_dict().items()}
        found = []
        for padding in (0.0, 3.0):
            vq.load_state_dict(state)
            x = torch.where(mask[..., None], tokens(1, 6, 8), padding)
            output, loss = vq(x, indices=targets, mask=mask)
            found.append((loss, output[:, 3:]))
        assert torch.allclose(found[0][0], found[1][0]) != seen
        assert bool(found[0][1].ne(0).any()) == seen


def targets_gradient():
    """The loss of targets is the same, and so is its gradient if no average moves the codes in the call."""
    targets = torch.arange(6)[None]
    for call, same in ((dict(ema_update=False), True), ({}, False)):
        theirs = reference.VectorQuantize(**OPTIONS)
        ours = loaded(torchvq.VectorQuantize(**OPTIONS, vqp_compat=True), theirs)
        found = []
        for module in (theirs, ours):
            x = tokens(1, 6, 8).requires_grad_()
            _, loss = module.train()(x, indices=targets, **call)
            found.append((loss.detach(), torch.autograd.grad(loss, x)[0]))
        torch.testing.assert_close(found[0][0], found[1][0])
        assert torch.allclose(found[0][1], found[1][1], atol=1e-6) == same


def in_place_ema():
    """The reference's codes are those of the averages plus the optimizer's step; ours of averages that keep it."""
    options = dict(**OPTIONS, learnable_codebook=True, ema_update=False)

    def codes(package, rate, **own):
        vq = package.VectorQuantize(
            **options, **own, in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=rate)
        ).train()
        with torch.no_grad():
            for name in ("embed", "embed_avg"):
                getattr(vq._codebook, name).copy_(tokens(1, 16, 8))
        vq(tokens(2, 30, 8) / 2, ema_update=True)
        return vq._codebook.embed.detach(), vq._codebook.embed_avg.clone()

    averaged, sums = codes(reference, 0.0)
    torch.testing.assert_close(codes(torchvq, 0.0)[0], averaged)
    for package, steps, keeps in ((reference, True, False), (torchvq, True, True)):
        moved, kept = codes(package, 0.1)
        assert torch.allclose(moved, averaged, atol=1e-5) != steps
        assert torch.allclose(kept, sums, atol=1e-5) != keeps
    torch.testing.assert_close(codes(torchvq, 0.1, vqp_compat=True)[0], averaged)


def in_place_counts():
    """Tokens whose code changes with the step count for the code before it, and in a level for the code returned."""
    options = dict(learnable_codebook=True, ema_update=False, threshold_ema_dead_code=1e-9)
    options |= dict(in_place_codebook_optimizer=lambda own: torch.optim.SGD(own, lr=1.0), decay=0.9)
    for package, own in ((reference, {}), (torchvq, {}), (torchvq, dict(vqp_compat=True))):
        changed = 0
        for seed in range(20):
            torch.manual_seed(seed)
            stack = package.ResidualVQ(
                dim=4, num_quantizers=1, codebook_size=16, **options, **own
            ).train()
            codebook, x = stack.layers[0]._codebook, torch.randn(1, 6, 4)
            codes = codebook.embed.detach().clone()
            before, returned = torch.cdist(x, codes).argmin(-1)[0], stack(x)[1][0, :, 0]
            changed += not torch.equal(before, returned)
            counted = before if package is reference else returned
            expected = 0.9 + 0.1 * torch.bincount(counted, minlength=16)
            torch.testing.assert_close(codebook.cluster_size[0], expected)
        assert changed > 0


def update_minus_one():
    """Sizes and sums of codes after an update by hand, in which the last tokens have the index -1."""
    x, indices = tokens(1, 6, 8), torch.tensor([[3, 3, 5, 0, -1, -1]])
    for package, own, seen in (
        (reference, {}, 6),
        (torchvq, {}, 4),
        (torchvq, dict(vqp_compat=True), 4),
    ):
        for name in ("update_ema_indices", "update_indices"):
            vq = package.VectorQuantize(**OPTIONS, **own, decay=0.5).eval()
            sums = vq._codebook.embed_avg[0].clone()
            getattr(vq, name)(x, indices)
            one_hot = torch.nn.functional.one_hot(indices[0, :seen].clamp(min=0), 16).float()
            counts = 0.5 + 0.5 * one_hot.sum(0)
            torch.testing.assert_close(vq._codebook.cluster_size[0], counts)
            moved = 0.5 * (sums + one_hot.T @ x[0, :seen])
            torch.testing.assert_close(vq._codebook.embed_avg[0], moved)


def update_shape():
    """An update by hand with the indices of two sequences of three tokens in the shape of three of two."""
    x, indices = tokens(2, 3, 8), torch.arange(6).view(3, 2)
    vq = reference.VectorQuantize(**OPTIONS, decay=0.5).eval()
    sums = vq._codebook.embed_avg[0].clone()
    vq.update_ema_indices(x, indices)
    moved = 0.5 * (sums[:6] + x.flatten(0, 1))
    torch.testing.assert_close(vq._codebook.embed_avg[0, :6], moved)
    for own in ({}, dict(vqp_compat=True)):
        for name in ("update_ema_indices", "update_indices"):
            vq = torchvq.VectorQuantize(**OPTIONS, **own)
            with pytest.raises(ValueError, match="VectorQuantize: expected indices"):
                getattr(vq, name)(x, indices)


def sim_evaluation_loss():
    for name, options in (("SimVQ", {}), ("ResidualSimVQ", dict(num_quantizers=2))):
        found = []
        for package in BOTH:
            loss = getattr(package, name)(**OPTIONS, **options).eval()(tokens(1, 6, 8))[2]
            found.append(loss.requires_grad)
        assert found == [True, False]


def lfq_stack_codes():
    """The codes of all levels sum to the output of torchvq, and not to that of the reference."""
    for option in ("spherical", "orthogonal_rotation"):
        for package, expected in ((reference, False), (torchvq, True)):
            stack = package.ResidualLFQ(
                dim=4, codebook_size=16, num_quantizers=2, **{option: True}
            ).eval()
            quantized, _, _, codes = stack(tokens(1, 6, 4), return_all_codes=True)
            assert torch.allclose(codes.sum(0), quantized, atol=1e-6) == expected


def padding_behind_a_projection(name: str, **options):
    """The reference decodes padding to the bias, torchvq to zeros; real tokens decode alike."""
    theirs = getattr(reference, name)(dim=8, **options).eval()
    ours = loaded(getattr(torchvq, name)(dim=8, **options), theirs).eval()
    indices = theirs(tokens(2, 6, 8))[1].clone()
    indices[:, 4:] = -1
    found, expected = ours.get_output_from_indices(indices), theirs.get_output_from_indices(indices)
    torch.testing.assert_close(found[:, :4], expected[:, :4])
    torch.testing.assert_close(expected[:, 4:], theirs.project_out.bias.expand(2, 2, 8))
    assert found[:, 4:].eq(0).all()


def rfsq_padding():
    padding_behind_a_projection("ResidualFSQ", levels=[8, 5, 5], num_quantizers=2)


def lfq_stack_padding():
    padding_behind_a_projection("ResidualLFQ", codebook_size=16, num_quantizers=2)


LINE_CHECKS = (
    beam_frozen,
    beam_losses,
    targets_mask,
    targets_gradient,
    in_place_ema,
    in_place_counts,
    update_minus_one,
    update_shape,
    sim_evaluation_loss,
    lfq_stack_codes,
    lfq_stack_padding,
    rfsq_padding,
    cosine_length,
    topk_breakdown,
    topk_gumbel,
    targets_breakdown,
    orthogonal_mask,
    shared_orthogonal,
    beam_cosine,
)
