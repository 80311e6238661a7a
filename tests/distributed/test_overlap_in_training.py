"""`overlap_sync` in training: backward, wrappers, compilers, checkpoints, sub-groups, and failures."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import GROUP_TIMEOUT, Ranks, outcome
from test_module_failures import DIM, KINDS, OWNERS, TIMEOUT, tokens
from test_overlap import assert_equal, build, in_flight, state_of, tokens_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from torchvq import VectorQuantize, verify_replicas

OVERLAP = {"overlap_sync": True}
BOTH: list[dict[str, Any]] = [{}, OVERLAP]


# Backward ---------------------------------------------------------------------------------------------------


def alone_after_backward(rank: int, size: int, scale: float) -> Any:
    """Only rank 0 reads the state after a backward with further messages: outgrown codes, too many dead codes."""
    module = VectorQuantize(DIM, 512, threshold_ema_dead_code=1, decay=0.1, **OVERLAP)
    sent = []
    for step in range(4):
        x = torch.randn(1, 1200, DIM, generator=torch.Generator().manual_seed(10 * step + rank))
        x = (x * 0.1 + 3 if step == 1 else x) * scale**step
        torch.ops.torchvq.reset_traffic()
        module(x.requires_grad_())[0].sum().backward()
        if rank == 0:
            module.state_dict(), module.stats(), module.eval()(x), module.train()
        sent.append(tuple(torch.ops.torchvq.traffic()))
    return state_of(module), sent


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_one_rank_may_look_after_backward(ranks: Ranks, scale: float) -> None:
    answers = ranks.run(alone_after_backward, ranks.size, scale)
    for state, sent in answers:
        assert_equal(state, answers[0][0])
        assert sent == answers[0][1]
    collectives = [entry[0] + entry[1] for entry in answers[0][1][1:]]
    assert max(collectives) > 1, "the test means nothing without messages that follow"


def overwritten(rank: int, options: dict[str, Any]) -> Any:
    """The caller overwrites its tokens and indices before the message has arrived; with 1e6 the message is repeated."""
    module = build("dead_codes", 3, kmeans_init=False, **options)
    states = []
    for step in range(4):
        x = 1e6**step * torch.randn(1, 40, 6, generator=torch.Generator().manual_seed(step + rank))
        mask = torch.ones(1, 40, dtype=torch.bool)
        quantized, indices, _ = module(x, mask=mask)
        x.zero_(), indices.zero_(), mask.zero_(), quantized.zero_()
        states.append(state_of(module))
    return states


def test_the_caller_may_write_to_what_it_gave(ranks: Ranks) -> None:
    waiting, overlapping = (ranks.run(overwritten, options) for options in BOTH)
    for found, right in zip(overlapping, waiting, strict=True):
        for step, (state, expected) in enumerate(zip(found, right, strict=True)):
            assert_equal(state, expected, step)


def two_forwards(rank: int, size: int, case: str, options: dict[str, Any]) -> Any:
    """A second forward and a frozen one before the backward of all, also under autocast and no_grad."""
    module = build(case, 5, **options)
    gradients = []
    for step in range(6):
        x, mask = tokens_of(rank, size, step)
        loss = module(x, mask=mask)[0].square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss + module(2 * x, mask=mask)[0].float().sum()
        loss = loss + module(x, freeze_codebook=True)[0].sum()
        with torch.no_grad():
            module(x)
        loss.backward()
        gradients.append(x.grad)
    return state_of(module), gradients


@pytest.mark.parametrize("case", ["dead_codes", "residual_dropout", "grouped", "heads"])
def test_several_forwards_before_backward(two: Ranks, case: str) -> None:
    waiting, overlapping = (two.run(two_forwards, 2, case, options) for options in BOTH)
    for found, right in zip(overlapping, waiting, strict=True):
        assert_equal(found[0], right[0])
        assert all(torch.equal(a, b) for a, b in zip(found[1], right[1], strict=True))


# Wrappers, compilers, checkpoints ---------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, case: str, options: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encoder = nn.Linear(6, 6)
        self.unused = nn.Linear(2, 2)
        self.vq = build(case, 1, **options)
        self.decoder = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        quantized, _, loss = self.vq(self.encoder(x))
        return self.decoder(quantized).square().mean() + loss.sum()


def in_parallel(rank: int, case: str, options: dict[str, Any], how: dict[str, Any]) -> Any:
    model = Model(case, options)
    if not how.get("find_unused_parameters"):
        del model.unused
    parallel = DistributedDataParallel(model, **how)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    for step in range(8):
        x = torch.randn(1, 50, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        parallel(x).backward()
        assert not in_flight(model)
        optimizer.step()
        optimizer.zero_grad()
    assert verify_replicas(model) == []
    return state_of(model)


@pytest.mark.parametrize("case", ["dead_codes", "residual", "grouped"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"broadcast_buffers": False, "gradient_as_bucket_view": True},
    ],
    ids=["plain", "unused", "static", "no broadcast"],
)
def test_data_parallel(ranks: Ranks, case: str, how: dict[str, Any]) -> None:
    waiting, overlapping = (ranks.run(in_parallel, case, options, how) for options in BOTH)
    for found, right in zip(overlapping, waiting, strict=True):
        assert_equal(found, right)


def compiled(rank: int, case: str) -> tuple[Any, Any]:
    """Compiled steps wait in forward; eager steps of the same module need not."""
    eager, module = build(case, 5), build(case, 5, **OVERLAP)
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    for number in range(6):
        x = torch.randn(1, 40, 6, generator=torch.Generator().manual_seed(2 * number + rank))
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        eager(a)[0].sum().backward()
        call = module if number in (2, 3) else step
        output = call(b)[0]
        assert in_flight(module) == (call is module), f"step {number}"
        output.sum().backward()
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
    return state_of(eager), state_of(module)


@pytest.mark.parametrize("case", ["default", "dead_codes", "residual"])
def test_compiled_steps_wait(two: Ranks, case: str) -> None:
    for eager, traced in two.run(compiled, case):
        assert_equal(traced, eager)


def checkpointed(rank: int, case: str, options: dict[str, Any], reentrant: bool) -> Any:
    """Steps of checkpointed regions wait; a plain step may be in flight when a region is recomputed."""
    module = build(case, 5, **options)
    gradients = []
    for number in range(4):
        x = torch.randn(1, 40, 6, generator=torch.Generator().manual_seed(2 * number + rank))
        x.requires_grad_()
        first = checkpoint(module, x, use_reentrant=reentrant)
        assert not in_flight(module)
        second = module(2 * x)
        assert in_flight(module) == bool(options)
        (first[0].square().sum() + second[0].sum()).backward()
        gradients.append(x.grad)
    return state_of(module), gradients


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", ["dead_codes", "residual"])
def test_checkpointed_regions_wait(two: Ranks, case: str, reentrant: bool) -> None:
    waiting, overlapping = (two.run(checkpointed, case, options, reentrant) for options in BOTH)
    for found, right in zip(overlapping, waiting, strict=True):
        assert_equal(found[0], right[0])
        assert all(torch.equal(a, b) for a, b in zip(found[1], right[1], strict=True))


def steps_that_wait(rank: int, options: dict[str, Any]) -> list[bool]:
    module = build("default", 5, **options)
    x = torch.randn(1, 40, 6, generator=torch.Generator().manual_seed(rank))
    found = []
    for own in (
        {},
        {"accum_ema_update": True},
        {"ema_update_weight": lambda sums, counts: torch.ones(24)},
        {"ema_update_weight": 0.5},
        {"topk": 2},
        {"freeze_codebook": True},
    ):
        module(x, **own)
        found.append(in_flight(module))
    return found


def test_steps_that_python_has_a_say_in_wait(two: Ranks) -> None:
    for found in two.run(steps_that_wait, OVERLAP):
        # The third also learns the statistics that the second has kept, so the fourth can overlap again.
        assert found == [True, False, False, True, False, False]


def resumed(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Saved by all ranks while a step is in flight, and resumed."""
    module = build("residual_dropout", 100 + rank, **options)
    for step in range(8):
        x, mask = tokens_of(rank, size, step)
        module(x, mask=mask)
        if step == 4:
            state = module.state_dict()
            module = build("residual_dropout", 999, **options)
            module.load_state_dict(state)
    return state_of(module)


