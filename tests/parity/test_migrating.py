"""docs/migrating.md, line by line: each is a row of a table (lines.py), or a check of both packages here."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch
import vector_quantize_pytorch as reference
from torch.utils._python_dispatch import TorchDispatchMode

import torchvq
from torchvq.migrate.differences import as_text, sections

from .line_checks import LINE_CHECKS
from .lines import LINES, lines
from .unlike import UNLIKE

PAGE = Path(__file__).resolve().parents[2] / "docs/migrating.md"
BOTH = (reference, torchvq)
STACK = dict(dim=8, num_quantizers=3, codebook_size=16)


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def switched(name: str, *args, **options):
    return getattr(torchvq, name)(*args, **options, vqp_compat=True)


def moved(module, x, **call) -> list[bool]:
    """The levels whose averages a training step changes."""
    before = [layer._codebook.cluster_size.clone() for layer in module.layers]
    module.train()(x, **call)
    after = [layer._codebook.cluster_size for layer in module.layers]
    return [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]


def by_seed(module, run) -> bool:
    """Whether torch's generator affects the results of copies of a module."""
    results = []
    for seed in range(12):
        torch.manual_seed(seed)
        results.append(run(copy.deepcopy(module)))
    return any(not torch.equal(results[0], other) for other in results[1:])


# Residual stacks -----------------------------------------------------------------------------------------------------


def beam_training():
    beam = dict(**STACK, beam_size=4)
    assert moved(reference.ResidualVQ(**beam), tokens(2, 9, 8)) == [True, False, False]
    assert moved(torchvq.ResidualVQ(**beam), tokens(2, 9, 8)) == [True, True, True]
    assert moved(switched("ResidualVQ", **beam), tokens(2, 9, 8)) == [True, False, False]


def beam_evaluation():
    losses = [p.ResidualVQ(**STACK, beam_size=2).eval()(tokens(2, 9, 8))[2] for p in BOTH]
    assert losses[0].gt(0).all() and losses[1].eq(0).all()


def beam_zero():
    reference.ResidualVQ(**STACK, beam_size=0)(tokens(2, 9, 8))
    with pytest.raises(ValueError, match="beam_size to be at least 1"):
        torchvq.ResidualVQ(**STACK, beam_size=0)
    with pytest.raises(AssertionError):
        reference.ResidualVQ(**STACK, eval_beam_size=2)
    torchvq.ResidualVQ(**STACK, eval_beam_size=2).eval()(tokens(2, 9, 8))


def beam_large():
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        reference.ResidualVQ(**STACK, beam_size=20)(tokens(2, 9, 8))
    torchvq.ResidualVQ(**STACK, beam_size=20)(tokens(2, 9, 8))


def beam_in_place():
    sgd = dict(in_place_codebook_optimizer=lambda codes: torch.optim.SGD(codes, lr=0.1))
    options = dict(**STACK, learnable_codebook=True, ema_update=False, **sgd)
    with pytest.raises(AssertionError, match="in-place codebook optimizer"):
        reference.ResidualVQ(**options, beam_size=2)(tokens(2, 9, 8))
    with pytest.raises(ValueError, match="beam_size to be 1 in training with in_place"):
        torchvq.ResidualVQ(**options, beam_size=2)(tokens(2, 9, 8))
    rvq = torchvq.ResidualVQ(**options, eval_beam_size=2)
    rvq(tokens(2, 9, 8))
    rvq.eval()(tokens(2, 9, 8))


def depth_of(module) -> torch.Tensor:
    return module.train()(tokens(2, 9, 8))[1][0, 0].ge(0).sum()


def stack_depth():
    options = dict(STACK, num_quantizers=6, quantize_dropout=True)
    assert by_seed(reference.ResidualVQ(**options), depth_of)
    assert not by_seed(torchvq.ResidualVQ(**options), depth_of)


def sim_depth():
    options = dict(STACK, num_quantizers=6, quantize_dropout=True)
    assert by_seed(reference.ResidualSimVQ(**options), depth_of)
    assert not by_seed(torchvq.ResidualSimVQ(**options), depth_of)


def rfsq_all_codes():
    gradients = []
    for build in (
        reference.ResidualFSQ,
        torchvq.ResidualFSQ,
        lambda **o: switched("ResidualFSQ", **o),
    ):
        stack = build(levels=[5, 5], num_quantizers=2)
        codes = stack(tokens(1, 6, 2).requires_grad_(), return_all_codes=True)[-1]
        gradients.append(codes.requires_grad)
    assert gradients == [False, True, False]
    groups = dict(dim=6, groups=2, levels=[5, 5, 3], num_quantizers=2)
    for package in (reference.GroupedResidualFSQ, lambda **o: switched("GroupedResidualFSQ", **o)):
        _, indices, codes = package(**groups)(
            tokens(1, 6, 6).requires_grad_(), return_all_codes=True
        )
        assert indices.dtype == torch.int32 and not any(part.requires_grad for part in codes)


