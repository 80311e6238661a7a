"""torch.compile of every class: outputs, indices, losses, gradients and state equal those of eager execution."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import classes
import pytest
import torch
import torch._dynamo.testing
from cells import Cell
from classes import ROWS, Seen
from kinds import exhaustive, one_of_each
from torch import Tensor, nn

from support import bit_for_bit

# One row of each kind: learnt codes, a stack of them, gradients of codes, scalars, signs, learnt values. LFQ's entropy
# sharpens latents by a factor of hundreds, which makes rounding in float32 too large to compare.
INDUCTOR = {
    "vq_dead_codes": torch.float32,
    "vq_learnable": torch.float32,
    "residual_vq": torch.float32,
    "fsq": torch.float32,
    "lfq_part_of_tokens": torch.float64,
    "latent": torch.float32,
}
# Those that `make test` runs: one with codes that move, one without.
GENERATED = {"vq_dead_codes", "fsq"}
# The same kinds; used in a model, in all gradient modes, and copied.
AROUND = ["vq_dead_codes", "residual_vq_dropout", "vq_learnable", "fsq_symmetric", "lfq", "latent"]
# No size equals that of another axis, because compilers would take the two for one symbol.
SIZES = [(5, 7, 9), (6, 11, 7), (11, 13, 5)]
# Codes are initialised within the first training forward, which is a separate graph.
STARTS = {"vq_kmeans"}
# Training runs an optimizer, which breaks the graph.
BREAKS = {"latent_in_place"}
# Eager runs skip dropped levels, graphs compute and mask them, so gradients are summed in another order.
MASKED = {"residual_fsq_dropout", "hierarchical_vq_dropout"}
Close = Callable[[Tensor, Tensor], None]


@pytest.fixture(autouse=True)
def counted_anew() -> None:
    torch._dynamo.utils.counters.clear()


def nearly(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Counted:
    """`torch.compile` with the number of its graphs."""

    def __init__(self, row: str, module: nn.Module, backend: str = "aot_eager") -> None:
        self.counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        whole = not (row in BREAKS and module.training)
        self.call = torch.compile(module, fullgraph=whole, backend=self.counter)

    @property
    def graphs(self) -> int:
        return self.counter.frame_count


def marked(row: str, x: Tensor) -> Tensor:
    """Marks all axes except the channels' as dynamic: a compiler that specialises one of them raises."""
    for axis in range(x.dim()):
        if axis != ROWS[row].channel_axis % x.dim():
            torch._dynamo.mark_dynamic(x, axis)
    return x


def sized(row: str, step: int, sizes: tuple[int, ...]) -> Tensor:
    """Input with the given sizes of all axes except the channels'."""
    left = list(sizes)
    axis = ROWS[row].channel_axis % len(ROWS[row].shape)
    shape = [size if at == axis else left.pop(0) for at, size in enumerate(ROWS[row].shape)]
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))