def test_a_checkpoint_in_the_middle(ranks: Ranks) -> None:
    waiting, overlapping = (ranks.run(resumed, ranks.size, options) for options in BOTH)
    for found, right in zip(overlapping, waiting, strict=True):
        assert_equal(found, right)


def subgroup(rank: int, options: dict[str, Any]) -> Any:
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    module = build("dead_codes", 7, process_group=groups[rank // 2], **options)
    for step in range(3):
        module(torch.randn(1, 30, 6, generator=torch.Generator().manual_seed(3 * step + rank)))
    return in_flight(module), state_of(module)


def test_a_subgroup_overlaps_by_itself(pool: Any) -> None:
    waiting, overlapping = (pool(3).run(subgroup, options) for options in BOTH)
    for rank, (found, right) in enumerate(zip(overlapping, waiting, strict=True)):
        assert_equal(found[1], right[1])
        assert not right[0] and (found[0] or rank == 2)


def test_one_process_has_nothing_to_overlap() -> None:
    plain, overlapping = (build("dead_codes", 3, **options) for options in BOTH)
    x = torch.randn(1, 40, 6)
    for module in (plain, overlapping):
        module(x)
        assert not in_flight(module)
    assert_equal(state_of(overlapping), state_of(plain))


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="at most one of overlap_sync and sync_every above 1"):
        VectorQuantize(DIM, 4, overlap_sync=True, sync_every=2)


def start(**others: Any) -> Any:
    """Starts a step through the underlying class, on one process."""
    state = build("default", 1)._codebook
    arguments = dict(
        state=state.state(),
        rng=[state.rng],
        x=[torch.zeros(1, 5, 6)],
        indices=[torch.zeros(1, 5, dtype=torch.long)],
        mask=[],
        weight=None,
        **dict(decay=0.8, eps=1e-5, metric="euclidean", ema_update=True, manual_ema_update=False),
        **dict(threshold=0.0, threshold_fraction=0.0, reset_cluster_size=0.0, vqp_compat=False),
        **dict(reduction="exact", signature="", group_name="none", label="quantizer"),
    )
    return torch.classes.torchvq.LearningInFlight(*(arguments | others).values())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"group_name": ""}, "expected a step of several ranks that learns"),
        ({"ema_update": False}, "expected a step of several ranks that learns"),
        ({"group_name": "none"}, "expected group_name to be the name of a living process group"),
        ({"indices": []}, "expected indices, and mask where there is one, for each of 1 levels"),
        ({"x": [], "indices": []}, "expected at least 1 and at most 1 levels"),
        ({"state": []}, "expected state to hold 4 or 9 tensors"),
        ({"x": [torch.zeros(1, 5, 3)] * 2, "indices": [torch.zeros(1, 5)] * 2}, "at most 1 levels"),
        ({"mask": [torch.ones(2, dtype=torch.bool)]}, "expected mask"),
        ({"reduction": "half"}, "expected reduction to be"),
    ],
)
def test_arguments_of_the_class_behind_it(others: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(**others)


# Faults -----------------------------------------------------------------------------------------------------


def trained(kind: str, rank: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    module = KINDS[kind](kmeans_init=True, threshold_ema_dead_code=1, **OVERLAP, **options)
    for step in range(2):
        module(tokens(rank, step).requires_grad_())[0].sum().backward()
    return module


def failed(module: nn.Module, rank: int, place: str) -> tuple[str, float, bool]:
    """The error of sending a step, or of waiting for it, the seconds it took, and whether the state is unchanged."""
    before = state_of(module)
    start = time.monotonic()

    def step() -> None:
        output = module(tokens(rank, 2).requires_grad_())[0]
        output.sum().backward() if place == "backward" else module.state_dict()

    message = outcome(step)
    seconds = time.monotonic() - start
    after = state_of(module)
    return message, seconds, all(torch.equal(after[n], value) for n, value in before.items())


def check(kind: str, answer: tuple[str, float, bool]) -> None:
    message, seconds, intact = answer
    assert message.startswith(f"DistBackendError: {OWNERS[kind]}, step 2: rank "), message
    assert "failed while sharing the statistics of the codes" in message
    assert "Likely reasons" in message
    assert seconds < 20 and intact


def die(rank: int, kind: str, place: str) -> Any:
    module = trained(kind, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return failed(module, rank, place)


@pytest.mark.parametrize("place", ["backward", "state_dict"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_killed(kind: str, place: str) -> None:
    ranks = Ranks(2)
    try:
        ranks.start(die, kind, place)
        check(kind, ranks.collect(range(1))[0])
    finally:
        ranks.close()


def lag(rank: int, kind: str) -> Any:
    module = trained(kind, rank, process_group=dist.new_group(timeout=TIMEOUT))
    if rank == 1:
        time.sleep(4)  # longer than the timeout of the group
        return None
    return failed(module, rank, "backward")


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_lags(two: Ranks, kind: str) -> None:
    check(kind, two.run(lag, kind)[0])


def disagree(rank: int) -> tuple[str, bool]:
    module = trained("VectorQuantize", rank, process_group=dist.new_group())
    if rank == 1:
        module._codebook.cluster_size[0, 0] += 1
    before = state_of(module)
    loss = module(tokens(rank, 2).requires_grad_())[0].sum()
    message = outcome(loss.backward)
    after = state_of(module)
    return message, all(torch.equal(after[n], value) for n, value in before.items())


def test_ranks_that_disagree_are_told_in_backward(ranks: Ranks) -> None:
    for message, intact in ranks.run(disagree):
        assert message.startswith(
            f"DistError: {OWNERS['VectorQuantize']}, step 2: expected all ranks"
        )
        assert intact


def dropped(rank: int, others_send: bool) -> list[Tensor]:
    """A module dropped with a message in flight, even one that other ranks never send, blocks nobody."""
    # Others give up at the barrier long before this rank would give up waiting for them.
    group = dist.new_group(timeout=2 * GROUP_TIMEOUT)
    module = trained("VectorQuantize", rank, process_group=group)
    if rank == 0 or others_send:
        output = module(tokens(rank, 2).requires_grad_())[0]
        assert in_flight(module)
        gone = weakref.ref(module._codebook)
        del module
        gc.collect()
        assert gone() is None
        output.sum().backward()
    dist.barrier()
    if not others_send:
        return []
    return list(state_of(trained("VectorQuantize", rank, process_group=group)).values())


@pytest.mark.parametrize("others_send", [True, False])
def test_a_module_is_dropped_in_flight(two: Ranks, others_send: bool) -> None:
    first, second = two.run(dropped, others_send)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    # The default group still works.
    assert two.run(in_parallel, "default", OVERLAP, {})


def read_by_a_forked_child(rank: int) -> tuple[list[str], list[Tensor]]:
    """The errors of two reads in a child that begins with a message in flight, and what the parent learns."""
    module = trained("VectorQuantize", rank)
    output = module(tokens(rank, 2).requires_grad_())[0]
    assert in_flight(module)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        theirs.send([outcome(module.state_dict), outcome(module.eval)])
        os._exit(0)
    found = ours.recv() if ours.poll(GROUP_TIMEOUT.total_seconds()) else ["no answer"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    output.sum().backward()
    return found, list(state_of(module).values())


def test_a_forked_child_does_not_wait_for_the_message(two: Ranks) -> None:
    (errors, first), (_, second) = two.run(read_by_a_forked_child)
    assert all("expected a forked process to begin between steps" in error for error in errors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


END = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from torchvq import VectorQuantize
store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=5))
torch.manual_seed(0)
vq = VectorQuantize(6, 16, overlap_sync=True)
for _ in range(2):
    vq(torch.randn(1, 30, 6))
assert vq._codebook.__class__.__mro__[1].__name__ == "_Unsettled"
if len(sys.argv) > 3:
    dist.destroy_process_group()
print("fine")
"""


@pytest.mark.parametrize("destroys", [[], ["destroy"]])
def test_a_process_ends_with_a_message_in_flight(tmp_path: Any, destroys: list[str]) -> None:
    import subprocess

    command = [sys.executable, "-c", END, str(tmp_path / "store")]
    processes = [
        subprocess.Popen([*command, str(rank), *destroys], stdout=-1, stderr=-1, text=True)
        for rank in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=timedelta(seconds=90).total_seconds())
        assert process.returncode == 0 and out == "fine\n", err
