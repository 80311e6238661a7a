"""FSDP2 over the levels of stacks, one by one: the gradients, codes and state of one process with the joined batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchvq

DIM = 6
LEARNABLE = dict(learnable_codebook=True, ema_update=False)


def residual(**options: Any) -> nn.Module:
    return torchvq.ResidualVQ(dim=DIM, num_quantizers=3, codebook_size=16, **options)


def hierarchical(**options: Any) -> nn.Module:
    return torchvq.HierarchicalVQ(
        dim=DIM,
        codebook_size=16,
        scales=(1, 2, 4, 7),
        channel_first=False,
        threshold_ema_dead_code=0,
        **options,
    )


STACKS: dict[str, Callable[[], nn.Module]] = {
    "ResidualVQ": lambda: residual(**LEARNABLE),
    "dropped levels": lambda: residual(quantize_dropout=True, **LEARNABLE),
    "projections": lambda: residual(codebook_dim=4, **LEARNABLE),
    "averages in a parameter": lambda: residual(orthogonal_reg_weight=0.1),
    "implicit codebook": lambda: residual(implicit_neural_codebook=True, quantize_dropout=True),
    "GroupedResidualVQ": lambda: torchvq.GroupedResidualVQ(
        dim=DIM, groups=2, num_quantizers=3, codebook_size=16, codebook_dim=2, **LEARNABLE
    ),
    "GroupedResidualFSQ": lambda: torchvq.GroupedResidualFSQ(
        dim=DIM, groups=2, num_quantizers=3, levels=[5, 4]
    ),
    "ResidualSimVQ": lambda: torchvq.ResidualSimVQ(
        dim=DIM, num_quantizers=3, codebook_size=16, quantize_dropout=True
    ),
    # Two maps for four scales: one of a dropped scale is used by another.
    "HierarchicalVQ": lambda: hierarchical(share_quant_resi=2, nested_dropout=0.9),
    "scales that learn by gradient": lambda: hierarchical(
        shared_codebook=False, nested_dropout=0.9, orthogonal_reg_weight=0.1, kmeans_init=False
    ),
}
PARTS = {"VectorQuantize", "SimVQ", "Phi", "MLP", "ResidualVQ", "ResidualFSQ"}


def shard(stack: nn.Module, **how: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    how["mesh"] = init_device_mesh("cpu", (2,))
    for part in reversed(list(stack.modules())):
        if part is stack or (type(part).__name__ in PARTS and list(part.parameters())):
            fully_shard(part, **how)
    # For the parameters of the stack itself: projections.
    register_fsdp_forward_method(stack, "get_output_from_indices")


def within_a_plain_stack(rank: int) -> tuple[list[Tensor], list[Tensor]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    gradients = []
    for apart in (True, False):
        torch.manual_seed(0)
        stack: Any = STACKS["GroupedResidualVQ"]()
        mesh = init_device_mesh("cpu", (2,))
        for own in stack.rvqs:
            for level in own.layers if apart else []:
                fully_shard(level, mesh=mesh)
            fully_shard(own, mesh=mesh)
        if not apart:
            fully_shard(stack, mesh=mesh)
        loss_of(stack(batch(0, rank))).backward()
        gradients.append([whole(p.grad) for p in stack.parameters()])
    return gradients[0], gradients[1]


def test_a_group_is_gathered_before_its_levels(two: Ranks) -> None:
    """FSDP2 refuses a module whose parts it has seen before, if no module around them is sharded."""
    for apart, together in two.run(within_a_plain_stack):
        torch.testing.assert_close(apart, together, rtol=0, atol=0)


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(4, 7, DIM, generator=generator)


def whole(value: Any) -> Tensor:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()


def loss_of(output: Any) -> Tensor:
    loss = output[0].square().mean()
    return loss + output[2].sum() if len(output) > 2 else loss


def train(stack: nn.Module, data: Callable[[int], Tensor], how: str) -> dict[str, Any]:
    """Gradients of the parameters, the final state, indices in evaluation and whether they decode to the output."""
    optimizer = torch.optim.SGD([*stack.parameters(), nn.Parameter(torch.zeros(1))], 0.3)
    gradients = []
    for step in range(3):
        inputs = [data(2 * step).requires_grad_(), data(2 * step + 1)]
        if how == "checkpoint":
            loss_of(checkpoint(stack, inputs[0], use_reentrant=False)).backward()
        elif how == "two forwards":
            sum(loss_of(stack(x)) for x in inputs).backward()
        elif how == "two backwards":
            for loss in [loss_of(stack(x)) for x in inputs]:
                loss.backward()
        else:
            loss_of(stack(inputs[0])).backward()
        # One process alone gives dropped levels none, ranks give them zeros.
        gradients += [
            whole(torch.zeros_like(p) if p.grad is None else p.grad) for p in stack.parameters()
        ]
        optimizer.step()
        optimizer.zero_grad()
    stack.eval()
    with torch.no_grad():
        quantized, indices = stack(data(99))[:2]
    full = dict(full_shape=(7,)) if isinstance(indices, tuple) else {}
    decoded = stack.get_output_from_indices(indices, **full)
    torch.testing.assert_close(decoded, quantized)
    if getattr(stack, "has_projections", None) is False:
        torch.testing.assert_close(stack.get_codes_from_indices(indices).sum(0), quantized)
    state = {name: whole(value) for name, value in stack.state_dict().items()}
    return {"gradients": gradients, "state": state, "output": quantized, "indices": indices}


def alone(name: str, how: str) -> dict[str, Any]:
    torch.manual_seed(0)
    return train(STACKS[name](), lambda step: torch.cat([batch(step, 0), batch(step, 1)]), how)


def sharded(rank: int, name: str, how: str, reshard: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    stack = STACKS[name]()
    shard(stack, reshard_after_forward=reshard)
    return train(stack, lambda step: batch(step, rank), how)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize(
    ("how", "reshard"),
    [("plain", True), ("plain", False), ("checkpoint", True), ("two backwards", True)],
)
def test_levels_are_those_of_one_process(two: Ranks, name: str, how: str, reshard: bool) -> None:
    expected = alone(name, how)
    answers = two.run(sharded, name, how, reshard)
    assert any(gradient.any() for gradient in expected["gradients"])
    for answer in answers:
        assert answer["state"].keys() == expected["state"].keys()
        # float32 sums in another order, of gradients and of the rows of convolutions.
        near = dict(rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(answer["gradients"], expected["gradients"], **near)
        torch.testing.assert_close(answer["state"], expected["state"], **near)
        for key, value in expected["state"].items():
            assert torch.equal(answers[0]["state"][key], answer["state"][key]), key
            if not value.is_floating_point():
                assert torch.equal(answer["state"][key], value), key
    output = torch.cat([answer["output"] for answer in answers])
    torch.testing.assert_close(output, expected["output"], rtol=1e-4, atol=1e-5)
    indices = [answer["indices"] for answer in answers]
    parts = zip(*indices) if isinstance(indices[0], tuple) else [indices]  # noqa: B905
    right = expected["indices"] if isinstance(indices[0], tuple) else [expected["indices"]]
    for part, target in zip(parts, right, strict=True):
        axis = 1 if "Grouped" in name else 0
        assert torch.equal(torch.cat(part, axis), target)


def errors_and_graphs(rank: int, compiled: bool) -> list[Tensor]:
    torch.manual_seed(0)
    stack = STACKS["ResidualVQ"]()
    shard(stack)
    run = torch.compile(stack, backend="aot_eager") if compiled else stack
    if not compiled:
        with pytest.raises(ValueError, match="expected x to have"):
            stack(torch.zeros(2, 3, DIM + 1))
    for step in range(2):
        loss_of(run(batch(step, rank))).backward()
    return [whole(p.grad) for p in stack.parameters()]


def test_a_call_that_failed_and_a_graph_leave_no_trace(two: Ranks) -> None:
    for plain, compiled in zip(
        two.run(errors_and_graphs, False), two.run(errors_and_graphs, True), strict=True
    ):
        torch.testing.assert_close(plain, compiled)
