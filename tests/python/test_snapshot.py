"""snapshot: a copy that compilers save for backward (include/torchvq/ops/snapshot.h)."""

from __future__ import annotations

import torch

ops = torch.ops.torchvq


def make_tokens(generator, dtype=torch.float32, shape=(2, 7, 3)):
    return (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def test_snapshot_is_a_copy_with_identity_gradient(generator):
    _, codebook, upstream = make_tokens(generator)
    leaf = codebook.mT.contiguous().mT.requires_grad_()
    copy = ops.snapshot(leaf)
    copy.backward(upstream)
    assert copy.is_contiguous() and same_bits(copy.detach(), codebook)
    assert copy.data_ptr() != leaf.data_ptr() and torch.equal(leaf.grad, upstream)


def test_snapshot_keeps_the_codebook_that_a_compiled_forward_overwrites(generator):
    """Without the snapshot, the compiler saves the buffer itself, and backward sees 0."""

    def step(x, codebook):
        kept = ops.snapshot(codebook)
        y = (x.unsqueeze(2) * kept.unsqueeze(1)).sum()
        codebook.zero_()
        return y

    x = torch.randn(1, 4, 3, generator=generator).requires_grad_()
    codebook = torch.randn(1, 5, 3, generator=generator)
    expected = codebook.sum(1, keepdim=True).expand_as(x)
    buffer = codebook.clone()
    torch.compile(step, fullgraph=True, backend="inductor")(x, buffer).backward()
    assert buffer.eq(0).all()
    torch.testing.assert_close(x.grad, expected)


def test_snapshot_passes_opcheck(generator):
    x, _, _ = make_tokens(generator)
    torch.library.opcheck(ops.snapshot.default, (x.requires_grad_(),))
