"""Activation checkpointing: outputs, gradients and noise equal those of the plain run, and the state moves once."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from vector_quantize_cases import (
    BATCH,
    CASES,
    DIM,
    LENGTH,
    assert_same_state,
    build,
    data,
    positions_of,
    state,
    train_step,
)

from torchvq import LatentQuantize, ResidualLFQ, ResidualVQ, VectorQuantize

REENTRANT = [False, True]


def checkpointed(module: nn.Module, reentrant: bool) -> Callable[..., Any]:
    def forward(x: Tensor, **kwargs: Any) -> Any:
        if reentrant:
            # The reentrant form finds tensors that need a gradient only among the direct results.
            return checkpoint(lambda x: tuple(module(x, **kwargs)), x, use_reentrant=True)
        return checkpoint(module, x, use_reentrant=False, **kwargs)

    return forward


def assert_same_step(actual: Any, expected: Any) -> None:
    for name in ("quantized", "indices", "loss", "gradient"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
    assert actual.parameters.keys() == expected.parameters.keys()
    for name, gradient in expected.parameters.items():
        assert torch.equal(actual.parameters[name], gradient), name


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", CASES)
def test_checkpointed_steps_are_plain_steps(case: str, reentrant: bool) -> None:
    """Every kind of codebook, three steps: k-means, noise, dead codes, averages and parameters included."""
    plain, module = build(case), build(case)
    for step in range(3):
        x = data(plain, step)
        expected = train_step(plain, plain, x)
        assert_same_step(train_step(checkpointed(module, reentrant), module, x), expected)
        assert_same_state(module, state(plain))
    assert not module._codebook._replays


MATRIX_PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


@pytest.mark.parametrize("saves", [MATRIX_PRODUCTS, []], ids=["saves products", "saves nothing"])
@pytest.mark.parametrize("case", CASES)
def test_selective_checkpoints_are_plain_steps(case: str, saves: list[Any]) -> None:
    """A policy counts the operators of the first run, and expects them in the recomputation."""

    def policy(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        save = op in saves
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    plain, module = build(case), build(case)
    for step in range(2):
        x = data(plain, step)
        expected = train_step(plain, plain, x)

        def forward(x: Tensor, **kwargs: Any) -> Any:
            return checkpoint(module, x, use_reentrant=False, context_fn=contexts, **kwargs)

        assert_same_step(train_step(forward, module, x), expected)
        assert_same_state(module, state(plain))


OWN_OPTIMIZER: dict[str, Any] = dict(
    learnable_codebook=True,
    ema_update=False,
    in_place_codebook_optimizer=partial(torch.optim.SGD, lr=0.5),
)
SAVED = {
    "affine": lambda: VectorQuantize(
        dim=DIM, codebook_size=16, affine_param=True, kmeans_init=True
    ),
    "projected": lambda: VectorQuantize(dim=DIM, codebook_size=16, codebook_dim=4),
    "learnable": lambda: VectorQuantize(
        dim=DIM, codebook_size=16, learnable_codebook=True, ema_update=False
    ),
    "own optimizer": lambda: VectorQuantize(dim=DIM, codebook_size=16, **OWN_OPTIMIZER),
    "levels with own optimizers": lambda: ResidualVQ(
        dim=DIM, codebook_size=16, num_quantizers=2, **OWN_OPTIMIZER
    ),
    "own optimizer of shared codes": lambda: ResidualVQ(
        dim=DIM, codebook_size=16, num_quantizers=2, shared_codebook=True, **OWN_OPTIMIZER
    ),
    "own optimizer of values": lambda: LatentQuantize(
        levels=[4, 4],
        dim=DIM,
        channel_first=False,
        in_place_codebook_optimizer=OWN_OPTIMIZER["in_place_codebook_optimizer"],
    ),
    "implicit": lambda: ResidualVQ(
        dim=DIM, codebook_size=16, num_quantizers=3, implicit_neural_codebook=True
    ),
    "lookup free": lambda: ResidualLFQ(
        dim=DIM, codebook_size=16, num_quantizers=2, commitment_loss_weight=0.25
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_selective_checkpoints_may_save_any_operator(name: str) -> None:
    """Saved outputs are found by the operator and the order of its calls, which must be alike in both runs."""
    met: set[Any] = set()

    def steps(policy: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = SAVED[name]()
        contexts = partial(create_selective_checkpoint_contexts, policy)
        gradients = []
        for _ in range(2):
            x = torch.randn(BATCH, LENGTH, DIM, requires_grad=True)
            quantized, _, loss = checkpoint(module, x, use_reentrant=False, context_fn=contexts)[:3]
            (quantized.square().sum() + loss.sum()).backward()
            # An optimizer of a module's own leaves values without a gradient.
            own = [parameter.grad for parameter in module.parameters()]
            gradients += [x.grad, *(grad.clone() for grad in own if grad is not None)]
        return gradients

    def nothing(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        met.add(op)
        return CheckpointPolicy.PREFER_RECOMPUTE

    expected = steps(nothing)
    views = {op for op in met if op.is_view}
    for saved in sorted(met - views, key=str):

        def only(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            save = op is saved  # noqa: B023
            return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

        for found, own in zip(steps(only), expected, strict=True):
            torch.testing.assert_close(found, own, msg=str(saved))


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", ["default", "separate_heads", "sampling", "dead_codes"])
def test_masked_steps(case: str, reentrant: bool) -> None:
    plain, module = build(case), build(case)
    for step in range(2):
        mask = torch.rand(positions_of(plain)) < 0.6
        expected = train_step(plain, plain, data(plain, step), mask=mask)
        actual = train_step(checkpointed(module, reentrant), module, data(plain, step), mask=mask)
        assert_same_step(actual, expected)
    assert_same_state(module, state(plain))


def run_regions(
    module: VectorQuantize, inputs: list[Tensor], wrap: bool, reentrant: bool
) -> Tensor:
    """One objective over several forwards; gradients arrive in the inputs."""
    total = torch.zeros(())
    for x in inputs:
        forward = checkpointed(module, reentrant) if wrap else module
        quantized, _, loss = forward(x)[:3]
        total = total + loss + quantized.sin().sum()
    return total


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize(
    "case", ["default", "sampling", "dead_codes", "affine", "orthogonal", "gumbel"]
)
def test_several_regions_in_one_backward(case: str, reentrant: bool) -> None:
    """Backward recomputes the regions from last to first; each finds the state with which it started."""
    results = []
    for wrap in (False, True):
        module = build(case)
        inputs = [data(module, step).requires_grad_() for step in range(4)]
        run_regions(module, inputs, wrap, reentrant).backward()
        results.append((module, [x.grad for x in inputs]))
    (plain, expected), (module, actual) = results
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)
    assert_same_state(module, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_the_same_input_twice(reentrant: bool) -> None:
    """Regions with equal inputs start from different states; recomputation must not swap them."""
    results = []
    for wrap in (False, True):
        module = build("default", decay=0.2, rotation_trick=True)
        inputs = [data(module).requires_grad_() for _ in range(3)]
        run_regions(module, inputs, wrap, reentrant).backward()
        results.append([x.grad for x in inputs])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", ["default", "learnable", "sampling"])
def test_gradient_accumulation(case: str, reentrant: bool) -> None:
    """Several backwards before an optimizer's step, with statistics kept for the last of them."""
    results = []
    for wrap in (False, True):
        module = build(case)
        forward = checkpointed(module, reentrant) if wrap else module
        for micro in range(3):
            x = data(module, micro).requires_grad_()
            quantized, _, loss = forward(x, accum_ema_update=micro < 2)[:3]
            (loss + quantized.sum()).backward()
        results.append((module, {n: p.grad.clone() for n, p in module.named_parameters()}))
    (plain, expected), (module, actual) = results
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(actual[name], gradient), name
    assert_same_state(module, state(plain))


