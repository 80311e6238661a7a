"""Checkpoints of the reference load strictly into each of its classes, and evaluation agrees."""

from __future__ import annotations

import copy
import logging
import warnings
from typing import Any

import pytest
import torch
import vector_quantize_pytorch
from classes import ROWS, build, construct, data, forward
from torch import nn

Cell = Any

# Rows whose checkpoints load, but whose evaluation cannot be compared; the parity tests compare numbers.
CANNOT = {
    "residual_vq_beam": "the reference scores paths otherwise",
    "residual_vq_sampled_beam": "the reference scores paths otherwise",
    "residual_vq_implicit_beam": "the reference scores paths otherwise, and fails with several samples",
    "residual_vq_image": "the reference's forward fails",
    "vq_affine": "the reference moves its statistics in evaluation",
    "latent_in_place": "the reference's forward fails",
    "binary_mapper": "the reference draws in evaluation",
}
# Options that the reference's constructor refuses.
REFUSED = {"residual_sim_vq_heads", "residual_sim_vq_beam"}


def reference(row: str) -> nn.Module | None:
    """The reference's module with the options of a row; None if it has no such class or option."""
    name, options = ROWS[row].name, ROWS[row].options
    if not hasattr(vector_quantize_pytorch, name) or row in REFUSED:
        return None
    torch.manual_seed(3)
    if name == "LatentQuantize":
        options = {key: value for key, value in options.items() if key != "channel_first"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return construct(vector_quantize_pytorch, name, options)


@pytest.mark.parametrize("row", ROWS)
def test_reference_checkpoint(row: str, cell: Cell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    theirs = reference(row)
    if theirs is None:
        cell("frameworks", row, "reference checkpoint", "-")
        return
    cell("frameworks", row, "reference checkpoint")
    x = data(row)
    # A step first, so that state which the reference creates late is in the checkpoint.
    if row not in CANNOT:
        theirs(layout(row, x))
    module = build(row, seed=9)
    result = module.load_state_dict(copy.deepcopy(theirs.state_dict()), strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    stored = theirs.state_dict()
    for name, value in stored.items():
        unset = stored.get(name + "_needs_init", False)  # uninitialised memory there
        assert unset or torch.equal(module.state_dict()[name], value), name
    if row in CANNOT:
        return
    with torch.no_grad():
        found = forward(module.eval(), data(row, 1))
        expected = forward(theirs.eval(), layout(row, data(row, 1)))
    indices = expected.indices
    agree = found.indices.reshape(-1) == indices.reshape(-1)
    # The reference rounds distances in float32, so near ties may be decided differently.
    assert agree.float().mean() > 0.97, f"{(~agree).sum()} of {agree.numel()} indices differ"
    if agree.all():
        quantized = layout(row, expected.quantized, back=True)
        torch.testing.assert_close(found.quantized, quantized, rtol=1e-5, atol=1e-5)


def layout(row: str, x: torch.Tensor, back: bool = False) -> torch.Tensor:
    """Moves the features, which the reference's LatentQuantize has on axis 1."""
    if ROWS[row].name == "LatentQuantize" and ROWS[row].channel_axis == -1:
        return x.movedim(1, -1) if back else x.movedim(-1, 1)
    return x