def train_step(call: Callable[..., Any], module: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs and gradients of a step, after which parameters move."""
    x.requires_grad_()
    seen = classes.forward(call, x)
    weights = torch.linspace(-1, 1, seen.quantized.numel()).view(seen.quantized.shape)
    parameters = list(module.parameters())
    objective = (seen.quantized * weights).sum() + seen.loss.sum()
    gradients = torch.autograd.grad(objective, [x, *parameters], allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients[1:], strict=True):
            if gradient is not None:
                parameter -= 0.1 * gradient
    found = [gradient for gradient in gradients if gradient is not None]
    assert found
    return [*(tensor.detach() for tensor in seen), *found]


def compare(actual: list[Tensor] | Seen, expected: list[Tensor] | Seen, close: Close) -> None:
    assert torch.equal(actual[1], expected[1])
    for a, b in zip(actual, expected, strict=True):
        close(a, b)


def compare_state(module: nn.Module, eager: nn.Module, close: Close) -> None:
    # Non-persistent buffers, such as counts of a step, are compared as well.
    for name, tensor in [*eager.named_buffers(), *eager.named_parameters()]:
        close(
            module.get_parameter(name) if tensor.requires_grad else module.get_buffer(name), tensor
        )


def train(
    row: str, calls: tuple[Callable[..., Any], nn.Module, nn.Module], inputs: list[Tensor]
) -> None:
    """The same steps by a compiled module and by an eager one."""
    call, module, eager = calls
    close = nearly if row in MASKED else bit_for_bit
    for x in inputs:
        expected = train_step(eager, eager, x.clone())
        compare(train_step(call, module, x), expected, close)
        compare_state(module, eager, close)


def evaluate(calls: tuple[Callable[..., Any], nn.Module, nn.Module], inputs: list[Tensor]) -> None:
    call, module, eager = calls
    for x in inputs:
        compare(classes.forward(call, x), classes.forward(eager, x.clone()), bit_for_bit)
        compare_state(module, eager, bit_for_bit)


@pytest.mark.parametrize("row", one_of_each())
def test_training(row: str, cell: Cell) -> None:
    """Forward and backward as one graph without breaks, run op by op, give the same bits."""
    cell("compile", row, "train", "in parts" if row in BREAKS else "yes")
    eager, module = classes.build(row), classes.build(row)
    compiled = Counted(row, module)
    train(row, (compiled.call, module, eager), [classes.data(row, step) for step in range(3)])
    if row not in BREAKS:
        assert compiled.graphs == 1 + (row in STARTS)


@pytest.mark.parametrize("row", one_of_each())
def test_evaluation(row: str, cell: Cell) -> None:
    cell("compile", row, "eval")
    eager = classes.build(row)
    classes.forward(eager, classes.data(row))
    eager, module = eager.eval(), deepcopy(eager).eval()
    compiled = Counted(row, module)
    with torch.no_grad():
        evaluate((compiled.call, module, eager), [classes.data(row, step) for step in range(2)])
    assert compiled.graphs == 1


@pytest.mark.parametrize("row", one_of_each())
def test_one_graph_serves_all_sizes(row: str, cell: Cell) -> None:
    cell("compile", row, "dynamic")
    eager, module = classes.build(row), classes.build(row)
    training = Counted(row, module)
    inputs = [marked(row, sized(row, step, sizes)) for step, sizes in enumerate(SIZES)]
    train(row, (training.call, module, eager), inputs)
    if row not in BREAKS:
        assert training.graphs == 1 + (row in STARTS)
    eager, module = eager.eval(), deepcopy(eager).eval()
    evaluation = Counted(row, module)
    with torch.no_grad():
        evaluate((evaluation.call, module, eager), [marked(row, x.detach()) for x in inputs])
    assert evaluation.graphs == 1


def test_evaluation_before_codes_are_set() -> None:
    """Before k-means the random codes are used, and the warning does not break the graph."""
    module = classes.build("vq_kmeans").eval()
    eager = deepcopy(module)
    compiled = Counted("vq_kmeans", module)
    with torch.no_grad():
        evaluate((compiled.call, module, eager), [classes.data("vq_kmeans")])


@pytest.mark.parametrize("row", [row if row in GENERATED else exhaustive(row) for row in INDUCTOR])
def test_inductor(row: str, cell: Cell) -> None:
    """Generated code: fused reductions, recomputation in backward, in-place updates."""
    cell("compile", row, "inductor", "yes")
    dtype = INDUCTOR[row]
    eager, module = classes.build(row).to(dtype), classes.build(row).to(dtype)
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    for step in range(3):
        x = classes.data(row, step, dtype=dtype)
        expected = train_step(eager, eager, x.clone())
        compare(train_step(compiled, module, x), expected, nearly)
        compare_state(module, eager, nearly)
    eager, module = eager.eval(), deepcopy(eager).eval()
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    x = classes.data(row, 9, dtype=dtype)
    with torch.no_grad():
        compare(classes.forward(compiled, x), classes.forward(eager, x), nearly)


class Autoencoder(nn.Module):
    """A quantizer between linear layers, as in a user's model."""

    def __init__(self, row: str) -> None:
        super().__init__()
        self.quantizer = classes.build(row)
        torch.manual_seed(1)
        self.encoder = nn.Linear(classes.DIM, classes.DIM)
        self.decoder = nn.Linear(classes.DIM, classes.DIM)

    def forward(self, x: Tensor) -> Seen:
        seen = classes.forward(self.quantizer, torch.tanh(self.encoder(x)))
        return Seen(self.decoder(seen.quantized), seen.indices, seen.loss)


@pytest.mark.parametrize("row", AROUND)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_a_model_around_it(row: str, autocast: bool) -> None:
    """Without fullgraph, with changing sizes, in float32 and under autocast."""
    eager, module = Autoencoder(row), Autoencoder(row)
    compiled = torch.compile(module, backend="aot_eager")

    def under(call: Callable[[Tensor], Seen]) -> Callable[[Tensor], Seen]:
        def forward(x: Tensor) -> Seen:
            # Around the forward only: autocast caches casts of parameters for the region, which an update makes stale.
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return call(x)

        return forward

    for step, sizes in enumerate(SIZES):
        x = sized(row, step, sizes)
        expected = train_step(under(eager), eager, x.clone())
        compare(train_step(under(compiled), module, x), expected, bit_for_bit)
        compare_state(module, eager, bit_for_bit)
    assert torch._dynamo.utils.counters["graph_break"] == {}


@pytest.mark.parametrize("row", AROUND)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_modes_of_gradients(row: str, mode: Callable[[], Any]) -> None:
    """Evaluation with and without gradients, and training without."""
    eager, module = classes.build(row), classes.build(row)
    compiled = Counted(row, module)
    with mode():
        for training in (True, False):
            eager.train(training), module.train(training)
            evaluate((compiled.call, module, eager), [classes.data(row, step) for step in range(2)])
    assert compiled.graphs == 2


@pytest.mark.parametrize("row", AROUND)
def test_copies_of_a_compiled_module(row: str) -> None:
    """A copy learns separately and stays compiled; the original does not change."""
    eager, compiled = classes.build(row), torch.compile(classes.build(row), backend="aot_eager")
    x = classes.data(row)
    compare(
        train_step(compiled, compiled, x.clone()), train_step(eager, eager, x.clone()), bit_for_bit
    )
    before = classes.state(compiled)
    copy = deepcopy(compiled)
    assert type(copy) is type(compiled)
    for step in (1, 2):
        x = classes.data(row, step)
        expected = train_step(eager, eager, x.clone())
        compare(train_step(copy, copy, x), expected, bit_for_bit)
    compare_state(copy._orig_mod, eager, bit_for_bit)
    for name, tensor in before.items():
        bit_for_bit(compiled.state_dict()[name], tensor)
