"""Records of checkpointed steps: the recomputation in backward runs on the state with which the step began."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from torchvq._base import checkpointing as _checkpointing
from torchvq._base.options import keep_values

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

# A record waits for a backward pass that may never come, so their number is bounded.
MAX_REPLAYS = 32


_T = TypeVar("_T")


class Replay:
    """The state with which a checkpointed forward searched, and the key by which its recomputation finds it.

    The recomputation searches with the same codes and learns nothing, so each step is learnt and exchanged once.
    """

    def __init__(self, key: tuple[torch.Size, int], initialised: bool) -> None:
        self.key = key
        self.initialised = initialised  # when the step began
        self.buffers: dict[str, Tensor | None] = {}
        self.embed: Tensor | None = None
        self.totals: list[Tensor] = []
        self.searched: list[Tensor] = []

    def capture(self, codebook: "Codebook") -> None:
        """Copies the state at the beginning of the search."""
        self.buffers = {
            name: None if b is None else b.clone() for name, b in codebook._buffers.items()
        }
        if isinstance(codebook.embed, nn.Parameter):
            self.embed = codebook.embed.detach().clone()

    def put_codes(self, codes: Tensor) -> None:
        """Replaces the codes for the rest of the recomputation."""
        if self.embed is None:
            self.buffers["embed"] = codes
        else:
            self.embed = codes

    @contextmanager
    def installed(self, codebook: "Codebook") -> Iterator[None]:
        """Makes a codebook work on this record instead of its own state."""
        present = codebook._buffers
        codebook._buffers, codebook._replay = self.buffers, self
        try:
            yield
        finally:
            codebook._buffers, codebook._replay = present, None


def fingerprint(x: Tensor) -> tuple[torch.Size, int]:
    """A key of an input: its shape, and a hash of each row, weighted by the row's place."""
    if not x.numel():
        return x.shape, 0
    rows = torch.hash_tensor(x.detach().flatten(0, -2), dim=-1).view(torch.int64)
    places = torch.arange(rows.numel(), device=rows.device).mul_(2).add_(1)
    return x.shape, int(rows.mul(places).sum())


class Replayed:
    """A codebook whose steps may lie in checkpointed regions."""

    embed: Tensor
    _replays: deque[Replay]
    _recording: Replay | None
    _replay: Replay | None

    def _forget_replays(self) -> None:
        replays: deque[Replay] = deque(maxlen=MAX_REPLAYS)
        keep_values(cast("Codebook", self), _replays=replays, _recording=None, _replay=None)

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
                self._recording = Replay(fingerprint(x), cast("Codebook", self).initialised)
                self._replays.append(self._recording)
            try:
                yield
            finally:
                self._recording = None

    def begin_record(self) -> None:
        """Copies the state at the beginning of the search, if the step will be recomputed."""
        if self._recording is not None:
            self._recording.capture(cast("Codebook", self))

    @property
    def recording(self) -> bool:
        """Whether the running forward will be recomputed."""
        return self._recording is not None

    @property
    def replaying(self) -> bool:
        """Whether the running forward is the recomputation of a recorded one."""
        return self._replay is not None

    def record_embed(self) -> None:
        """Updates the recorded parameter after it moved within the step, before the search."""
        if self._recording is not None:
            self._recording.embed = self.embed.detach().clone()

    def search_in_turn(self, number: int) -> None:
        """Records, or in a recomputation restores, the codes of one search, if a step moves codes between searches."""
        if self._replay is not None:
            self._replay.put_codes(self._replay.searched[number])
        elif self._recording is not None:
            self._recording.searched.append(self.embed.detach().clone())

    def record_totals(self, totals: list[Tensor]) -> None:
        """Keeps the totals over ranks for a recomputation."""
        if self._recording is not None:
            self._recording.totals = totals

    def recorded_totals(self) -> list[Tensor]:
        """The totals over ranks of the recorded step; empty in the first run of a step."""
        return [] if self._replay is None else self._replay.totals

    @contextmanager
    def _replaying(self, x: Tensor) -> Iterator[None]:
        # Backward recomputes the regions from last to first, so of records with equal inputs the latest is taken.
        key = fingerprint(x)
        replay = next((replay for replay in reversed(self._replays) if replay.key == key), None)
        if replay is None:
            yield
            return
        self._replays.remove(replay)
        with replay.installed(cast("Codebook", self)):
            yield

    def __getstate__(self) -> dict[str, Any]:
        # A record belongs to a backward pass of this very object, not to a copy.
        return {**self.__dict__, "_replays": deque(maxlen=MAX_REPLAYS)}


class StepRecords(Generic[_T]):
    """Records of checkpointed forwards, for their recomputation in backward."""

    def __init__(self) -> None:
        self._kept: deque[tuple[tuple[torch.Size, int], _T]] = deque(maxlen=MAX_REPLAYS)

    def keep(self, x: Tensor, item: _T) -> bool:
        """Keeps an item if the running forward on x will be recomputed; returns whether it did."""
        keeps = not torch.compiler.is_compiling() and _checkpointing.will_recompute()
        if keeps:
            self._kept.append((fingerprint(x), item))
        return keeps

    def take(self, x: Tensor) -> _T | None:
        """The item kept for this forward on x if it is a recomputation, else None."""
        if torch.compiler.is_compiling() or not _checkpointing.recomputing():
            return None
        # Backward recomputes the regions from last to first, so of records with equal inputs the latest is taken.
        key = fingerprint(x)
        for place in range(len(self._kept) - 1, -1, -1):
            if self._kept[place][0] == key:
                item = self._kept[place][1]
                del self._kept[place]
                return item
        return None

    def __deepcopy__(self, memo: object) -> "StepRecords[_T]":
        # A record belongs to a backward pass of one object, not to a copy.
        return StepRecords()

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": deque(maxlen=MAX_REPLAYS)}
