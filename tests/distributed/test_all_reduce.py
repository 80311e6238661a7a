"""The two sums over ranks: one without gradient, one whose gradient is that of one process under DDP's averaging."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from forwarding_group import ForwardingGroup
from ranks import Ranks
from shards import group_name
from torch import Tensor, nn

ops = torch.ops.torchvq


def plain(rank: int):
    x = torch.full((3, 2), rank + 1.0, requires_grad=True).t()
    y = ops.all_reduce_statistics(x, group_name=group_name())
    return (
        y,
        y.requires_grad,
        ops.all_reduce_statistics(torch.tensor([rank]), group_name=group_name()),
    )


def test_statistics_are_added_without_a_gradient(ranks: Ranks):
    total = sum(range(1, ranks.size + 1))
    for y, requires_grad, integers in ranks.run(plain):
        assert torch.equal(y, torch.full((2, 3), float(total)))
        assert not requires_grad
        assert integers.item() == total - ranks.size


def entropy_of_mean(logits: Tensor, name: str = "") -> Tensor:
    """Entropy of the mean distribution, a loss that is not the average of local losses."""
    total = ops.all_reduce_differentiable(logits.softmax(-1).sum(0), group_name=name)
    count = ops.all_reduce_statistics(
        torch.tensor(float(len(logits)), dtype=logits.dtype), group_name=name
    )
    mean = total / count
    return -(mean * mean.log()).sum()


def encoder() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(4, 6).double()


def shard(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(5 + 9 * rank, 4, generator=generator, dtype=torch.float64) + rank


def ddp_gradient(rank: int):
    model = nn.parallel.DistributedDataParallel(encoder())
    loss = entropy_of_mean(model(shard(rank)), group_name())
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()]


def test_ddp_average_of_gradients_is_the_gradient_of_one_process(ranks: Ranks):
    model = encoder()
    loss = entropy_of_mean(model(torch.cat([shard(rank) for rank in range(ranks.size)])))
    loss.backward()
    for value, gradients in ranks.run(ddp_gradient):
        assert value == pytest.approx(loss.item(), rel=1e-12)
        for got, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-10, atol=1e-12)


def second_order(rank: int):
    x = torch.tensor([2.0 + rank], dtype=torch.float64, requires_grad=True)
    y = ops.all_reduce_differentiable(x, group_name=group_name())
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.item(), second.item()


def test_gradients_have_gradients(two: Ranks):
    # L_r = (x0 + x1)^3 on both ranks; a gradient is summed over the ranks once per order: 2 * 3 y^2, 4 * 6 y.
    for first, second in two.run(second_order):
        assert first == pytest.approx(2 * 3 * 25)
        assert second == pytest.approx(4 * 6 * 5)


def gradcheck_alone() -> bool:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    return torch.autograd.gradcheck(ops.all_reduce_differentiable, x)


def test_a_group_of_one_is_the_identity():
    assert gradcheck_alone()


def compiled(rank: int):
    def step(x: Tensor) -> Tensor:
        return entropy_of_mean(x, name)

    name = group_name()
    torch._dynamo.reset()
    eager, other = shard(rank).requires_grad_(), shard(rank).requires_grad_()
    step(eager).backward()
    torch.compile(step, fullgraph=True, backend="aot_eager")(other).backward()
    return torch.equal(eager.grad, other.grad)


def test_compiled_gradient_equals_eager(two: Ranks):
    assert two.run(compiled) == [True, True]


def sub_group(rank: int):
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    mine = groups[0] if rank < 2 else groups[1]
    total = ops.all_reduce_statistics(torch.tensor(float(rank + 1)), group_name=mine.group_name)
    return total.item()


def test_sub_groups_add_among_themselves(pool):
    assert pool(3).run(sub_group) == [3.0, 3.0, 3.0]


class Watched(ForwardingGroup):
    """Notes which Python objects of the thread a collective would take along to Gloo's thread."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.seen: list[tuple[bool, bool]] = []

    def entering(self, kind: str) -> None:
        self.seen.append(thread_objects())


def thread_objects() -> tuple[bool, bool]:
    """Whether this thread keeps the context of a backward, and hooks of saved tensors."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch._C._is_key_in_tls("context"), hooks is not None


def collectives_in_backward_and_under_hooks(rank: int):
    group = Watched(dist.group.WORLD)
    dist.distributed_c10d._register_process_group("watched", group)
    x = torch.ones(3, requires_grad=True)
    around = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = ops.all_reduce_differentiable(x, group_name="watched") * 1
        around.append(thread_objects())
    y.register_hook(lambda gradient: around.append(thread_objects()))
    x.register_hook(lambda gradient: around.append(thread_objects()))
    y.sum().backward()
    dist.distributed_c10d._unregister_process_group("watched")
    return group.seen, around


def test_collectives_take_no_python_objects_of_the_thread_along(ranks: Ranks):
    for seen, around in ranks.run(collectives_in_backward_and_under_hooks):
        assert seen == [(False, False)] * 2  # forward and backward
        # They are there again when the collective has started: under the hooks, before and after that of backward.
        assert around == [(False, True), (True, False), (True, False)]
