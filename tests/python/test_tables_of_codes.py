"""Tables of codes, which are buffers in the reference: its users read them, move them and write them anew."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import nn

import torchvq

LEVELS = [8, 5, 4]
TABLES: dict[str, tuple[Any, str]] = {
    "FSQ": (lambda: torchvq.FSQ(LEVELS), "implicit_codebook"),
    "FSQ projected": (lambda: torchvq.FSQ(LEVELS, dim=6), "implicit_codebook"),
    "LFQ": (lambda: torchvq.LFQ(dim=4, codebook_size=16, spherical=True), "codebook"),
    "LatentQuantize": (lambda: torchvq.LatentQuantize(LEVELS, dim=3), "implicit_codebook"),
    "LatentQuantize fixed": (
        lambda: torchvq.LatentQuantize(LEVELS, dim=3, optimize_values=False),
        "implicit_codebook",
    ),
    "BinaryMapper": (lambda: torchvq.BinaryMapper(3), "codes"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_on_the_device_of_the_module(name: str) -> None:
    make, table = TABLES[name]
    module = make()
    assert getattr(module, table).device.type == "cpu"
    assert getattr(module.to("meta"), table).device.type == "meta"


@pytest.mark.parametrize("name", TABLES)
def test_tables_may_be_set_to_what_they_are(name: str) -> None:
    """As loaders do that repair buffers; other codes would have no effect, so they are refused."""
    make, table = TABLES[name]
    module = make()
    codes = getattr(module, table)
    assert not codes.requires_grad
    for same in (codes.clone(), codes.double(), codes.to(torch.bfloat16)):
        setattr(module, table, same)
        assert torch.equal(getattr(module, table), codes)
    owner = type(module).__name__
    for other in (codes.logical_not().to(codes.dtype), codes[:-1], 3):
        with pytest.raises(ValueError, match=f"{owner}: expected {table} to be the codes that"):
            setattr(module, table, other)


@pytest.mark.parametrize("symmetric", [True, False])
def test_tables_may_be_set_to_those_of_the_reference(symmetric: bool) -> None:
    """Whose formulas round differently, as do those of loaders."""
    module = torchvq.FSQ(LEVELS, preserve_symmetry=symmetric)
    codes = module.implicit_codebook
    theirs = reference.FSQ(LEVELS, preserve_symmetry=symmetric).implicit_codebook
    for same in (theirs, theirs.double(), theirs.bfloat16()):
        module.implicit_codebook = same
    for distance in (0.05, float("nan")):
        with pytest.raises(
            ValueError, match="FSQ: expected implicit_codebook to be the codes that"
        ):
            module.implicit_codebook = theirs + distance
    assert torch.equal(module.implicit_codebook, codes)


def repair(stack: Any, dtype: torch.dtype) -> None:
    """What a loader of models does that built them on the meta device; every formula is its own."""
    levels = torch.tensor(stack.levels)
    stack.scales = torch.stack([levels.float() ** -i for i in range(stack.num_quantizers)])
    stack.soft_clamp_input_value = 1 + 1 / (levels.to(dtype) - 1)
    for fsq in stack.layers:
        fsq._levels, fsq._basis = levels.int(), torch.tensor([1, 8, 40], dtype=torch.int32)
        found = fsq.indices_to_level_indices(torch.arange(fsq.codebook_size)).to(dtype)
        fsq.implicit_codebook = found * (2 / (levels.to(dtype) - 1)) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loader_that_rewrites_what_a_residual_stack_derives(dtype: torch.dtype) -> None:
    options = dict(levels=LEVELS, dim=3, num_quantizers=2)
    ours, theirs = torchvq.ResidualFSQ(**options).eval(), reference.ResidualFSQ(**options).eval()
    for stack in (ours, theirs):
        repair(stack, dtype)
    x = torch.randn(1, 200, 3)
    expected = theirs(x)[1]
    assert torch.equal(ours(x)[1], expected)
    # A move restores what was only rounded.
    plain = torchvq.ResidualFSQ(**options).eval()(x)[1]
    assert torch.equal(ours.double().float()(x)[1], plain)


REWRITES: dict[str, Any] = {
    "clamp": lambda stack: setattr(stack, "soft_clamp_input_value", torch.full((3,), 3.0)),
    "clamp in place": lambda stack: stack.soft_clamp_input_value.fill_(3.0),
    "no clamp": lambda stack: setattr(stack, "soft_clamp_input_value", None),
    "scales": lambda stack: setattr(stack, "scales", stack.scales / 2),
    "scales in place": lambda stack: stack.scales.div_(2),
}
MOVES: dict[str, Any] = {
    "cast": lambda module: module.double().float(),
    "half": lambda module: module.half().float(),
    "load": lambda module: module.load_state_dict(module.state_dict()),
    "assign": lambda module: module.load_state_dict(module.state_dict(), assign=True),
    "evaluation": lambda module: module.train().eval(),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_residual_stack_keeps_what_users_write_into_its_buffers(rewrite: str, move: str) -> None:
    """Through a move to another dtype or device, and through a load, which has no entries for them."""
    options = dict(levels=LEVELS, dim=3, num_quantizers=2)
    ours, theirs = torchvq.ResidualFSQ(**options).eval(), reference.ResidualFSQ(**options).eval()
    x = 2 * torch.randn(1, 200, 3)
    before = ours(x)[1]
    for stack in (ours, theirs):
        REWRITES[rewrite](stack)
    if rewrite == "no clamp":  # without one the reference's forward fails
        theirs.soft_clamp_input_value = torch.tensor(1e6)
    expected = theirs(x)[1]
    assert not torch.equal(before, expected)
    MOVES[move](ours)
    assert torch.equal(ours(x)[1], expected)


@pytest.mark.parametrize("move", MOVES)
def test_fixed_values_of_latent_quantize_keep_what_users_write(move: str) -> None:
    module = torchvq.LatentQuantize(LEVELS, dim=3, optimize_values=False)
    values = module.values_per_latent
    values[1].mul_(0.5)
    expected = [own.clone() for own in values]
    MOVES[move](module)
    assert all(torch.equal(own, other) for own, other in zip(values, expected, strict=True))


def test_levels_of_fsq_are_buffers() -> None:
    """In stacks, too, whose levels have no other tensor."""
    theirs = reference.FSQ(LEVELS)
    stack = torchvq.ResidualFSQ(levels=LEVELS, dim=6, num_quantizers=2)
    for module in (torchvq.FSQ(LEVELS), torchvq.FSQ(LEVELS, dim=6), stack.layers[1]):
        for name in ("_levels", "_basis"):
            found = dict(module.named_buffers())[name]
            assert torch.equal(found, getattr(theirs, name)) and found.dtype == torch.int32
            assert name not in module.state_dict()
            for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
                assert torch.equal(getattr(copied, name), found)
    stack.to("meta")
    assert {buffer.device.type for buffer in stack.buffers()} == {"meta"}
    assert (stack.codebooks * stack.scales.unsqueeze(1)).device.type == "meta"


def test_levels_of_fsq_after_construction_on_meta() -> None:
    state = torchvq.FSQ(LEVELS, dim=6).state_dict()
    with torch.device("meta"):
        assigned, emptied = torchvq.FSQ(LEVELS, dim=6), torchvq.FSQ(LEVELS, dim=6)
    assigned.load_state_dict(state, assign=True)
    emptied.to_empty(device="cpu").load_state_dict(state)
    for module in (assigned, emptied):
        assert module._levels.tolist() == LEVELS and module._basis.tolist() == [1, 8, 40]
        assert torch.equal(module.implicit_codebook, torchvq.FSQ(LEVELS).implicit_codebook)


def test_a_quantize_of_the_users_on_another_device() -> None:
    class Halved(torchvq.FSQ):
        def quantize(self, z: torch.Tensor) -> torch.Tensor:
            return self.bound(z) / (self._levels // 2)

    module = Halved(LEVELS).to("meta")
    assert module(torch.randn(1, 4, 3, device="meta"))[0].shape == (1, 4, 3)


VIEWED: dict[str, tuple[Any, Any]] = {
    "LFQ": (lambda: torchvq.LFQ(dim=8, codebook_size=16, num_codebooks=2), (2, 5, 8)),
    "LFQ image": (lambda: torchvq.LFQ(dim=8, codebook_size=16, num_codebooks=2), (2, 8, 3, 3)),
    "FSQ": (lambda: torchvq.FSQ(LEVELS, num_codebooks=2), (2, 5, 6)),
    "VectorQuantize": (
        lambda: torchvq.VectorQuantize(
            8, codebook_size=16, heads=2, codebook_dim=4, separate_codebook_per_head=True
        ),
        (2, 5, 8),
    ),
    "ResidualVQ": (
        lambda: torchvq.ResidualVQ(
            dim=8,
            codebook_size=16,
            num_quantizers=3,
            heads=2,
            codebook_dim=4,
            separate_codebook_per_head=True,
        ),
        (2, 5, 8),
    ),
    "ResidualSimVQ": (
        lambda: torchvq.ResidualSimVQ(dim=8, codebook_size=16, num_quantizers=2),
        (2, 5, 8),
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", VIEWED)
def test_results_can_be_viewed(name: str, training: bool) -> None:
    """Users call view() on indices and outputs, whatever the memory format of the input."""
    make, shape = VIEWED[name]
    module = make().train(training)
    x = torch.randn(shape)
    for same in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        quantized, indices = module(same)[:2]
        assert indices.is_contiguous()
        if x.dim() == 3:
            assert quantized.is_contiguous()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torchvq.VectorQuantize(8, codebook_size=16),
        lambda: torchvq.VectorQuantize(8, codebook_size=16, affine_param=True, sync_every=2),
        lambda: torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2),
        lambda: torchvq.HierarchicalVQ(dim=8, codebook_size=16, scales=[1, 2, 4]),
    ],
)
def test_a_load_in_inference_mode_leaves_a_module_that_trains(make: Any) -> None:
    module: nn.Module = make()
    state = module.state_dict()
    # A checkpoint of the reference lacks these.
    theirs = {name: own for name, own in state.items() if not name.endswith("rng")}
    for checkpoint in (state, theirs):
        with torch.inference_mode():
            module.load_state_dict(checkpoint)
        assert not any(tensor.is_inference() for tensor in module.buffers())
        module(
            torch.randn(2, 8, 8)
            if isinstance(module, torchvq.HierarchicalVQ)
            else torch.randn(2, 9, 8)
        )
