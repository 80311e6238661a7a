"""torch.compile and torch.export of options, masks and steps that tests/matrix does not cover: equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from vector_quantize_cases import (
    CODES,
    DIM,
    GUMBEL,
    LEARNABLE,
    SEPARATE,
    Bridge,
    Step,
    assert_same_state,
    build,
    data,
    positions_of,
    state,
    train_step,
)

from support import bit_for_bit
from torchvq import LFQ, GroupedResidualVQ, HierarchicalVQ, ResidualVQ, VectorQuantize

# Everything that changes the graph. Each row: options, and arguments of forward.
TABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "cosine_heads": (dict(use_cosine_sim=True, **SEPARATE), {}),
    "shared_heads_dead_codes": (dict(heads=2, codebook_dim=4, threshold_ema_dead_code=2), {}),
    "projections_layer_norm": (dict(codebook_dim=5, layernorm_after_project_in=True), {}),
    "image_dead_code_fraction": (
        dict(accept_image_fmap=True, dead_code_threshold_fraction=0.5),
        {},
    ),
    "channel_first": (dict(channel_last=False), {}),
    "learnable": (LEARNABLE, {}),
    "learnable_heads_sync_update": (dict(**LEARNABLE, **SEPARATE, sync_update_v=0.3), {}),
    "orthogonal_some_active": (
        dict(
            orthogonal_reg_weight=0.5,
            orthogonal_reg_max_codes=5,
            orthogonal_reg_active_codes_only=True,
        ),
        {},
    ),
    "kmeans": (dict(kmeans_init=True), {}),
    "affine_kmeans_dead_codes": (
        dict(affine_param=True, kmeans_init=True, threshold_ema_dead_code=2),
        {},
    ),
    "sampling": (dict(stochastic_sample_codes=True), dict(sample_codebook_temp=0.5)),
    "diversity": (dict(codebook_diversity_loss_weight=0.2, **SEPARATE), {}),
    "gumbel": (GUMBEL, {}),
    "copied_gradient": (dict(rotation_trick=False), {}),
    "bridge": (dict(vq_bridge=None), {}),
    "manual_ema": (dict(manual_ema_update=True), {}),
    "frozen": (dict(threshold_ema_dead_code=2), dict(freeze_codebook=True)),
    "compat": (
        dict(vqp_compat=True, threshold_ema_dead_code=2, codebook_diversity_loss_weight=0.1),
        {},
    ),
    "mask": (SEPARATE, dict(mask=True)),
    "lens_input_as_padding": (dict(return_zeros_for_masked_padding=False), dict(lens=True)),
    "topk": ({}, dict(topk=3)),
    "weight": ({}, dict(ema_update_weight=0.5)),
    "autocast": (dict(codebook_dim=5), dict(autocast=True)),
}
# Trained and evaluated by tests/matrix; only other tests use them here.
IN_MATRIX = {"default", "learnable", "kmeans"}
# Where inductor may err: fused reductions, randomness, recomputation, mutation. Dead codes with an affine map are left
# out: candidates are drawn by the bits of the tokens, and inductor rounds differently.
INDUCTOR = ["cosine_heads", "shared_heads_dead_codes", "gumbel", "learnable_heads_sync_update"]


def make(row: str) -> VectorQuantize:
    options = dict(TABLE[row][0])
    if row == "bridge":
        torch.manual_seed(0)
        options["vq_bridge"] = Bridge()
    return build("default", **options)


def arguments(row: str, module: VectorQuantize, step: int) -> dict[str, Any]:
    kwargs = dict(TABLE[row][1])
    kwargs.pop("autocast", None)
    generator = torch.Generator().manual_seed(step)
    if kwargs.pop("mask", False):
        kwargs["mask"] = torch.rand(positions_of(module), generator=generator) < 0.7
    if kwargs.pop("lens", False):
        kwargs["lens"] = torch.tensor([12, 5 + step, 0])
    return kwargs


def run(row: str, forward: Callable[..., Any], module: VectorQuantize) -> list[Step]:
    """Four training steps, then an evaluation."""
    autocast = (
        torch.autocast("cpu", torch.bfloat16) if TABLE[row][1].get("autocast") else nullcontext()
    )
    steps = []
    for step in range(4):
        kwargs = arguments(row, module, step)
        with autocast:
            steps.append(train_step(forward, module, data(module, step), **kwargs))
    module.eval()
    x = data(module, 9)
    kwargs = arguments(row, module, 9 if "lens" not in TABLE[row][1] else 0)
    with autocast, torch.no_grad():
        quantized, indices, loss = forward(x, **kwargs)[:3]
    return [*steps, Step(quantized, indices, loss, torch.zeros(()), {})]


def assert_same_steps(actual: list[Step], expected: list[Step], close: Callable[..., None]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a.indices, b.indices)
        for name in ("quantized", "loss", "gradient"):
            close(getattr(a, name), getattr(b, name))
        assert a.parameters.keys() == b.parameters.keys()
        for name, gradient in b.parameters.items():
            close(a.parameters[name], gradient)


def nearly(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [row for row in TABLE if row not in IN_MATRIX])
def test_traced_training_and_evaluation_are_those_of_eager(row: str) -> None:
    """The whole forward and backward as one graph without breaks, run op by op: the same bits."""
    eager, traced = make(row), make(row)
    forward = torch.compile(traced, fullgraph=True, backend="aot_eager")
    expected, actual = run(row, eager, eager), run(row, forward, traced)
    assert_same_steps(actual, expected, bit_for_bit)
    assert_same_state(traced, state(eager))


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", INDUCTOR)
def test_compiled_training_and_evaluation_are_those_of_eager(row: str) -> None:
    eager, compiled = make(row), make(row)
    forward = torch.compile(compiled, fullgraph=True, dynamic=False)
    expected, actual = run(row, eager, eager), run(row, forward, compiled)
    assert_same_steps(actual, expected, nearly)
    for name, value in state(eager).items():
        nearly(state(compiled)[name], value)


@pytest.mark.parametrize("row", ["mask", "image_dead_code_fraction"])
def test_one_graph_serves_all_batch_sizes(row: str) -> None:
    eager, traced = make(row), make(row)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    forward = torch.compile(traced, fullgraph=True, backend=counter, dynamic=True)
    graphs = []
    # No batch size equals another axis, because compilers would take the two for one symbol.
    for step, batch in enumerate((6, 5, 11, 7)):
        x = data(eager, step, batch)
        mask = torch.rand(positions_of(eager, batch)) < 0.7
        kwargs = dict(mask=mask) if row == "mask" else {}
        expected = train_step(eager, eager, x, **kwargs)
        assert_same_steps([train_step(forward, traced, x, **kwargs)], [expected], bit_for_bit)
        graphs.append(counter.frame_count)
    assert_same_state(traced, state(eager))
    assert graphs == graphs[:1] * 4


def test_initialisation_by_kmeans_is_a_graph_of_its_own() -> None:
    module = make("kmeans")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    forward = torch.compile(module, fullgraph=True, backend=counter, dynamic=False)
    for step in range(5):
        train_step(forward, module, data(module, step))
    assert module._codebook.initialised and bool(module._codebook.initted)
    assert counter.frame_count == 2


STACK = dict(dim=6, codebook_size=8, kmeans_init=True)
DROPPING = {
    "levels": (ResidualVQ, STACK | dict(num_quantizers=4, quantize_dropout=True)),
    "beam": (ResidualVQ, STACK | dict(num_quantizers=4, quantize_dropout=True, beam_size=2)),
    "groups": (
        GroupedResidualVQ,
        STACK | dict(groups=2, num_quantizers=4, quantize_dropout=True),
    ),
    "scales": (
        HierarchicalVQ,
        STACK
        | dict(scales=(1, 2, 4), channel_first=False, shared_codebook=False, nested_dropout=0.9),
    ),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", DROPPING)
def test_compiled_kmeans_sets_the_levels_that_the_first_step_drops(case: str, masked: bool) -> None:
    """A level that stays unset would begin again, over codes that have learnt, after a checkpoint is loaded."""
    kind, options = DROPPING[case]
    module = kind(**options)
    step = torch.compile(module, backend="aot_eager", fullgraph=True)
    flags = [b for name, b in module.named_buffers() if name.endswith("initted")]
    before = [b.clone() for name, b in module.named_buffers() if name.endswith("embed")]
    for _ in range(3):
        mask = torch.tensor([[True] * 3 + [False]]).expand(32, 4) if masked else None
        step(torch.randn(32, 4, 6), mask=mask)
    assert flags and all(flags)
    after = [b for name, b in module.named_buffers() if name.endswith("embed")]
    assert not any(map(torch.equal, before, after))


def test_compiled_kmeans_without_a_token_begins_with_the_codes_as_they_are() -> None:
    module = VectorQuantize(6, 8, kmeans_init=True)
    step = torch.compile(module, backend="aot_eager", fullgraph=True)
    before = module.codebook.clone()
    step(torch.randn(2, 9, 6), mask=torch.zeros(2, 9, dtype=torch.bool))
    assert torch.equal(module.codebook, before) and module._codebook.initted


@pytest.mark.parametrize(
    "setting", [{"activation_memory_budget": 0.5}, {"aggressive_recomputation": True}]
)
def test_graphs_that_compute_steps_again_are_refused(setting: dict[str, Any]) -> None:
    """The second run would read codes that the first has moved."""
    x = torch.randn(2, 9, 6, requires_grad=True)
    with torch._functorch.config.patch(setting):
        for module in (
            VectorQuantize(6, 8),
            ResidualVQ(dim=6, codebook_size=8, num_quantizers=2),
            LFQ(dim=6, codebook_size=64, frac_per_sample_entropy=0.5),
        ):
            for fullgraph in (True, False):
                torch.compiler.reset()
                with pytest.raises(
                    Exception, match="compiled with an activation_memory_budget of 1"
                ):
                    torch.compile(module, backend="aot_eager", fullgraph=fullgraph)(x)
            torch.compiler.reset()
            torch.compile(module.eval(), backend="aot_eager", fullgraph=True)(x)


def test_quantizers_outside_of_graphs_that_compute_again_train(generator: torch.Generator) -> None:
    module = VectorQuantize(6, 8, decay=0.0)
    alone = deepcopy(module)
    outside = torch.compiler.disable(module)
    x, same = (torch.randn(2, 9, 6, generator=generator).requires_grad_() for _ in range(2))
    same.data.copy_(x.data)
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        step = torch.compile(lambda z: outside(z * 2)[0].square().sum(), backend="aot_eager")
        step(x).backward()
    alone(same * 2)[0].square().sum().backward()
    assert torch.equal(x.grad, same.grad) and torch.equal(module.codebook, alone.codebook)


def test_compiled_commitment_gradient_is_of_the_codes_that_were_searched() -> None:
    """Compilers recompute in backward, when the codes have already moved."""
    module = build("copied_gradient", decay=0.0, commitment_weight=1.0)
    codes = module.codebook.clone()
    x = data(module).requires_grad_()
    _, indices, loss = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    loss.backward()
    assert not torch.equal(codes, module.codebook)
    torch.testing.assert_close(x.grad, 2 * (x.detach() - codes[indices]) / x.numel())


class Tokenizer(nn.Module):
    def __init__(self, quantizer: VectorQuantize) -> None:
        super().__init__()
        self.encoder = nn.Linear(DIM, DIM)
        self.quantizer = quantizer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, loss = self.quantizer(torch.tanh(self.encoder(x)))
        return quantized, indices, loss


@pytest.mark.parametrize(
    "row", ["cosine_heads", "projections_layer_norm", "affine_kmeans_dead_codes"]
)
def test_exported_evaluation_is_that_of_eager_for_any_batch(row: str) -> None:
    module = Tokenizer(make(row))
    module(data(module.quantizer))
    module.eval()
    x = data(module.quantizer, 1)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},)).run_decompositions()
    before = state(module)
    for size in (3, 7):
        x = data(module.quantizer, 2, size)
        for a, b in zip(program.module()(x), module(x), strict=True):
            bit_for_bit(a, b)
    assert_same_state(module, before)


@pytest.mark.parametrize("row", ["default", "shared_heads_dead_codes", "learnable"])
def test_exported_training_step_updates_its_state(row: str) -> None:
    """Export keeps the mutation of buffers: the program learns like the module."""
    module = make(row)
    # A copy, because the program shares the tensors of the module from which it is exported.
    program = torch.export.export(deepcopy(module), (data(module),)).module()
    for step in range(3):
        x = data(module, step)
        expected, actual = module(x), program(x)
        for a, b in zip(actual, expected, strict=True):
            bit_for_bit(a.detach(), b.detach())
    buffers = dict(program.named_buffers())
    for name, buffer in module.named_buffers():
        bit_for_bit(buffers[name], buffer)


def test_decoding_and_direct_updates_compile() -> None:
    module, traced = make("projections_layer_norm"), make("projections_layer_norm")
    x = data(module)
    indices = torch.randint(-1, CODES, positions_of(module))
    decode = torch.compile(traced.get_output_from_indices, fullgraph=True, backend="aot_eager")
    bit_for_bit(decode(indices), module.get_output_from_indices(indices))
    update = torch.compile(traced.update_ema_indices, fullgraph=True, backend="aot_eager")
    update(x, indices)
    module.update_ema_indices(x, indices)
    assert_same_state(traced, state(module))
