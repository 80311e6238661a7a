"""The switch itself: where its value comes from, and that every class has it. tests/parity checks what it restores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import torchvq

CLASSES = {
    "BinaryMapper": dict(bits=3),
    "EvoLFQ": dict(encoder=torch.nn.Linear(4, 4), decoder=torch.nn.Linear(4, 4), dim=4),
    "FSP": dict(levels=[5, 4]),
    "FSQ": dict(levels=[5, 4]),
    "GroupedResidualFSQ": dict(dim=4, groups=2, levels=[5, 4], num_quantizers=2),
    "GroupedResidualLFQ": dict(dim=4, groups=2, codebook_size=4, num_quantizers=2),
    "GroupedResidualVQ": dict(dim=4, groups=2, codebook_size=4, num_quantizers=2),
    "HierarchicalVQ": dict(dim=4, codebook_size=4, scales=(1, 2)),
    "LFQ": dict(dim=4),
    "LatentQuantize": dict(levels=[5, 4], dim=2),
    "RandomProjectionQuantizer": dict(dim=4, codebook_size=4, codebook_dim=4),
    "ResidualFSQ": dict(levels=[5, 4], num_quantizers=2),
    "ResidualLFQ": dict(dim=4, codebook_size=16, num_quantizers=2),
    "ResidualSimVQ": dict(dim=4, codebook_size=4, num_quantizers=2),
    "ResidualVQ": dict(dim=4, codebook_size=4, num_quantizers=2),
    "SimVQ": dict(dim=4, codebook_size=4),
    "VectorQuantize": dict(dim=4, codebook_size=4),
}


def switches(module: torch.nn.Module) -> set[bool]:
    """The value of the switch in a module and all of its parts."""
    parts = (part for part in module.modules() if hasattr(part, "vqp_compat"))
    return {part.vqp_compat for part in parts}


@pytest.mark.parametrize("name", CLASSES)
def test_the_environment_is_the_default_and_the_keyword_wins(name: str, monkeypatch) -> None:
    cls, options = getattr(torchvq, name), CLASSES[name]
    for said, default in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("TORCHVQ_COMPAT", said)
        assert switches(cls(**options)) == {default}
        for given in (True, False):
            assert switches(cls(**options, vqp_compat=given)) == {given}
        assert switches(cls(**options, vqp_compat=None)) == {default}
    monkeypatch.delenv("TORCHVQ_COMPAT")
    assert switches(cls(**options)) == {False}


def test_every_class_is_here_and_has_the_option() -> None:
    assert CLASSES.keys() <= set(torchvq.__all__)
    for name in CLASSES:
        assert "vqp_compat=None" in torch.ops.torchvq.list_options(name)


@pytest.mark.parametrize("said", ["yes", "2", "true"])
def test_other_words_are_refused(said: str, monkeypatch) -> None:
    monkeypatch.setenv("TORCHVQ_COMPAT", said)
    with pytest.raises(ValueError, match=f"TORCHVQ_COMPAT: expected .* 0 or 1, but got {said}"):
        torchvq.FSQ([5, 4])
    with pytest.raises(TypeError, match="expected vqp_compat to be True or False or None"):
        torchvq.FSQ([5, 4], vqp_compat="yes")


def test_a_whole_process() -> None:
    """The variable is read when modules are built; C++ reads it as well and provides this default."""
    code = "import torch, torchvq; print(torchvq.FSQ([5, 4])(torch.zeros(1, 2, 2))[1].dtype)"
    environment = {**os.environ, "TORCHVQ_COMPAT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "torch.int32"


def test_evaluation_draws_where_it_is_said() -> None:
    logits = torch.zeros(200, 3)
    for compat in (False, True):
        mapper = torchvq.BinaryMapper(3, deterministic_on_eval=False, vqp_compat=compat).eval()
        assert mapper(logits, return_indices=True)[1].unique().numel() == 8
        mapper = torchvq.BinaryMapper(3, deterministic_on_eval=True, vqp_compat=compat).eval()
        assert mapper(logits, return_indices=True)[1].unique().tolist() == [0]
    assert torchvq.BinaryMapper(3).eval()(logits, return_indices=True)[1].unique().tolist() == [0]


FROZEN = {
    "VectorQuantize": [
        {},
        dict(threshold_ema_dead_code=2),
        dict(learnable_codebook=True, ema_update=False),
    ],
    "ResidualVQ": [
        {},
        dict(threshold_ema_dead_code=2),
        dict(shared_codebook=True),
        dict(beam_size=2),
    ],
    "GroupedResidualVQ": [{}, dict(use_cosine_sim=True)],
}


@pytest.mark.parametrize(
    ("name", "more"), [(name, more) for name in FROZEN for more in FROZEN[name]], ids=str
)
def test_what_is_frozen_and_draws_nothing_changes_no_state(name: str, more: dict) -> None:
    module = getattr(torchvq, name)(**CLASSES[name], **more, freeze_codebook=True).train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    for _ in range(2):
        module(torch.randn(2, 9, 4))
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_what_is_frozen_and_draws_draws_anew() -> None:
    options = dict(CLASSES["VectorQuantize"], codebook_size=64, stochastic_sample_codes=True)
    module = torchvq.VectorQuantize(**options, freeze_codebook=True).train()
    x = torch.randn(2, 50, 4)
    assert not torch.equal(module(x)[1], module(x)[1])


@pytest.mark.parametrize("count", [9, 60], ids=["fewer tokens than codes", "more"])
def test_k_means_draws_from_the_module_alone(count: int) -> None:
    """Codes are distinct tokens as far as there are enough, never padding, and the same in a compiled step."""
    options = dict(dim=6, codebook_size=16, kmeans_init=True, vqp_compat=True, decay=1.0)
    x = torch.randn(2, count, 6, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(count) < torch.tensor([count, count - 4])[:, None]
    states = []
    for wrap in (
        lambda module: module,
        lambda module: torch.compile(module, fullgraph=True, backend="aot_eager"),
    ):
        torch.manual_seed(0)
        module = torchvq.VectorQuantize(**options).train()
        before = torch.get_rng_state()
        wrap(module)(x.masked_fill(~mask.unsqueeze(-1), 1e3), mask=mask)
        assert torch.equal(torch.get_rng_state(), before)
        states.append({name: value.clone() for name, value in module.state_dict().items()})
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name
    codes, sizes = states[0]["_codebook.embed"][0], states[0]["_codebook.cluster_size"][0]
    assert codes.abs().max() < 10 and sizes.sum() == mask.sum()
    assert codes[sizes == 0].eq(0).all() and codes[sizes > 0].any(-1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_k_means_of_half_precision_is_that_of_float32(dtype: torch.dtype) -> None:
    """Sums of many tokens overflow in float16."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(1, 20000, 4, generator=generator) * 0.1 + 8).to(dtype)
    x[:, ::2] *= -1
    codes = []
    for same in (x, x.float()):
        torch.manual_seed(0)
        module = torchvq.VectorQuantize(dim=4, codebook_size=2, kmeans_init=True, vqp_compat=True)
        module(same)
        codes.append(module.codebook)
    torch.testing.assert_close(*codes)
    assert codes[0].abs().sub(8).abs().max() < 0.1


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_latent_quantize_is_float32(masked: bool) -> None:
    """Squares overflow in float16."""
    torch.manual_seed(0)
    options = dict(levels=[5, 5, 3], dim=8, channel_first=False, vqp_compat=True)
    module = torchvq.LatentQuantize(**options)
    x = (torch.randn(2, 5, 8) * 300).half()
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if masked else None
    expected = module(x.float(), mask=mask).loss
    with torch.autocast("cpu", dtype=torch.float16):
        loss = module(x, mask=mask).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0)
    half = module.half()(x, mask=mask).loss
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=0.01, atol=0)
