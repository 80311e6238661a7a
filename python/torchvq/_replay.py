"""What a module with state keeps of a checkpointed step, so that its recomputation in backward finds the state it began with."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchvq import _checkpointing

# Replays wait for a backward pass that may never come, so their number is bounded.
MAX_REPLAYS = 32


class Replay:
    """The state with which a checkpointed forward searched, and what tells which forward that was.

    Its recomputation searches with the same codes and learns nothing: neither state nor ranks hear of it twice.
    """

    def __init__(self, key: tuple[torch.Size, int]) -> None:
        self.key = key
        self.buffers: dict[str, Tensor | None] = {}
        self.embed: Tensor | None = None
        self.totals: list[Tensor] = []

    def capture(self, module: nn.Module) -> None:
        """Keeps the state as it is when the search begins."""
        self.buffers = {
            name: None if b is None else b.clone() for name, b in module._buffers.items()
        }
        embed = module._parameters.get("embed")
        if embed is not None:
            self.embed = embed.detach().clone()

    @contextmanager
    def installed(self, module: "Replayable") -> Iterator[None]:
        """Makes a module work on this record."""
        present = module._buffers
        module._buffers, module._replay = self.buffers, self
        try:
            yield
        finally:
            module._buffers, module._replay = present, None


class Replayable(nn.Module):
    """A module whose training forward changes its buffers, and may run inside activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self._replays: deque[Replay] = deque(maxlen=MAX_REPLAYS)
        self._recording: Replay | None = None
        self._replay: Replay | None = None

    @contextmanager
    def step_of(self, x: Tensor) -> Iterator[None]:
        """Runs a training forward so that its recomputation in backward sees, and leaves, the right state.

        The first run of a checkpointed region records the state it starts from; the second run works on that
        record instead of the module's state, so codes, noise and gradients are the same and nothing is updated
        twice.
        """
        if torch.compiler.is_compiling():
            yield
        elif _checkpointing.recomputing():
            with self._replaying(x):
                yield
        else:
            if _checkpointing.will_recompute():
                self._recording = Replay(fingerprint(x))
                self._replays.append(self._recording)
            try:
                yield
            finally:
                self._recording = None

    @property
    def replaying(self) -> bool:
        """Whether the running forward is the recomputation of a recorded one."""
        return self._replay is not None

    def record_state(self) -> None:
        """Keeps for a recomputation the state as it is now; nothing happens outside of a checkpointed region."""
        if self._recording is not None:
            self._recording.capture(self)

    def record_totals(self, totals: list[Tensor]) -> None:
        """Keeps for a recomputation what ranks have added up."""
        if self._recording is not None:
            self._recording.totals = totals

    def recorded_totals(self) -> list[Tensor]:
        """What the recorded step has added up with the other ranks."""
        assert self._replay is not None
        return self._replay.totals

    @contextmanager
    def _replaying(self, x: Tensor) -> Iterator[None]:
        # Backward meets the regions last to first, which decides between equal inputs.
        key = fingerprint(x)
        replay = next((replay for replay in reversed(self._replays) if replay.key == key), None)
        if replay is None:
            yield
            return
        self._replays.remove(replay)
        with replay.installed(self):
            yield

    def __getstate__(self) -> dict[str, Any]:
        # A recorded step belongs to a backward pass of this very object.
        return {**self.__dict__, "_replays": deque(maxlen=MAX_REPLAYS)}


def fresh_rng() -> Tensor:
    """State of a generator: a seed from torch's generator, and step 0."""
    seed = torch.randint(2**62, (), device="cpu")
    return torch.stack([seed, torch.zeros((), dtype=torch.long, device="cpu")])


def fingerprint(x: Tensor) -> tuple[torch.Size, int]:
    """What tells one input from another: a hash of each row, weighted by its place."""
    if not x.numel():
        return x.shape, 0
    rows = torch.hash_tensor(x.detach().flatten(0, -2), dim=-1).view(torch.int64)
    places = torch.arange(rows.numel(), device=rows.device).mul_(2).add_(1)
    return x.shape, int(rows.mul(places).sum())