def sim_all_codes():
    gradients = []
    for build in (
        reference.ResidualSimVQ,
        torchvq.ResidualSimVQ,
        lambda **o: switched("ResidualSimVQ", **o),
    ):
        codes = build(**STACK).train()(tokens(2, 9, 8), return_all_codes=True)[-1]
        gradients.append(codes.requires_grad)
    assert gradients == [True, False, True]


def check_losses_of_three_levels(name, features, options):
    theirs = getattr(reference, name)(**options)
    ours = getattr(torchvq, name)(**options)
    gradients = []
    for module in (theirs, ours, switched(name, **options)):
        module.load_state_dict(theirs.state_dict(), strict=False)
        x = tokens(2, 9, features).requires_grad_()
        module.train()(x)[2].sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1] * 3, gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def sim_stack_losses():
    check_losses_of_three_levels("ResidualSimVQ", 8, STACK)


def lfq_stack_losses():
    options = dict(dim=4, codebook_size=16, num_quantizers=3, commitment_loss_weight=0.25)
    check_losses_of_three_levels("ResidualLFQ", 4, options | dict(entropy_loss_weight=0.0))


def sim_heads():
    options = dict(STACK, heads=2)
    with pytest.raises(AssertionError):
        reference.ResidualSimVQ(**options)(tokens(2, 9, 8))
    assert torchvq.ResidualSimVQ(**options)(tokens(2, 9, 8))[1].shape == (2, 9, 2, 3)


# VectorQuantize ------------------------------------------------------------------------------------------------------


def training_output():
    exact = []
    for package in BOTH:
        vq = package.VectorQuantize(dim=32, codebook_size=64, rotation_trick=False, decay=1.0)
        quantized, indices, _ = vq.train()(tokens(4, 50, 32).requires_grad_())
        exact.append(torch.equal(quantized, vq.get_output_from_indices(indices)))
        torch.testing.assert_close(
            quantized, vq.get_output_from_indices(indices), rtol=1e-4, atol=1e-5
        )
    assert exact == [False, True]


def kmeans_evaluation():
    initialised = []
    for package in BOTH:
        vq = package.VectorQuantize(dim=8, codebook_size=16, kmeans_init=True).eval()
        vq(tokens(2, 30, 8))
        initialised.append(bool(vq._codebook.initted))
    assert initialised == [True, False]


# Scalars -------------------------------------------------------------------------------------------------------------


def fsq_channel_last():
    options = dict(levels=[8, 5, 5], channel_first=False)
    first, last = tokens(2, 3, 4, 6), tokens(2, 4, 6, 3)
    expected = reference.FSQ([8, 5, 5])(first)
    assert torch.equal(reference.FSQ(**options)(first)[0], expected[0])
    assert torch.equal(torchvq.FSQ([8, 5, 5])(first)[0], expected[0])
    assert torch.equal(switched("FSQ", **options)(first)[0], expected[0])
    with pytest.raises(AssertionError):
        reference.FSQ(**options)(last)
    quantized, indices = torchvq.FSQ(**options)(last)
    assert quantized.shape == last.shape and indices.shape == (2, 4, 6)
    assert torch.equal(quantized.movedim(-1, 1), torchvq.FSQ([8, 5, 5])(last.movedim(-1, 1))[0])


def fsq_noise_source():
    options = dict(levels=[8, 5, 5], preserve_symmetry=True, noise_dropout=0.5)

    def output(module):
        return module.train()(tokens(2, 30, 3))[0]

    assert by_seed(reference.FSQ(**options), output)
    assert not by_seed(torchvq.FSQ(**options), output)


def int32_in(name: str, *args, shape: tuple[int, ...]) -> None:
    builds = (getattr(reference, name), getattr(torchvq, name), lambda *a: switched(name, *a))
    dtypes = [build(*args)(tokens(*shape))[1].dtype for build in builds]
    assert dtypes == [torch.int32, torch.int64, torch.int32]


def latent_int32():
    int32_in("LatentQuantize", [5, 4, 8], 3, shape=(2, 3, 7))


def fsp_int32():
    int32_in("FSP", [5, 4, 8], shape=(2, 7, 3))


def fsp_ranks():
    """tests/distributed shows that ranks share statistics; the switch is that of ``sync_statistics=False``."""
    assert torchvq.FSP([5, 4]).sync_statistics is None
    assert switched("FSP", [5, 4]).sync_statistics is False
    assert switched("FSP", [5, 4], sync_statistics=True).sync_statistics is True


