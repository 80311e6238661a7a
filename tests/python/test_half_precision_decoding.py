"""A module in half precision decodes in its dtype, however it came to it; the matrix of precision has the values."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import torchvq

HALF = (torch.float16, torch.bfloat16)
INDICES = torch.arange(6).view(2, 3)
QUANTIZERS = {
    "VectorQuantize": dict(dim=4, codebook_size=16),
    "LFQ": dict(dim=4, codebook_size=16),
    "FSQ": dict(levels=[5, 3], channel_first=False),
    "FSP": dict(levels=[5, 3]),
    "SimVQ": dict(dim=4, codebook_size=16),
    "LatentQuantize": dict(levels=[5, 3], dim=2),
}
STACKS = {
    "ResidualVQ": dict(dim=4, codebook_size=16),
    "ResidualLFQ": dict(dim=4, codebook_size=16),
    "ResidualFSQ": dict(dim=2, levels=[5, 3]),
    "ResidualSimVQ": dict(dim=4, codebook_size=16),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in QUANTIZERS:
        return getattr(torchvq, name)(**QUANTIZERS[name]).eval()
    return getattr(torchvq, name)(**STACKS[name], num_quantizers=2).eval()


def decoded(module: nn.Module) -> list[torch.Tensor]:
    """All that a module makes of indices."""
    if isinstance(module, tuple(getattr(torchvq, name) for name in STACKS)):
        levels = torch.stack([INDICES, INDICES], -1)
        return [module.get_codes_from_indices(levels), module.get_output_from_indices(levels)]
    if isinstance(module, torchvq.VectorQuantize):
        return [module.get_codes_from_indices(INDICES), module.get_output_from_indices(INDICES)]
    return [module.indices_to_codes(INDICES)]


def check(module: nn.Module, dtype: torch.dtype) -> None:
    assert {output.dtype for output in decoded(module)} == {dtype}


@pytest.mark.parametrize("half", HALF, ids=str)
@pytest.mark.parametrize("name", [*QUANTIZERS, *STACKS])
def test_casts(name: str, half: torch.dtype) -> None:
    module = build(name)
    before = decoded(module)
    check(module.to(half), half)
    if not [*module.parameters()]:  # those are rounded
        for own, wide in zip(decoded(module), before, strict=True):
            assert torch.equal(own, wide.to(half))
    check(module.to("cpu"), half)
    check(copy.deepcopy(module), half)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    check(torch.load(file, weights_only=False), half)
    check(module.train().eval(), half)
    check(module.to(torch.float16), torch.float16)
    check(module.float(), torch.float32)


@pytest.mark.parametrize("half", HALF, ids=str)
@pytest.mark.parametrize("name", [*QUANTIZERS, *STACKS])
def test_modules_built_under_a_default_dtype(name: str, half: torch.dtype) -> None:
    """As loaders of models build them."""
    torch.set_default_dtype(half)
    try:
        module = build(name)
    finally:
        torch.set_default_dtype(torch.float32)
    check(module, half)
    check(module.float(), torch.float32)


@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ", "SimVQ", "ResidualSimVQ"])
def test_a_checkpoint_that_is_assigned(name: str) -> None:
    module, other = build(name), build(name)
    state = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in module.state_dict().items()
    }
    other.load_state_dict(state)  # copied
    check(other, torch.float32)
    other.load_state_dict(state, assign=True)
    check(other, torch.bfloat16)
    other.load_state_dict(module.state_dict())  # copied
    check(other, torch.bfloat16)
    other.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    check(other, torch.float32)


@pytest.mark.parametrize("half", HALF, ids=str)
@pytest.mark.parametrize("name", [*QUANTIZERS, *STACKS])
def test_a_checkpoint_of_a_module_in_half_precision_that_is_assigned(
    name: str, half: torch.dtype
) -> None:
    """Its buffers are float32, a decoder beside them is not."""
    file = io.BytesIO()
    torch.save(build(name).to(half).state_dict(), file)
    file.seek(0)
    module = build(name)
    module.load_state_dict(torch.load(file), assign=True)
    check(module, half)
    module.load_state_dict(build(name).state_dict(), assign=True)
    check(module, torch.float32)
    module.to(half).load_state_dict({}, strict=False, assign=True)
    check(module, half)


@pytest.mark.parametrize("name", ["VectorQuantize", "LFQ", "FSQ", "ResidualVQ"])
def test_behind_a_projection_without_a_weight(name: str) -> None:
    hooked, activated = build(name), build(name)
    hooked.project_out = nn.Identity()
    hooked.project_out.register_forward_hook(lambda *_: None)
    activated.project_out = nn.Tanh()
    for module in (hooked, activated):
        wide = decoded(module)[-1]
        assert torch.equal(decoded(module.bfloat16())[-1], wide.bfloat16())
        check(module, torch.bfloat16)


def test_exported_with_a_shared_codebook() -> None:
    """Export adds hooks to the modules then."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options = dict(STACKS["ResidualVQ"], num_quantizers=2, shared_codebook=True)
            self.stack = torchvq.ResidualVQ(**options).eval()

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            return self.stack.get_output_from_indices(indices)

    decoder, levels = Decoder().bfloat16(), torch.stack([INDICES, INDICES], -1)
    exported = torch.export.export(decoder, (levels,)).module()
    assert torch.equal(exported(levels), decoder(levels))


@pytest.mark.parametrize("name", ["VectorQuantize", "FSQ", "LFQ"])
def test_from_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        module = build(name).bfloat16()
    module.to_empty(device="cpu")
    module.load_state_dict(build(name).state_dict())
    check(module, torch.bfloat16)
    with torch.device("meta"):
        check(module.to("cpu"), torch.bfloat16)


@pytest.mark.parametrize("name", ["VectorQuantize", "FSQ", "LFQ", "SimVQ", "ResidualVQ"])
def test_a_decoder_in_half_precision_takes_what_is_decoded(name: str) -> None:
    module = build(name)
    features = decoded(module)[-1].shape[-1]
    model = nn.ModuleDict(dict(quantizer=module, decoder=nn.Linear(features, 3))).bfloat16()
    decode = torch.compile(
        lambda: model.decoder(decoded(model.quantizer)[-1]), backend="eager", fullgraph=True
    )
    expected = model.decoder(decoded(module)[-1])
    assert expected.dtype == torch.bfloat16
    assert torch.equal(decode(), expected)


def test_groups_and_scales() -> None:
    groups = torchvq.GroupedResidualVQ(dim=8, groups=2, num_quantizers=2, codebook_size=16)
    indices = torch.stack([torch.stack([INDICES, INDICES], -1)] * 2)
    assert groups.half().get_codes_from_indices(indices).dtype == torch.float16
    assert groups.get_output_from_indices(indices).dtype == torch.float16
    scales = torchvq.HierarchicalVQ(dim=4, codebook_size=16, scales=(1, 2)).half()
    found = [torch.zeros(2, 1).long(), torch.ones(2, 2).long()]
    assert scales.get_output_from_indices(found).dtype == torch.float16
    for part in scales.float().children():
        part.bfloat16()
    assert scales.get_output_from_indices(found).dtype == torch.bfloat16
