"""`overlap_sync`: a step whose message overlaps with backward equals, bit for bit, a step that waits in forward."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks
from test_modules import CASES, DIM, batch, build, shares_of
from torch import Tensor, nn

import torchvq
from torchvq import ResidualVQ, VectorQuantize

STEPS = 10
State = dict[str, Tensor]
# Codes that are parameters never overlap.
OVERLAPPING = [case for case in CASES if case != "orthogonal"]


def books(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if type(m).__name__ == "Codebook"]


def in_flight(module: nn.Module) -> bool:
    return any(book.step_in_flight is not None for book in books(module))


def state_of(module: nn.Module) -> State:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_equal(found: State, right: State, where: Any = None) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert torch.equal(found[name], value), (where, name)


def tokens_of(rank: int, size: int, step: int) -> tuple[Tensor, Tensor]:
    x, mask = batch(step, shares_of(step, size))
    return x[rank].clone().requires_grad_(), mask[rank]


# The same bits ----------------------------------------------------------------------------------------------


def train(rank: int, size: int, case: str, options: dict[str, Any]) -> Any:
    """After each step: outputs, gradient of the tokens, state, whether it was in flight, and collectives."""
    module = build(case, 100 + rank, **options)
    found = []
    for step in range(STEPS):
        x, mask = tokens_of(rank, size, step)
        torch.ops.torchvq.reset_traffic()
        quantized, indices, loss = module(x, mask=mask)
        waits = in_flight(module)
        if step % 4 != 3:  # every fourth step has no backward
            (quantized.square().sum() + loss.sum()).backward()
            assert not in_flight(module)
        state = state_of(module)
        used = [book.replaced.clone() for book in books(module)]
        sent = tuple(torch.ops.torchvq.traffic())
        gradient = torch.zeros(0) if x.grad is None else x.grad
        found.append(([quantized, indices, loss, gradient, *used], state, waits, sent))
        if step % 5 == 4:
            module.eval()(x)
            module.train()
    return [([part.detach() for part in own], *others) for own, *others in found]


@pytest.mark.parametrize("reduction", ["exact", "float"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_and_no_more_messages(ranks: Ranks, case: str, reduction: str) -> None:
    """Unequal, empty and masked ranks, k-means, dead codes, stacks, groups, dropout; outputs and gradients, too."""
    options = {"reduction": reduction}
    waiting = ranks.run(train, ranks.size, case, options)
    overlapping = ranks.run(train, ranks.size, case, options | {"overlap_sync": True})
    for rank, (found, right) in enumerate(zip(overlapping, waiting, strict=True)):
        for step, (own, expected) in enumerate(zip(found, right, strict=True)):
            assert own[2] == (case in OVERLAPPING) and not expected[2]
            assert own[3] == expected[3], (rank, step)
            assert_equal(own[1], expected[1], (rank, step))
            for part, value in zip(own[0], expected[0], strict=True):
                assert torch.equal(part, value), (rank, step)


def train_beam_as_in_the_reference(rank: int, size: int, overlap: bool) -> State:
    torch.manual_seed(0)
    stack = ResidualVQ(
        dim=DIM,
        num_quantizers=3,
        codebook_size=24,
        beam_size=2,
        vqp_compat=True,
        overlap_sync=overlap,
    )
    for step in range(STEPS):
        x, mask = tokens_of(rank, size, step)
        quantized, _, loss = stack(x, mask=mask)
        (quantized.square().sum() + loss.sum()).backward()
    return state_of(stack)


def test_a_beam_whose_first_level_alone_learns_moves_all_generators(ranks: Ranks) -> None:
    waiting = ranks.run(train_beam_as_in_the_reference, ranks.size, False)
    overlapping = ranks.run(train_beam_as_in_the_reference, ranks.size, True)
    for rank, (found, right) in enumerate(zip(overlapping, waiting, strict=True)):
        assert_equal(found, right, rank)
        assert right["layers.2._codebook.rng"][1] > 0


# Whoever looks waits ----------------------------------------------------------------------------------------


def held(name: str) -> Callable[[VectorQuantize], Any]:
    return lambda vq: getattr(vq._codebook, name).clone()


def pickled(vq: VectorQuantize) -> State:
    return state_of(pickle.loads(pickle.dumps(vq)))


def saved(vq: VectorQuantize) -> State:
    file = io.BytesIO()
    torch.save(vq.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def expired(vq: VectorQuantize) -> State:
    vq.expire_codes_(torch.ones(1, 30, DIM))
    return state_of(vq)


def updated(vq: VectorQuantize) -> State:
    x = torch.ones(1, 30, DIM)
    vq.update_ema_indices(x, torch.zeros(1, 30, dtype=torch.long))
    return state_of(vq)


def set_anew(vq: VectorQuantize) -> State:
    vq.codebook = torch.ones_like(vq.codebook)
    return state_of(vq)


def loaded(vq: VectorQuantize) -> State:
    """A load in the middle of a step: the step must not be added to the loaded state."""
    vq.load_state_dict({name: torch.ones_like(value) for name, value in vq.state_dict().items()})
    return state_of(vq)


def assigned(vq: VectorQuantize) -> State:
    vq._codebook.embed = torch.full_like(vq._codebook.__dict__["_buffers"]["embed"], 2.0)
    return state_of(vq)


def called_with_other_buffers(vq: VectorQuantize) -> Any:
    others = {name: value.clone() for name, value in vq.named_buffers()}
    torch.func.functional_call(vq, others, (torch.ones(1, 30, DIM),))
    return others | {f"own {name}": value for name, value in state_of(vq).items()}


def evaluated(vq: VectorQuantize) -> Any:
    return vq.eval()(torch.linspace(-1, 1, 30 * DIM).view(1, 30, DIM))[:2]


READERS: dict[str, Callable[[VectorQuantize], Any]] = {
    **{name: held(name) for name in ("embed", "cluster_size", "embed_avg", "rng")},
    "replaced": held("replaced"),
    "initted": held("initted"),
    "codebook": lambda vq: vq.codebook.clone(),
    "state_dict": state_of,
    "save": saved,
    "load_state_dict": loaded,
    "buffers": lambda vq: [buffer.clone() for buffer in vq.buffers()],
    "named_buffers": lambda vq: {n: buffer.clone() for n, buffer in vq.named_buffers()},
    "get_buffer": lambda vq: vq.get_buffer("_codebook.embed").clone(),
    "_buffers": lambda vq: {n: b.clone() for n, b in vq._codebook._buffers.items()},
    "vars": lambda vq: vars(vq._codebook)["_buffers"]["embed"].clone(),
    "stats": lambda vq: torch.tensor(vq.stats()),
    "synced stats": lambda vq: torch.tensor(vq.stats(synced=True)),
    "evaluation": evaluated,
    "next step": lambda vq: (vq(torch.ones(1, 30, DIM)), state_of(vq))[1],
    "frozen step": lambda vq: vq(torch.ones(1, 30, DIM), freeze_codebook=True)[:2],
    "codes": lambda vq: vq.get_codes_from_indices(torch.arange(24).view(1, -1)),
    "output": lambda vq: vq.get_output_from_indices(torch.arange(24).view(1, -1)),
    "deepcopy": lambda vq: state_of(copy.deepcopy(vq)),
    "deepcopy of the codebook": lambda vq: state_of(copy.deepcopy(vq._codebook)),
    "pickle": pickled,
    "double": lambda vq: state_of(vq.double()),
    "to": lambda vq: state_of(vq.to("cpu", torch.float64)),
    "half": lambda vq: state_of(vq.half()),
    "expire_codes_": expired,
    "update_ema_indices": updated,
    "codebook =": set_anew,
    "embed =": assigned,
    "functional_call": called_with_other_buffers,
    "verify_replicas": lambda vq: (torchvq.verify_replicas(vq), state_of(vq))[1],
}


def flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    parts = found.values() if isinstance(found, dict) else found
    return [part for part in parts if isinstance(part, Tensor)]


def read(rank: int, size: int, overlap: bool) -> dict[str, list[Tensor]]:
    """The result of each reader between forward and backward, each on a separate module."""
    found = {}
    for name, reader in READERS.items():
        vq = build("dead_codes", 7, overlap_sync=overlap)
        for step in range(3):
            x, mask = tokens_of(rank, size, step)
            quantized, *_ = vq(x, mask=mask)
        assert in_flight(vq) == overlap
        seen = [part.detach().clone() for part in flat(reader(vq))]
        assert not in_flight(vq), name
        assert type(vq._codebook) is torchvq.codebook.Codebook, name
        quantized.sum().backward()
        found[name] = [*seen, *state_of(vq).values()]
    return found


def test_every_reader_sees_the_step(ranks: Ranks) -> None:
    waiting, overlapping = (ranks.run(read, ranks.size, overlap) for overlap in (False, True))
    for found, right in zip(overlapping, waiting, strict=True):
        assert found.keys() == right.keys() == READERS.keys()
        for name, parts in found.items():
            for own, expected in zip(parts, right[name], strict=True):
                assert torch.equal(own, expected), name


def read_by_threads(rank: int, size: int) -> list[list[State]]:
    """What several threads, such as a logger's and a saver's, see at once between forward and backward."""
    vq = build("dead_codes", 7, codebook_size=2048, overlap_sync=True)
    found = []
    for step in range(STEPS):
        x, mask = tokens_of(rank, size, step)
        quantized, *_ = vq(x, mask=mask)
        seen: list[State] = []
        together = threading.Barrier(4)

        def look(together: threading.Barrier = together, seen: list[State] = seen) -> None:
            together.wait()
            seen.append(state_of(vq))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        quantized.sum().backward()
        found.append([*seen, state_of(vq)])
    return found


def test_threads_that_read_at_once_see_the_step(two: Ranks) -> None:
    for steps in two.run(read_by_threads, 2):
        for step, states in enumerate(steps):
            assert len(states) == 5
            for state in states:
                assert_equal(state, states[-1], step)
