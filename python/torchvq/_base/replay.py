"""Records of checkpointed steps: the recomputation in backward runs on the state with which the step began."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchvq._base import checkpointing as _checkpointing
from torchvq._base.options import keep_values
from torchvq._base.readable import version_of
from torchvq._base.torch_private import Recomputation, checkpointed_regions, uncounted

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

_T = TypeVar("_T")


class Replay:
    """The state with which a checkpointed forward searched.

    Its recomputations search with the same codes and learn nothing, so each step is learnt and exchanged once.
    """

    def __init__(self, initialised: bool) -> None:
        self.initialised = initialised  # when the step began
        self.buffers: dict[str, Tensor | None] = {}
        self.embed: Tensor | None = None
        # If averages move codes that are a parameter: the codes after each update of the step.
        self.settled: list[Tensor] = []
        self.totals: list[Tensor] = []
        # Codes of each search, if the step moves codes between searches.
        self.searched: list[Tensor] = []
        self.search = 0  # the search whose codes a recomputation uses

    @uncounted
    def capture(self, codebook: "Codebook") -> None:
        """Copies the state at the beginning of the search."""
        self.buffers = {
            name: None if b is None else b.clone() for name, b in codebook._buffers.items()
        }
        if isinstance(codebook.embed, nn.Parameter):
            self.embed = _copy(codebook.embed)

    def put_codes_of(self, search: int) -> None:
        """Replaces the codes by those of a later search in the step."""
        self.search, codes = search, self.searched[search]
        if self.embed is None:
            self.buffers["embed"] = codes
        else:
            self.embed = codes

    def for_one_run(self) -> "Replay":
        """A copy that one recomputation may work on, and change; another one may follow."""
        replay = copy.copy(self)
        replay.buffers = dict(self.buffers)
        return replay

    @contextmanager
    def installed(self, codebook: "Codebook") -> Iterator[None]:
        """Makes a codebook work on this record instead of its own state."""
        present = codebook._buffers
        codebook._buffers, codebook._replay = self.buffers, self
        try:
            yield
        finally:
            codebook._buffers, codebook._replay = present, None


class _Calls(Generic[_T]):
    """The records of one module in one checkpointed region, in the order of its forwards there."""

    def __init__(self) -> None:
        self.kept: list[_T | None] = []
        self._run: object = None
        self._taken = 0  # in this run of the region

    def add(self, record: _T) -> None:
        """Adds a record, once."""
        if not any(kept is record for kept in self.kept):
            self.kept.append(record)

    def take(self, recomputation: Recomputation) -> _T | None:
        """The record of the next forward in this run, which repeats the forwards of the first one in their order."""
        if recomputation.run != self._run:
            self._run, self._taken = recomputation.run, 0
        place = self._taken
        self._taken += 1
        if place >= len(self.kept):
            return None
        record = self.kept[place]
        if recomputation.last:
            self.kept[place] = None
        return record


class StepRecords(Generic[_T]):
    """Records of checkpointed forwards, for their recomputations in backward.

    A record belongs to the regions that may recompute its forward, and is deleted with the last of their graphs.
    """

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[Any, _Calls[_T]] = WeakKeyDictionary()

    def __len__(self) -> int:
        kept = (record for calls in self._calls.values() for record in calls.kept)
        return len({id(record) for record in kept if record is not None})

    def keep(self, record: _T) -> bool:
        """Keeps a record if the running forward will be recomputed; returns whether it did."""
        if not _checkpointing.is_checkpointed():
            return False
        opened = checkpointed_regions().opened
        self._keep_for(opened, record)
        return bool(opened)

    def take(self) -> _T | None:
        """The record of this forward if it is a recomputation, else None; to be called once in a forward."""
        if not _checkpointing.is_checkpointed():
            return None
        opened, recomputation = checkpointed_regions()
        if recomputation is None or recomputation.region not in self._calls:
            return None
        record = self._calls[recomputation.region].take(recomputation)
        if record is not None:
            # Regions inside the one that is recomputed are new, and backward recomputes them in their turn.
            self._keep_for(opened, record)
        return record

    def _keep_for(self, regions: list[Any], record: _T) -> None:
        for region in regions:
            self._calls.setdefault(region, _Calls()).add(record)

    def __reduce__(self) -> tuple[type["StepRecords[_T]"], tuple[()]]:
        # A record belongs to backward passes of one object, not to a copy.
        return StepRecords, ()


@uncounted
def _copy(codes: Tensor) -> Tensor:
    return codes.detach().clone()


class _Settled(torch.autograd.Function):
    """Values with the gradient of a parameter. Its only operator is one that selective checkpoints do not count, as the
    first run has none.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, parameter: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor | None]:
        return None, gradients[0]


class Replayed:
    """A codebook whose steps may lie in checkpointed regions."""

    embed: Tensor
    _replays: StepRecords[Replay]
    _recording: Replay | None
    _replay: Replay | None

    def _forget_replays(self) -> None:
        records: StepRecords[Replay] = StepRecords()
        keep_values(cast("Codebook", self), _replays=records, _recording=None, _replay=None)

    @contextmanager
    def recorded_step(self) -> Iterator[None]:
        """Runs a training forward so that its recomputations in backward see, and leave, the right state.

        The first run of a checkpointed region records the state it starts from; each other run works on that
        record instead of the module's state, so codes, noise and gradients are the same and nothing is updated
        twice.
        """
        replay = self._replays.take()
        if replay is not None:
            with replay.for_one_run().installed(cast("Codebook", self)):
                yield
            return
        record = Replay(cast("Codebook", self).initialised)
        self._recording = record if self._replays.keep(record) else None
        before = version_of(self.embed)
        try:
            yield
            moved = version_of(self.embed) != before
            if self._recording is not None and moved and isinstance(self.embed, nn.Parameter):
                record.settled = [*record.searched[1:], _copy(self.embed)]
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
            self._recording.embed = _copy(self.embed)

    def search_in_turn(self, number: int) -> None:
        """Records, or in a recomputation restores, the codes of one search, if a step moves codes between searches."""
        if self._replay is not None:
            self._replay.put_codes_of(number)
        elif self._recording is not None:
            self._recording.searched.append(_copy(self.embed))

    def settled_embed(self) -> Tensor:
        """The codes after the update, from which losses are computed. A recomputation gets the recorded ones, with the
        gradient to the present parameter.
        """
        replay = self._replay
        if replay is None or (replay.embed is None and not replay.settled):
            return self.embed
        # A step that moved no codes left those with which it began; other steps may have moved them since.
        settled = replay.settled[replay.search] if replay.settled else replay.embed
        codes: Tensor = _Settled.apply(settled, self.embed)  # type: ignore[no-untyped-call]
        return codes

    def record_totals(self, totals: list[Tensor]) -> None:
        """Keeps the totals over ranks for a recomputation."""
        if self._recording is not None:
            self._recording.totals = [total.detach() for total in totals]

    def recorded_totals(self) -> list[Tensor]:
        """The totals over ranks of the recorded step; empty in the first run of a step."""
        return [] if self._replay is None else self._replay.totals