class Stack(nn.Module):
    """An encoder layer and two quantizers in one region."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(DIM, DIM)
        self.first, self.second = build("default"), build("sampling", seed=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, _, loss = self.first(torch.tanh(self.layer(x)))
        rest, _, other = self.second(quantized + x)
        return rest, loss + other


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_quantizers_inside_a_region(reentrant: bool) -> None:
    results = []
    for wrap in (False, True):
        stack = Stack()
        x = torch.randn(
            BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(5)
        ).requires_grad_()
        for _ in range(2):
            out, loss = checkpoint(stack, x, use_reentrant=reentrant) if wrap else stack(x)
            (out.sum() + loss).backward()
        results.append((stack, x.grad, stack.layer.weight.grad))
    (plain, *expected), (stack, *actual) = results
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)
    assert_same_state(stack, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_an_optimizer_of_its_own_steps_once(reentrant: bool) -> None:
    def make() -> VectorQuantize:
        return build(
            "learnable",
            in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        )

    plain, module = make(), make()
    for step in range(3):
        expected = train_step(plain, plain, data(plain, step), learning_rate=0.0)
        actual = train_step(
            checkpointed(module, reentrant), module, data(plain, step), learning_rate=0.0
        )
        assert torch.equal(actual.gradient, expected.gradient)
        assert torch.equal(actual.quantized, expected.quantized)
        assert_same_state(module, state(plain))


@pytest.mark.parametrize("levels", [None, 2])
@pytest.mark.parametrize("reentrant", REENTRANT)
def test_statistics_that_move_after_a_step_of_its_own_optimizer(
    reentrant: bool, levels: int | None
) -> None:
    """With vqp_compat the statistics of the affine map follow each such step once more, as in the reference."""

    def make() -> nn.Module:
        options: dict[str, Any] = dict(affine_param=True, learnable_codebook=True, ema_update=False)
        options["in_place_codebook_optimizer"] = lambda own: torch.optim.SGD(own, lr=0.3)
        torch.manual_seed(1)
        if levels is None:
            return VectorQuantize(dim=DIM, codebook_size=8, vqp_compat=True, **options)
        return ResidualVQ(
            dim=DIM, codebook_size=8, num_quantizers=levels, vqp_compat=True, **options
        )

    plain, module = make(), make()
    for step in range(3):
        x = 3 * torch.randn(2, 6, DIM, generator=torch.Generator().manual_seed(step)) + step
        seen = []
        for own, forward in ((plain, plain), (module, checkpointed(module, reentrant))):
            leaf = x.clone().requires_grad_()
            quantized, _, loss = forward(leaf)
            (quantized.square().sum() + loss.sum()).backward()
            codes = [codes.grad for codes in own.parameters()]
            seen.append([quantized, loss, leaf.grad, *codes])
        for expected, found in zip(*seen, strict=True):
            assert torch.equal(found, expected)
        assert_same_state(module, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_evaluation_inside_a_region(reentrant: bool) -> None:
    module = build("learnable").eval()
    before = state(module)
    x = data(module).requires_grad_()
    quantized, indices, _ = checkpointed(module, reentrant)(x)[:3]
    quantized.sum().backward()
    assert module._codebook.embed.grad is not None
    assert torch.equal(quantized, module.get_output_from_indices(indices))
    assert_same_state(module, before)


# Several recomputations of one step ---------------------------------------------------------------------------------

KINDS = ["default", "learnable", "sampling", "dead_codes", "affine", "orthogonal", "gumbel"]


def nested(module: nn.Module, kinds: str) -> Callable[[Tensor], Any]:
    """The module inside regions, the innermost first: r for reentrant ones, s for those that save no tensors."""

    def forward(x: Tensor) -> Any:
        return tuple(module(x))

    for kind in kinds:
        forward = partial(checkpoint, forward, use_reentrant=kind == "r")
    return forward


def two_losses(module: nn.Module, forward: Callable[[Tensor], Any]) -> list[Tensor]:
    """Gradients, outputs and state of steps with one backward for each loss."""
    seen = []
    for step in range(2):
        x = data(module, step).requires_grad_()
        quantized, indices, loss = forward(x * 1.0)
        quantized.square().sum().backward(retain_graph=True)
        (loss + quantized.sum()).backward()
        assert x.grad is not None
        seen += [x.grad, quantized.detach(), indices]
    return [*seen, *state(module).values()]


def assert_all_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert torch.equal(a, b), number


@pytest.mark.parametrize("kinds", ["s", "r", "ss", "sr", "rs", "rr", "srs"])
@pytest.mark.parametrize("case", KINDS)
def test_two_backwards_through_nested_regions(case: str, kinds: str) -> None:
    """A recomputation of the outer region runs the inner one anew, which is then recomputed in its turn."""
    plain, module = build(case), build(case)
    expected = two_losses(plain, plain)
    assert_all_same(two_losses(module, nested(module, kinds)), expected)
    assert len(module._codebook._replays) == 0


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", KINDS)
def test_many_forwards_with_equal_inputs_wait_for_two_backwards(case: str, reentrant: bool) -> None:
    """As in a pipeline: each recomputation finds the state of its own forward, in whatever order they come."""
    results = []
    for wrap in (False, True):
        module = build(case)
        forward = nested(module, ("r" if reentrant else "s") * wrap)
        inputs = [data(module).requires_grad_() for _ in range(40)]
        outputs = [forward(x) for x in inputs]
        for quantized, _, _ in outputs:
            quantized.square().sum().backward(retain_graph=True)
        for quantized, _, loss in reversed(outputs):
            (quantized.sum() + loss).backward()
        results.append([*(x.grad for x in inputs), *state(module).values()])
    assert_all_same(*results)


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", KINDS)
def test_several_forwards_in_one_region(case: str, reentrant: bool) -> None:
    """With equal inputs, one without gradient, and one whose saved tensors are offloaded."""
    results = []
    for wrap in (False, True):
        module = build(case)

        def region(x: Tensor, module: VectorQuantize = module) -> tuple[Tensor, ...]:
            first, indices, loss = module(x)
            with torch.no_grad():
                module(x)
            with torch.autograd.graph.save_on_cpu():
                second, _, other = module(x)
            return first * second.sin(), indices, loss + other

        run = partial(checkpoint, region, use_reentrant=reentrant) if wrap else region
        results.append(two_losses(module, run))
    assert_all_same(*results)


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_records_live_as_long_as_a_graph_that_needs_them(reentrant: bool) -> None:
    """Neither forwards without backward nor results that are kept after it hold copies of the state."""
    module = build("default")
    forward, records = nested(module, "r" if reentrant else "s"), module._codebook._replays
    for step in range(40):
        forward(data(module, step).requires_grad_())
    assert len(records) == 0
    kept = [forward(data(module, step).requires_grad_()) for step in range(4)]
    assert len(records) == 4
    assert len(deepcopy(module)._codebook._replays) == 0
    for quantized, _, loss in kept[1:]:
        (quantized.sum() + loss).backward()
    assert len(records) == 1
    del kept
    assert len(records) == 0


def test_a_saved_tensor_looked_at_outside_of_backward_recomputes() -> None:
    plain, module = build("affine"), build("affine")
    for _ in range(2):
        plain(data(plain))
    for _ in range(2):
        quantized = checkpoint(module, data(module).requires_grad_(), use_reentrant=False)[0]
        for _ in range(2):
            look_into(quantized.grad_fn)
    assert_same_state(module, state(plain))


def look_into(node: Any) -> None:
    """Unpacks what the nodes of a graph saved."""
    if node is None:
        return
    getattr(node, "saved_tensors", None)
    for name in dir(node):
        if name.startswith("_saved_"):
            getattr(node, name)
    for following, _ in node.next_functions:
        look_into(following)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "options", [dict(freeze_codebook=True), dict(commitment_weight=0.0)], ids=str
)
def test_codes_without_a_gradient_get_none(options: dict[str, Any], reentrant: bool) -> None:
    module = VectorQuantize(8, 4, learnable_codebook=True, ema_update=False, **options)
    x = torch.randn(3, 12, 8, requires_grad=True)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        found = module(x)
        return found.quantized, found.loss

    quantized, loss = checkpoint(step, x, use_reentrant=reentrant)
    (quantized.square().sum() + loss).backward()
    assert module._codebook.embed.grad is None and x.grad is not None


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("frozen", [True, False])
def test_codes_that_move_before_backward_are_those_of_the_step(
    frozen: bool, reentrant: bool
) -> None:
    """The step moves no code, but another step, or the user, does."""
    x, other = torch.randn(2, 2, 12, 8)
    gradients = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        learns = {} if frozen else dict(learnable_codebook=True, ema_update=False)
        module = VectorQuantize(8, 16, orthogonal_reg_weight=0.5, **learns)

        def step(x: Tensor, module: VectorQuantize = module) -> Tensor:
            return module(x, freeze_codebook=frozen)[2]

        z = x.clone().requires_grad_()
        loss = checkpoint(step, z, use_reentrant=reentrant) if recomputes else step(z)
        with torch.no_grad():
            if frozen:
                module(other)
            else:
                module.codebook = module.codebook + 1
        loss.backward()
        gradients.append(module._codebook.embed.grad)
    assert torch.equal(*gradients)