def fsp_eps():
    x = tokens(2, 50, 3) * 3
    outputs = [p.FSP([8, 5, 4], need_inv_act=True).eval()(x, eps=0.3) for p in BOTH]
    assert not torch.equal(outputs[0][1].long(), outputs[1][1])
    assert torch.equal(outputs[1][1], torchvq.FSP([8, 5, 4], need_inv_act=True).eval()(x)[1])
    inside = [p.FSP([8, 5, 4], need_inv_act=True).eval()(x) for p in BOTH]
    assert torch.equal(inside[0][1].long(), inside[1][1])


# RandomProjectionQuantizer, Sequential -------------------------------------------------------------------------------


def projection_layers():
    options = dict(dim=6, codebook_size=16, codebook_dim=4, num_codebooks=2)
    learns, offsets = [], []
    for module in (
        reference.RandomProjectionQuantizer(**options),
        torchvq.RandomProjectionQuantizer(**options),
        switched("RandomProjectionQuantizer", **options),
    ):
        x = tokens(2, 7, 6)
        loss = module(x.requires_grad_(), indices=module(x))
        loss.backward()
        learns.append(module.vq.project_in.weight.grad is not None)
        offsets.append(bool(module.vq.project_in.bias.any()))
    assert learns == offsets == [True, False, True]


def sequential_projection():
    options = dict(dim=6, codebook_size=16, codebook_dim=4)
    sequences = [
        p.Sequential(torch.nn.Linear(6, 6), p.RandomProjectionQuantizer(**options)) for p in BOTH
    ]
    theirs, ours = (sequence(tokens(2, 7, 6)) for sequence in sequences)
    assert isinstance(theirs, tuple) and len(theirs) == 2 and theirs[0].shape == (7,)
    assert ours.shape == (2, 7)


# HierarchicalVQ ------------------------------------------------------------------------------------------------------

SCALES = dict(dim=8, codebook_size=16, scales=(1, 2, 3, 4), kmeans_init=False)


def scales_convolutions():
    without = []
    for package in BOTH:
        torch.manual_seed(0)
        module = package.HierarchicalVQ(**SCALES, share_quant_resi=0, nested_dropout=1.0).train()
        quantized, _, loss = module(tokens(3, 8, 6).requires_grad_())
        (quantized.sum() + loss.sum()).backward()
        parameters = [p for p in module.parameters() if p.requires_grad]
        without.append(any(p.grad is None for p in parameters))
    assert without == [True, False]


def scales_drawn():
    def output(module):
        return module.train()(tokens(3, 8, 6))[0]

    options = dict(SCALES, nested_dropout=1.0)
    assert by_seed(reference.HierarchicalVQ(**options), output)
    assert not by_seed(torchvq.HierarchicalVQ(**options), output)


def scales_mask():
    takes = [
        "mask" in inspect.signature(p.HierarchicalVQ.get_output_from_indices).parameters
        for p in BOTH
    ]
    assert takes == [False, True]


def scales_nothing():
    with pytest.raises(RuntimeError):
        reference.HierarchicalVQ(**SCALES)(tokens(3, 8, 0))
    assert torchvq.HierarchicalVQ(**SCALES)(tokens(3, 8, 0))[0].shape == (3, 8, 0)


# LFQ -----------------------------------------------------------------------------------------------------------------

SIGNS = dict(dim=10, codebook_size=2**10, commitment_loss_weight=0.25)


def lfq_ranks():
    """tests/distributed shows that ranks share entropies, test_lfq.py what the reference computes; the switch is that
    of ``sync_codebook=False``."""
    assert torchvq.LFQ(**SIGNS).sync_codebook is None
    assert switched("LFQ", **SIGNS).sync_codebook is False


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that an operator returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def lfq_memory():
    largest = []
    for module in (reference.LFQ(**SIGNS), torchvq.LFQ(**SIGNS), switched("LFQ", **SIGNS)):
        with Largest() as mode:
            module.train()(tokens(4, 100, 10))
        largest.append(mode.numbers)
    assert largest[0] >= 400 * 2**10 <= largest[2] and largest[1] < 400 * 2**10 / 10


def lfq_fraction():
    def loss(module):
        return module.train()(tokens(2, 30, 10) * 0.01)[2]

    options = dict(SIGNS, frac_per_sample_entropy=0.2)
    assert by_seed(reference.LFQ(**options), loss)
    assert not by_seed(torchvq.LFQ(**options), loss)


