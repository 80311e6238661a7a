"""Copies and checkpoints of every class: no way of saving and loading that PyTorch offers loses state."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from classes import ROWS, build, data, forward, state
from framework_steps import (
    assert_goes_on_like,
    assert_same,
    assert_same_state,
    construct,
    sgd,
    train,
)
from torch import nn

Cell = Any
every_row = pytest.mark.parametrize("row", ROWS)


def trained(row: str, seed: int = 0) -> nn.Module:
    module = build(row, seed)
    train(module, row, range(2), sgd(module))
    return module


def through_torch(saved: Any, weights_only: bool) -> Any:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: through_torch(module, weights_only=False),
}


@every_row
def test_copies_go_on_and_share_nothing(row: str, cell: Cell) -> None:
    for column in COPIES:
        cell("frameworks", row, column)
    original = trained(row)
    before = state(original)
    for column, copied in COPIES.items():
        twin = copied(original)
        assert list(dict(twin.named_modules())) == list(dict(original.named_modules())), column
        assert_goes_on_like(twin, copied(original), row)
        assert_same_state(original, before)
    assert_goes_on_like(copy.deepcopy(original), original, row)


@every_row
def test_a_shallow_copy_shares_everything(row: str) -> None:
    original = trained(row)
    twin = copy.copy(original)
    train(twin, row, [5])
    assert_same_state(original, twin.state_dict())
    assert_goes_on_like(copy.deepcopy(twin), original, row)


@every_row
def test_resuming_is_going_on(row: str, cell: Cell) -> None:
    cell("frameworks", row, "resume")
    original = build(row)
    optimizer = sgd(original)
    train(original, row, range(3), optimizer)
    saved = {"model": original.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
    saved = through_torch(saved, weights_only=True)
    for assign in (False, True):
        own = copy.deepcopy(saved)
        resumed = build(row, seed=7)
        result = resumed.load_state_dict(own["model"], strict=True, assign=assign)
        assert not result.missing_keys and not result.unexpected_keys
        again = sgd(resumed)
        if again is not None:
            again.load_state_dict(own["optimizer"])
        continued, second = copy.deepcopy((original, optimizer))
        expected = train(continued, row, range(3, 6), second)
        assert_same(train(resumed, row, range(3, 6), again), expected)
        assert_same_state(resumed, state(continued))


@every_row
def test_saving_leaves_the_module_alone(row: str) -> None:
    """A saved state does not change with the module, if it is copied as savers do."""
    module = trained(row)
    saved = state(module)
    assert list(module.state_dict()) == list(module.state_dict())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    train(module, row, [8], sgd(module))
    file.seek(0)
    for name, value in torch.load(file, weights_only=True).items():
        assert torch.equal(value, saved[name]), name


@every_row
@pytest.mark.parametrize("assign", [False, True], ids=["to_empty", "assign"])
def test_construction_on_the_meta_device(row: str, assign: bool, cell: Cell) -> None:
    cell("frameworks", row, "meta device")
    original = trained(row)
    with torch.device("meta"):
        module = construct(row)
    assert all(t.is_meta for name, t in module.state_dict().items() if not name.endswith("rng"))
    assert module.state_dict().keys() == construct(row).state_dict().keys()
    if not assign:
        poison(module.to_empty(device="cpu"))
    load = copy.deepcopy(original.state_dict())
    module.load_state_dict(load, strict=True, assign=assign)
    left = [name for name, t in (*module.named_parameters(), *module.named_buffers()) if t.is_meta]
    assert not left, f"still on the meta device: {left}"
    assert_goes_on_like(module, original, row)


def poison(module: nn.Module) -> None:
    """`to_empty` leaves memory as it was, mostly zeros; nothing may rely on that."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(True if tensor.dtype == torch.bool else 77)


@every_row
def test_a_constructor_on_meta_runs_on_meta(row: str) -> None:
    """Shapes and dtypes of outputs without data, as memory planners use them."""
    with torch.device("meta"):
        module = construct(row).eval()
    found = forward(module, data(row).to("meta"))
    expected = forward(build(row).eval(), data(row))
    for part, other in zip(found, expected, strict=True):
        assert part.is_meta and part.shape == other.shape and part.dtype == other.dtype


@every_row
def test_safetensors(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("frameworks", row, "safetensors")
    original = trained(row)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_model(original, str(file))
    module = build(row, seed=7)
    missing, unexpected = safetensors.torch.load_model(module, str(file), strict=True)
    assert not missing and not unexpected
    # Levels that share a codebook have the same tensors under several names, which `save_file` refuses by design.
    if "shared" in row:
        with pytest.raises(RuntimeError, match="share memory"):
            safetensors.torch.save_file(original.state_dict(), file)
    else:
        safetensors.torch.save_file(original.state_dict(), file)
        again = build(row, seed=8)
        again.load_state_dict(safetensors.torch.load_file(file), strict=True)
        assert_same_state(again, original.state_dict())
    assert_goes_on_like(module, original, row)


@every_row
def test_state_is_tensors_that_share_no_memory(row: str) -> None:
    """Savers require contiguous tensors that own their memory, except those of shared codebooks."""
    module = trained(row)
    own: dict[int, str] = {}
    for name, value in module.state_dict().items():
        assert type(value) is torch.Tensor and value.is_contiguous(), name
        storage = value.untyped_storage()
        assert storage.nbytes() == value.numel() * value.element_size(), name
        first = own.setdefault(storage.data_ptr(), name)
        assert first == name or "shared" in row, (name, first)
