"""A call that is rejected leaves no trace in the module: everything is checked before anything is written."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

from torchvq import (
    FSP,
    BinaryMapper,
    GroupedResidualFSQ,
    GroupedResidualVQ,
    HierarchicalVQ,
    RandomProjectionQuantizer,
    ResidualVQ,
    VectorQuantize,
)
from torchvq.codebook import Codebook

IN_PLACE = dict(
    learnable_codebook=True,
    ema_update=False,
    in_place_codebook_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
LEARNING = {
    "kmeans": dict(kmeans_init=True),
    "affine": dict(affine_param=True),
    "in_place": IN_PLACE,
    "averages": {},
}
STACK = dict(dim=4, num_quantizers=2, codebook_size=8)
NAN = float("nan")
X = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "range": (torch.full((2, 6), 8), IndexError),
    "below": (torch.full((2, 6), -2), IndexError),
    "shape": (torch.zeros(2, 5, dtype=torch.long), ValueError),
    "transposed": (torch.zeros(6, 2, dtype=torch.long), ValueError),
    "dtype": (torch.zeros(2, 6), TypeError),
    "float32": (torch.zeros(2, 6), TypeError),
}


def leaves_no_trace(
    module: nn.Module,
    call: Callable[[nn.Module], Any],
    error: type[Exception] | tuple[type[Exception], ...],
    match: str | None = None,
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(error, match=match):
        call(module)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("learning", LEARNING)
def test_targets_of_one_codebook(learning: str, case: str) -> None:
    targets, error = TARGETS[case]
    vq = VectorQuantize(4, 8, **LEARNING[learning])
    for training in (True, False):
        vq.train(training)
        leaves_no_trace(
            vq, lambda vq: vq(X, indices=targets), error, "VectorQuantize: expected indices"
        )


@pytest.mark.parametrize("case", TARGETS)
def test_indices_from_which_a_codebook_learns(case: str) -> None:
    targets, error = TARGETS[case]
    for training in (True, False):
        vq = VectorQuantize(4, 8, threshold_ema_dead_code=2).train(training)
        leaves_no_trace(
            vq, lambda vq: vq.update_ema_indices(X, targets), error, "VectorQuantize: expected"
        )


@pytest.mark.parametrize("case", TARGETS)
def test_targets_of_random_projections(case: str) -> None:
    targets, error = TARGETS[case]
    for codebooks in (1, 2):
        module = RandomProjectionQuantizer(
            dim=4, codebook_size=8, codebook_dim=3, num_codebooks=codebooks
        )
        own = targets if codebooks == 1 else torch.stack([targets, targets], -1)
        with pytest.raises(error, match="RandomProjectionQuantizer: expected indices"):
            module(X, own)
        assert module(X, module(X)).isfinite()


@pytest.mark.parametrize("case", TARGETS)
def test_targets_of_stacks(case: str) -> None:
    targets, error = TARGETS[case]
    good = torch.zeros_like(targets)
    groups = torch.stack([torch.stack([t, t], -1) for t in (good, targets)])
    for learning in LEARNING:
        rvq = ResidualVQ(**STACK, **LEARNING[learning])
        leaves_no_trace(rvq, lambda rvq: rvq(X, indices=[good, targets]), error)
        grouped = GroupedResidualVQ(groups=2, **STACK, **LEARNING[learning])
        leaves_no_trace(grouped, lambda rvq: rvq(X, indices=groups), error)
        for missing in ([groups[0], None], [None, None]):
            said = "one tensor for each group, but got None"
            leaves_no_trace(grouped, lambda rvq, t=missing: rvq(X, indices=t), TypeError, said)
    hvq = HierarchicalVQ(dim=4, codebook_size=8, scales=(6, 6))
    leaves_no_trace(hvq, lambda hvq: hvq(X.transpose(1, 2), indices=[good, targets]), error)


WRONG_ARGUMENTS = {
    "topk": (dict(topk=1.5), TypeError, "topk to be an integer, but got 1.5"),
    "ema_update": (dict(ema_update="no"), TypeError, "ema_update to be True or False"),
    "freeze": (dict(freeze_codebook="no"), TypeError, "freeze_codebook to be True or False"),
    "accumulate": (dict(accum_ema_update="no"), TypeError, "accum_ema_update to be True or False"),
    "list": (dict(indices=[[0] * 6] * 2), TypeError, "indices to be a tensor, but got list"),
    "device": (dict(indices=torch.zeros(2, 6).long().to("meta")), ValueError, "indices to be on"),
    "lens": (dict(lens=[3, 2]), TypeError, "lens to be a tensor, but got list"),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
@pytest.mark.parametrize("learning", LEARNING)
def test_arguments_of_one_codebook(learning: str, case: str) -> None:
    call, error, match = WRONG_ARGUMENTS[case]
    vq = VectorQuantize(4, 8, **LEARNING[learning])
    leaves_no_trace(vq, lambda vq: vq(X, **call), error, f"VectorQuantize: expected {match}")
    assert vq._codebook.initialised == (learning != "kmeans")


@pytest.mark.parametrize("flag", [None, True, np.True_, 1, torch.tensor(True)], ids=repr)
def test_flags_that_are_true_or_false(flag: Any) -> None:
    VectorQuantize(4, 8)(X, ema_update=flag, freeze_codebook=flag, topk=np.int64(2))


NO_TENSORS = {
    "one codebook": lambda: VectorQuantize(4, 8).update_ema_indices(X, [[0] * 6] * 2),
    "levels": lambda: ResidualVQ(**STACK)(X, indices=[[[0, 0]] * 6] * 2),
    "number": lambda: ResidualVQ(**STACK)(X, indices=5),
    "decoded": lambda: ResidualVQ(**STACK).get_codes_from_indices([[0, 1]]),
    "decoded output": lambda: ResidualVQ(**STACK).get_output_from_indices([[0, 1]]),
    "groups": lambda: GroupedResidualVQ(groups=2, **STACK).get_codes_from_indices(None),
    "scalar groups": lambda: GroupedResidualFSQ(
        dim=4, groups=2, levels=[4, 4], num_quantizers=2
    ).get_output_from_indices(None),
    "scales": lambda: scales()(X.transpose(1, 2), indices=[[[0]], [[0, 0]]]),
    "decoded scales": lambda: scales().get_output_from_indices([[[0]], [[0, 0]]]),
    "no scales": lambda: scales().get_output_from_indices(None),
}


def scales() -> HierarchicalVQ:
    return HierarchicalVQ(dim=4, codebook_size=8, scales=(1, 2))


@pytest.mark.parametrize("case", NO_TENSORS)
def test_indices_that_are_no_tensors(case: str) -> None:
    with pytest.raises(TypeError, match=r"expected indices to be (a|one) tensor"):
        NO_TENSORS[case]()


def test_indices_without_an_axis_of_levels() -> None:
    rvq, lone = ResidualVQ(**STACK), torch.tensor(1)
    for call in (
        lambda: rvq(X, indices=lone),
        lambda: rvq.get_codes_from_indices(lone),
        lambda: rvq.get_output_from_indices(lone),
    ):
        with pytest.raises(ValueError, match="ResidualVQ: expected indices to"):
            call()


def test_targets_of_stacks_on_another_device() -> None:
    there = torch.zeros(2, 6, device="meta").long()
    stack, grid = ResidualVQ(**STACK, kmeans_init=True), scales()
    targets = torch.stack([there, there], -1)
    leaves_no_trace(stack, lambda rvq: rvq(X, indices=targets), ValueError, "on cpu like x")
    targets = [there[:, :1], there[:, :2]]
    x = X.transpose(1, 2)
    leaves_no_trace(grid, lambda hvq: hvq(x, indices=targets), ValueError, "on cpu like x")


def test_targets_that_fit() -> None:
    targets = torch.arange(12).view(2, 6).remainder(8)
    targets[0, 0] = -1
    VectorQuantize(4, 8)(X, indices=targets)
    heads = VectorQuantize(4, 8, heads=2, separate_codebook_per_head=True)
    heads(X, indices=heads(X)[1])
    VectorQuantize(4, 8)(X[:, 0], indices=targets[:, 0])
    VectorQuantize(4, 8, channel_last=False)(X.transpose(1, 2), indices=targets)
    sizes = ResidualVQ(dim=4, codebook_size=[4, 8])
    sizes(X, indices=[targets.clamp_max(3), targets])
    with pytest.raises(IndexError, match=r"in \[-1, 4\)"):
        sizes(X, indices=[targets, targets])


def fails(*_: Any) -> Tensor:
    raise ZeroDivisionError


@pytest.mark.parametrize("learning", ["kmeans", "affine", "averages"])
@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (torch.ones(3), ValueError),
        (torch.ones(2, 8), ValueError),
        (torch.ones(1, 1, 8), ValueError),
        (float("nan"), ValueError),
        ("heavy", TypeError),
        (fails, ZeroDivisionError),
        (lambda sums, counts: torch.ones(3), ValueError),
    ],
)
def test_weights(learning: str, weight: Any, error: type[Exception]) -> None:
    vq = VectorQuantize(4, 8, **LEARNING[learning])
    leaves_no_trace(vq, lambda vq: vq(X, ema_update_weight=weight), error)
    vq(X)
    assert vq._codebook.initialised


def test_a_failed_weight_keeps_the_statistics_of_earlier_steps() -> None:
    vq, right = (VectorQuantize(4, 8) for _ in range(2))
    right.load_state_dict(vq.state_dict())
    for each in (vq, right):
        each(X, accum_ema_update=True)
    leaves_no_trace(vq, lambda vq: vq(X, ema_update_weight=fails), ZeroDivisionError)
    for each in (vq, right):
        each(X)
    assert torch.equal(vq.codebook, right.codebook)


@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize(
    ("transform", "error"),
    [(fails, ZeroDivisionError), (lambda codes: codes, ValueError)],
)
def test_transforms(learning: str, transform: Any, error: type[Exception]) -> None:
    vq = VectorQuantize(4, 8, **LEARNING[learning])
    leaves_no_trace(vq, lambda vq: vq(X, codebook_transform_fn=transform), error)
    assert vq._codebook.initialised == (learning != "kmeans")
    vq(X)
    assert vq._codebook.initialised


def fails_at_each_call(module: nn.Module, x: Tensor, parts: Iterable[nn.Module]) -> None:
    """Code of the user fails at each of its calls in a step, which then learns as if nothing had failed."""
    calls, failing = 0, 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise ZeroDivisionError

    for part in parts:
        part.register_forward_pre_hook(hook)
    twin = copy.deepcopy(module)
    copy.deepcopy(module)(x)
    assert calls > 1
    for call in range(1, calls + 1):
        calls, failing = 0, call
        leaves_no_trace(module, lambda module: module(x), ZeroDivisionError)
    module(x), twin(x)
    for name, value in module.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


BRIDGED: dict[str, dict[str, Any]] = {
    "own": {},
    "shared": dict(shared_codebook=True),
    "beam": dict(beam_size=2),
    "dropout": dict(quantize_dropout=True),
    "diversity": dict(codebook_diversity_loss_weight=0.5),
    "kept": dict(sync_every=2),
    "groups": dict(groups=2),
}


@pytest.mark.parametrize("learning", ["kmeans", "affine", "averages"])
@pytest.mark.parametrize("case", BRIDGED)
def test_bridges_of_stacks(case: str, learning: str) -> None:
    kind = GroupedResidualVQ if case == "groups" else ResidualVQ
    bridge = nn.Linear(*[2, 2] if case == "groups" else [4, 4])
    module = kind(**STACK, **BRIDGED[case], **LEARNING[learning], vq_bridge=bridge)
    bridges = {part.vq_bridge for part in module.modules() if isinstance(part, Codebook)}
    fails_at_each_call(module, X, bridges)


@pytest.mark.parametrize("shared", [False, True])
def test_convolutions_of_scales(shared: bool) -> None:
    hvq = HierarchicalVQ(dim=4, codebook_size=8, scales=(1, 2, 6), shared_codebook=shared)
    convolutions = {part for part in hvq.modules() if isinstance(part, nn.Conv1d)}
    fails_at_each_call(hvq, X.transpose(1, 2), convolutions)


WRONG_LATER = {
    "decay": ("_codebook.decay", 2.0, {}),
    "orthogonal": ("orthogonal_reg_max_codes", 0, dict(orthogonal_reg_weight=1.0)),
    "commitment": ("commitment_weight", "much", {}),
    "threshold": ("_codebook.threshold_ema_dead_code", "few", {}),
    "sync_update_v": ("sync_update_v", "much", {}),
}


@pytest.mark.parametrize("case", WRONG_LATER)
@pytest.mark.parametrize("learning", ["kmeans", "affine", "averages"])
@pytest.mark.parametrize("accumulates", [False, True])
def test_options_that_are_set_wrong_later(learning: str, case: str, accumulates: bool) -> None:
    name, value, options = WRONG_LATER[case]
    vq = VectorQuantize(4, 8, **LEARNING[learning], **options)
    path, _, option = name.rpartition(".")
    if accumulates:
        vq(X, accum_ema_update=True)
    setattr(vq.get_submodule(path), option, value)
    leaves_no_trace(vq, lambda vq: vq(X), (ValueError, TypeError, RuntimeError))
    assert vq._codebook.initialised == (accumulates or learning != "kmeans")


def test_a_repeated_call_counts_the_tokens_once() -> None:
    torch.manual_seed(0)
    vq = VectorQuantize(4, 8, affine_param=True)
    twin = copy.deepcopy(vq)
    vq._codebook.decay = 2.0
    leaves_no_trace(vq, lambda vq: vq(X), ValueError, "decay")
    vq._codebook.decay = twin._codebook.decay
    vq(X), twin(X)
    for name, value in vq.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


@pytest.mark.parametrize("temperature", [float("nan"), float("inf")])
def test_temperatures(temperature: float) -> None:
    options: dict[str, Any] = dict(stochastic_sample_codes=True, kmeans_init=True)
    call = dict(sample_codebook_temp=temperature)
    match = "expected sample_codebook_temp to be finite"
    leaves_no_trace(VectorQuantize(4, 8, **options), lambda vq: vq(X, **call), ValueError, match)
    stacks = [ResidualVQ(**STACK, **options), GroupedResidualVQ(groups=2, **STACK, **options)]
    for stack in stacks:
        leaves_no_trace(stack, lambda rvq: rvq(X, **call), ValueError, match)
    hvq = HierarchicalVQ(dim=4, codebook_size=8, scales=(2, 6), stochastic_sample_codes=True)
    leaves_no_trace(hvq, lambda hvq: hvq(X.transpose(1, 2), **call), ValueError, match)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_generators_of_noise_do_not_advance(value: float) -> None:
    bits = BinaryMapper(4)
    match = "BinaryMapper: expected temperature to be finite and at least 0"
    leaves_no_trace(bits, lambda bits: bits(X, temperature=value), ValueError, match)
    noise = FSP([4] * 4, need_inv_act=True)
    leaves_no_trace(noise, lambda noise: noise(X, eps=value), ValueError, "FSP: expected eps to be")


COMPILED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "temperature": (lambda: VectorQuantize(4, 8), dict(sample_codebook_temp=NAN), "to be finite"),
    "freeze": (lambda: VectorQuantize(4, 8), dict(freeze_codebook="False"), "True or False"),
    "accumulate": (lambda: VectorQuantize(4, 8), dict(accum_ema_update="False"), "True or False"),
    "levels": (lambda: ResidualVQ(**STACK), dict(sample_codebook_temp=NAN), "to be finite"),
    "scales": (lambda: scales(), dict(sample_codebook_temp=NAN), "to be finite"),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_calls(case: str, backend: str) -> None:
    make, call, match = COMPILED[case]
    module = make()
    x = X.transpose(1, 2) if case == "scales" else X
    for fullgraph in (True, False):
        torch._dynamo.reset()  # it keeps code that raised uncompiled
        compiled = torch.compile(module, backend=backend, fullgraph=fullgraph)
        # One graph has no room for an exception, and names it in an error of the compiler.
        error = Unsupported if fullgraph else (ValueError, TypeError)
        leaves_no_trace(module, lambda _, c=compiled: c(x, **call), error, f"expected .* {match}")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", ["temperature", "levels", "scales"])
def test_temperatures_of_compiled_calls(case: str, backend: str) -> None:
    module = COMPILED[case][0]().eval()
    x = X.transpose(1, 2) if case == "scales" else X
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=True)
    for temperature in (0.5, 0.7, 1):
        found = compiled(x, sample_codebook_temp=temperature)
        assert torch.equal(found[0], module(x, sample_codebook_temp=temperature)[0])


COUNTED: dict[str, Callable[[], nn.Module]] = {
    "one codebook": lambda: VectorQuantize(4, 8, threshold_ema_dead_code=2),
    "affine": lambda: VectorQuantize(4, 8, threshold_ema_dead_code=2, affine_param=True),
    "stack": lambda: ResidualVQ(**STACK, threshold_ema_dead_code=2),
    "in turn": lambda: ResidualVQ(**STACK, threshold_ema_dead_code=2, affine_param=True),
    "groups": lambda: GroupedResidualVQ(groups=2, **STACK, threshold_ema_dead_code=2),
    "scales": lambda: HierarchicalVQ(
        dim=4,
        codebook_size=8,
        scales=(2, 6),
        channel_first=False,
        shared_codebook=False,
        threshold_ema_dead_code=2,
    ),
}


@pytest.mark.parametrize("case", COUNTED)
def test_late_refusals_keep_the_counts(case: str) -> None:
    """A tensor without data is refused only where the codes are searched, or where they learn from it."""
    torch.manual_seed(0)
    module, before = COUNTED[case](), ""
    while not re.search("replaced=[1-9]", before):
        module(X)
        before = str(module.stats())
    with pytest.raises((RuntimeError, NotImplementedError)):
        module(X.to("meta"))
    assert str(module.stats()) == before
