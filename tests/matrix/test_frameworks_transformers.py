"""Models that Hugging Face transformers or diffusers load, which assign tensors and call no method of ours.

transformers is no dependency of the tests; `from_pretrained` below makes the same assignments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from classes import ROWS, build, data, forward
from framework_steps import assert_goes_on_like, construct, same, sgd, train
from test_frameworks_reference import reference
from torch import Tensor, nn

import torchvq

MARK = "_is_hf_initialized"


def from_pretrained(make: Callable[[], nn.Module], checkpoint: dict[str, Tensor]) -> nn.Module:
    """A module on the meta device, then marked tensors, then memory as it was, then marks on all modules."""
    with torch.device("meta"):
        module = make()
    expected = set(module.state_dict())
    for name in expected & checkpoint.keys():
        assign(module, name, checkpoint[name].clone(), marked=True)
    for name in expected - checkpoint.keys():
        path, _, last = name.rpartition(".")
        assign(module, name, poison(getattr(module.get_submodule(path), last)))
    for path, part in module.named_modules():
        for last in part._non_persistent_buffers_set:
            if part._buffers[last] is not None:
                assign(module, f"{path}.{last}".lstrip("."), poison(part._buffers[last]))
    return module.apply(lambda part: setattr(part, MARK, True))


def assign(module: nn.Module, name: str, value: Tensor, marked: bool = False) -> None:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    wrapped = last in owner._parameters or (marked and last not in owner._buffers)
    if wrapped:
        value = nn.Parameter(value, requires_grad=value.is_floating_point())
    if marked:
        setattr(value, MARK, True)
    setattr(owner, last, value)


def poison(like: Tensor) -> Tensor:
    """What `torch.empty_like` may return; not False, which is most defaults."""
    value = torch.empty_like(like, device="cpu")
    return value.fill_(True if value.dtype == torch.bool else 77)


@pytest.mark.parametrize("row", ROWS)
def test_a_checkpoint_of_its_own(row: str) -> None:
    original = build(row)
    train(original, row, range(2), sgd(original))
    module = from_pretrained(lambda: construct(row), original.state_dict())
    for name, tensor in module.named_buffers():
        assert (
            "counts" in name or name.endswith("replaced") or same(tensor, original.get_buffer(name))
        ), name
    for part in module.modules():
        if isinstance(part, torchvq.VectorQuantize):
            assert part.stats().tokens == part.stats().replaced == 0
    assert_goes_on_like(module, original, row)


@pytest.mark.parametrize("row", ROWS)
def test_a_checkpoint_of_the_reference(row: str) -> None:
    """The state is that of `load_state_dict`, except for seeds, which are drawn."""
    theirs = reference(row)
    if theirs is None:
        return
    checkpoint = theirs.state_dict()
    module = from_pretrained(lambda: construct(row), checkpoint)
    twin = construct(row)
    twin.load_state_dict(copy.deepcopy(checkpoint), strict=True)
    for name, tensor in module.named_buffers():
        if name.rpartition(".")[2] == "rng":
            assert tensor[0] != 77 and tensor[1] == 0, name
        else:
            assert same(tensor, twin.get_buffer(name)), name
    train(module, row, range(2))


@pytest.mark.parametrize("row", ["vq_affine", "residual_fsq", "lfq_part_of_tokens"])
def test_assignments_of_users_are_kept(row: str) -> None:
    """Also on a module whose marks are set after it has got its values, as when it becomes part of a new model."""
    original = build(row)
    train(original, row, range(2), sgd(original))
    with torch.device("meta"):
        empty, loaded = construct(row), construct(row)
    loaded.load_state_dict(original.state_dict(), assign=True)
    empty.to_empty(device="cpu")
    for module in (build(row), loaded, empty):
        own = dict(module.named_buffers())
        for name, tensor in own.items():
            assign(module, name, torch.full_like(tensor, True if tensor.dtype == torch.bool else 3))
        module.apply(lambda part: setattr(part, MARK, True))
        assert all(bool((tensor == 3).all() | (tensor == 1).all()) for tensor in module.buffers())


def test_a_copy_of_a_loaded_module_keeps_its_mark() -> None:
    module = from_pretrained(lambda: construct("vq"), build("vq").state_dict())
    assert all(getattr(part, MARK) for part in copy.deepcopy(module).modules())
    assert not getattr(construct("vq"), MARK)


@pytest.mark.parametrize("row", ROWS)
def test_buffers_that_a_loader_made_half(row: str) -> None:
    """As diffusers' loader with `torch_dtype`: it casts the tensors, not the module, and ends with `eval()`."""
    module = build(row)
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point():
                    cast = tensor.detach().bfloat16()
                    tensors[name] = nn.Parameter(cast) if tensors is part._parameters else cast
    module.eval()
    assert all(tensor.dtype != torch.bfloat16 for tensor in module.buffers())
    for step in range(2):
        found = forward(module.train(), data(row, step, dtype=torch.bfloat16))
        assert found.loss.isfinite().all()


@pytest.mark.parametrize("row", ["vq", "vq_dead_codes", "residual_vq"])
def test_kept_statistics(row: str) -> None:
    """With `sync_every` a state dict has keys that are neither parameters nor buffers."""
    options = ROWS[row].options | {"sync_every": 3}
    make = getattr(torchvq, ROWS[row].name)
    original = build(row, sync_every=3)
    train(original, row, range(4))  # one step is kept
    checkpoint = original.state_dict()
    module = from_pretrained(lambda: make(**options), checkpoint)
    assert_goes_on_like(module, original, row)

    lacking = {name: value for name, value in checkpoint.items() if ".kept_" not in name}
    module, twin = from_pretrained(lambda: make(**options), lacking), make(**options)
    twin.load_state_dict(lacking, strict=False)
    assert_goes_on_like(module, twin, row)