def lfq_channel_last():
    with pytest.raises(Exception, match="rearrange-reduction pattern"):
        reference.LFQ(**SIGNS, channel_first=False)(tokens(2, 3, 4, 10))
    assert torchvq.LFQ(**SIGNS, channel_first=False)(tokens(2, 3, 4, 10))[1].shape == (2, 3, 4)


CHECKS = {
    check.__name__.replace("_", "-"): check
    for check in (
        *LINE_CHECKS,
        beam_training,
        beam_evaluation,
        beam_zero,
        beam_large,
        beam_in_place,
        stack_depth,
        sim_depth,
        rfsq_all_codes,
        sim_all_codes,
        sim_stack_losses,
        lfq_stack_losses,
        sim_heads,
        training_output,
        kmeans_evaluation,
        fsq_channel_last,
        fsq_noise_source,
        latent_int32,
        fsp_int32,
        fsp_ranks,
        fsp_eps,
        projection_layers,
        sequential_projection,
        scales_convolutions,
        scales_drawn,
        scales_mask,
        scales_nothing,
        lfq_ranks,
        lfq_memory,
        lfq_fraction,
        lfq_channel_last,
    )
}


@pytest.fixture(autouse=True)
def without_the_switch(monkeypatch):
    monkeypatch.delenv("TORCHVQ_COMPAT", raising=False)
    torch.manual_seed(0)


@pytest.mark.parametrize("key", CHECKS)
def test_what_the_line_says(key):
    CHECKS[key]()


def test_unused_codes_shrink_under_the_switch_as_in_the_reference():
    """Thirty steps of tokens near half of the codes, and their effect on the other half."""
    norms, theirs = {}, reference.VectorQuantize(dim=8, codebook_size=16, decay=0.5)
    with torch.no_grad():
        theirs._codebook.embed[:, :8] += 20
        theirs._codebook.embed_avg.copy_(theirs._codebook.embed)
    modules = {
        "reference": theirs,
        "switched": switched("VectorQuantize", dim=8, codebook_size=16, decay=0.5),
        "plain": torchvq.VectorQuantize(dim=8, codebook_size=16, decay=0.5),
    }
    start = copy.deepcopy(theirs.state_dict())
    for name, module in modules.items():
        module.load_state_dict(start)
        for step in range(30):
            module.train()(tokens(2, 40, 8, seed=step) + 20)
        norms[name] = module._codebook.embed[0, 8:].norm(dim=-1)
    before = start["_codebook.embed"][0, 8:].norm(dim=-1)
    assert (norms["reference"] < 0.1 * before).all()
    torch.testing.assert_close(norms["switched"], norms["reference"], rtol=1e-4, atol=1e-6)
    assert (norms["plain"] > 1.1 * before).all()  # they have moved to the tokens


def test_names_are_where_the_page_says():
    for _, name, _ in pkgutil.iter_modules(reference.__path__):
        theirs = importlib.import_module(f"vector_quantize_pytorch.{name}")
        own = [
            key
            for key in torchvq.__all__
            if hasattr(reference, key) and getattr(reference, key).__module__ == theirs.__name__
        ]
        for key in own:
            ours = importlib.import_module(f"torchvq.{name}")
            assert getattr(ours, key) is getattr(torchvq, key), f"{name}.{key}"
    assert torchvq.residual_vq.MLP and torchvq.lookup_free_quantization.CosineSimLinear
    assert (
        torchvq.vector_quantize_pytorch.Codebook and torchvq.vector_quantize_pytorch.LossBreakdown
    )
    for name in ("rotation_trick", "orthogonal_loss"):
        assert f"torch.ops.torchvq.{name}`" in PAGE.read_text() and hasattr(torch.ops.torchvq, name)


def test_every_line_is_checked():
    in_rows = set(LINES.values()) | {unlike.line for unlike in UNLIKE.values()}
    assert in_rows | CHECKS.keys() == lines().keys()
    assert not in_rows & CHECKS.keys()


def test_the_page_shows_the_lines():
    page = PAGE.read_text()
    shown = page[
        page.index("-->\n", page.index("<!-- begin differences")) + 4 : page.index("<!-- end")
    ]
    assert shown == as_text()


def test_keys_are_unique_and_classes_exist():
    keys = [line.key for section in sections() for line in section.lines]
    assert len(keys) == len(set(keys))
    for section in sections():
        assert all(hasattr(torchvq, name) and hasattr(reference, name) for name in section.classes)


def test_what_no_switch_restores_has_its_reason():
    reasons = {line.switch for line in lines().values()}
    assert "yes" in reasons and all(
        r == "yes" or (r.startswith("no: ") and len(r) > 8) for r in reasons
    )
