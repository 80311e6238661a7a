"""Handshake, state hashes, broadcast: ranks with equal options start with equal state; others get an error."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, outcome, stderr_of
from shards import group_name, traffic_of

ops = torch.ops.torchvq


def state_of(rank: int, codes: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.tensor(True),
        torch.randn(1, codes, 3, generator=generator),
        torch.arange(codes).reshape(1, codes) + rank,
        torch.randn(5, generator=generator, dtype=torch.float64),
        torch.tensor([rank, 4]),
    ]


def shake(rank: int, same: bool):
    state, handle = state_of(0 if same else rank), ops.new_handle()
    torch.set_warn_always(True)
    traffic = []

    def three_steps() -> None:
        for _ in range(3):
            _, sent = traffic_of(
                lambda: ops.handshake_(state, handle=handle, group_name=group_name(), label="vq")
            )
            traffic.append(sent[:3])

    return state, stderr_of(three_steps), traffic


WARNING = "vq: ranks start with different states"


def test_ranks_that_differ_start_from_rank_0_with_one_warning(ranks: Ranks):
    for state, said, traffic in ranks.run(shake, False):
        assert said.count(WARNING) == 1
        for got, wanted in zip(state, state_of(0), strict=True):
            assert torch.equal(got, wanted)
        assert traffic == [(0, 1, 1), (0, 0, 0), (0, 0, 0)]


def test_ranks_that_are_equal_exchange_a_note_once(two: Ranks):
    for _, said, traffic in two.run(shake, True):
        assert said == ""
        assert traffic == [(0, 1, 0), (0, 0, 0), (0, 0, 0)]


def shake_sizes(rank: int) -> tuple[str, bool]:
    state = state_of(0, codes=32 if rank == 0 else 48)
    before = [tensor.clone() for tensor in state]
    message = outcome(
        lambda: ops.handshake_(
            state,
            handle=ops.new_handle(),
            signature=f"codebook_size {32 + 16 * rank}",
            group_name=group_name(),
            label="encoder.vq",
        )
    )
    return message, all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


def test_unequal_codebook_sizes_are_a_sentence_on_every_rank(two: Ranks):
    for message, intact in two.run(shake_sizes):
        assert message.startswith(
            "ValueError: encoder.vq, step 4: expected all ranks to have the same quantizer"
        )
        assert "rank 0: codebook_size 32" in message and "rank 1: codebook_size 48" in message
        assert intact


def changed_signature(rank: int) -> list[tuple[int, ...]]:
    handle, sent = ops.new_handle(), []
    for options in ("a", "b", "b"):
        state = state_of(0)
        handshake = partial(ops.handshake_, state, handle=handle, signature=options)
        sent.append(traffic_of(partial(handshake, group_name=group_name()))[1][:3])
    return sent


def test_another_signature_is_another_handshake(two: Ranks):
    assert two.run(changed_signature) == [[(0, 1, 0), (0, 1, 0), (0, 0, 0)]] * 2


def shake_in_groups_of_one_name(rank: int) -> list[tuple[int, ...]]:
    from torch._C import _distributed_c10d as c10d

    state, handle, sent = state_of(0), ops.new_handle(), []
    shake = partial(ops.handshake_, state, handle=handle, group_name="remade", label="vq")
    for used in (0, 20, 0):
        # As destroy_process_group and init_process_group, whose first group always has the same name.
        group = dist.new_group()
        for _ in range(used):
            dist.all_reduce(torch.ones(1), group=group)
        c10d._register_process_group("remade", group)
        sent += [traffic_of(shake)[1][:3] for _ in range(2)]
        c10d._unregister_process_group("remade")
        dist.destroy_process_group(group)
    return sent


def test_a_new_group_of_an_old_name_is_another_handshake(two: Ranks):
    """However many collectives it has run: a rank that has joined, whose module is new, waits for the others."""
    assert two.run(shake_in_groups_of_one_name) == [[(0, 1, 0), (0, 0, 0)] * 3] * 2


def marks(rank: int, same: bool) -> list[list[bool]]:
    state, handle, seen = state_of(0 if same else rank), ops.new_handle(), []
    for _ in range(3):
        before = [tensor._version for tensor in state]
        ops.handshake_(state, handle=handle, group_name=group_name())
        seen.append([tensor._version > old for tensor, old in zip(state, before, strict=True)])
    return seen


def test_autograd_learns_of_writes_alone(two: Ranks):
    """A backward that needs the state of an earlier step would otherwise fail after every later step."""
    no, yes = [False] * 5, [True] * 5
    assert two.run(marks, True) == [[no, no, no]] * 2
    assert two.run(marks, False) == [[yes, no, no]] * 2


def hashes(rank: int) -> torch.Tensor:
    state = state_of(0)
    if rank == 1:
        state[1][0, 3, 2] += 1e-6
    return ops.replica_hashes(state, group_name=group_name())


def test_replica_hashes_point_at_the_tensor_that_differs(ranks: Ranks):
    for table in ranks.run(hashes):
        assert table.shape == (ranks.size, 5)
        assert table.eq(table[0]).all(0).tolist() == [True, False, True, True, True]


def broadcast(rank: int) -> list[torch.Tensor]:
    state = state_of(rank)
    state.append(torch.full((3, 4), rank).t())
    ops.broadcast_state_(state, group_name=group_name())
    return state


def test_broadcast_gives_all_the_state_of_rank_0(ranks: Ranks):
    wanted = [*state_of(0), torch.zeros(4, 3, dtype=torch.long)]
    for state in ranks.run(broadcast):
        for got, expected in zip(state, wanted, strict=True):
            assert torch.equal(got, expected)


# Hashes, on one process --------------------------------------------------------------------------

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_state_hash_sees_every_bit_and_no_layout(dtype: torch.dtype, size: int):
    values = torch.randint(0, 2, (size, 3)).to(dtype)
    strided = values.t().contiguous().t()
    assert ops.state_hash([values]) == ops.state_hash([strided])
    for position in {0, size // 2, size - 1} if size else set():
        other = values.clone()
        other[position, 1] = 1 - other[position, 1].int()
        assert ops.state_hash([values]) != ops.state_hash([other])


def test_state_hash_sees_order_and_signs_of_zero():
    a, b = torch.zeros(4), torch.ones(4)
    assert ops.state_hash([a, b]) != ops.state_hash([b, a])
    assert ops.state_hash([a]) != ops.state_hash([-a])
    assert ops.state_hash([torch.tensor([1.0, 2.0])]) != ops.state_hash([torch.tensor([2.0, 1.0])])
    many = {ops.state_hash([torch.randn(7)]).item() for _ in range(1000)}
    assert len(many) == 1000


# One place decides -------------------------------------------------------------------------------


def switched_off(rank: int):
    os.environ["TORCHVQ_SYNC"] = "0"
    try:
        total, traffic = traffic_of(
            lambda: ops.all_reduce_statistics(torch.ones(1), group_name=group_name())
        )
        return ops.sync_enabled(), total.item(), traffic
    finally:
        del os.environ["TORCHVQ_SYNC"]


def test_torchvq_sync_0_makes_every_group_a_group_of_one(two: Ranks):
    assert two.run(switched_off) == [(False, 1.0, (0, 0, 0, 0))] * 2
    assert ops.sync_enabled()


def test_an_unknown_group_is_named():
    with pytest.raises(
        ValueError,
        match='vq: expected group_name to be the name of a living process group, but got "x"',
    ):
        ops.all_reduce_statistics(torch.ones(1), group_name="x", label="vq")


def test_handles_of_forked_processes_differ() -> None:
    # A module may be sent to another process, which has handles of its own.
    program = (
        "import os, torch, torchvq\n"
        "new = torch.ops.torchvq.new_handle\n"
        "new()\n"
        "forked = os.fork()\n"
        "for _ in range(3): os.write(1, f'{new()}\\n'.encode())\n"
        "if forked: os.waitpid(forked, 0)\n"
        "else: os._exit(0)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    handles = answer.stdout.split()
    assert len(set(handles)) == len(handles) == 6
