"""The state of a codebook, and what changes it: initialisation, moving averages, dead codes, casts, checkpoints."""

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchvq._base.added_state import AddedState
from torchvq._base.affine_map import AFFINE_FLAGS, AFFINE_STATE, AffineMap
from torchvq._base.arguments import expect_tensor
from torchvq._base.assigned_codes import AssignedCodes
from torchvq._base.ema_weight import EmaWeight, Statistics, weight_of
from torchvq._base.kept_statistics import KeptStatistics
from torchvq._base.not_here import MethodsOfReference
from torchvq._base.options import keep_values, named
from torchvq._base.own_handle import OwnHandle
from torchvq._base.random_state import fresh_rng, rng_beside
from torchvq._base.ranks import ALONE, Ranks
from torchvq._base.readable import is_known_flag, is_readable_after_wait, shared_flag, version_of
from torchvq._base.replay import Replayed
from torchvq._base.sharded import keep_in_shards
from torchvq._base.signature import signature_of
from torchvq._base.torch_private import is_mapped, uncounted
from torchvq._base.wide_buffers import HALF, wide_dtype

if TYPE_CHECKING:
    from torchvq._codebook.in_flight import StepInFlight

logger = logging.getLogger("torchvq")
_ops = torch.ops.torchvq

# State that training changes besides the codes, in the order of the operators' arguments.
_TRAINED = ("cluster_size", "embed_avg", "replaced")


class Codebook(
    MethodsOfReference,
    AssignedCodes,
    OwnHandle,
    Replayed,
    AffineMap,
    AddedState,
    KeptStatistics,
):
    """State of one or several codebooks (``H`` of them, each ``K`` codes of ``D`` features).

    ==================  ==========  =============================================================
    state               shape       meaning
    ==================  ==========  =============================================================
    ``initted``         ()          bool; False until k-means has set the codes
    ``cluster_size``    (H, K)      moving average of the tokens per step and code
    ``embed_avg``       (H, K, D)   moving average of the sum of the tokens of each code
    ``embed``           (H, K, D)   the codes; a parameter when they learn by gradient
    ``rng``             (2,)        int64; seed and step of the counter-based generator
    ==================  ==========  =============================================================

    Floating-point state stays float32 (float64 once the module was cast to double) under ``.half()``, ``.bfloat16()``
    and wrappers: moving averages would stall in half precision. A parameter ``embed`` follows the casts of the module.
    ``KeptStatistics`` lists the further state with ``sync_every`` above 1.
    """

    replaced: Tensor

    decay: float
    eps: float
    use_cosine_sim: bool
    kmeans_iters: int
    threshold_ema_dead_code: float
    dead_code_threshold_fraction: float
    reset_cluster_size: float
    manual_ema_update: bool
    overlap_sync: bool
    # Attributes of the codebook because they are in the reference, whose users set them there while they train.
    ema_update: bool
    sample_codebook_temp: float

    #: The step whose message is in flight; see ``_codebook/in_flight.py``.
    step_in_flight: "StepInFlight | None"
    _initialised: bool
    #: The flag whose value is known, and its version then.
    _initialised_flag: tuple[Tensor, int] | None
    _warned_uninitialised: bool
    _signed: tuple[object, str] = (None, "")  # options, and the text for them

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        num_codebooks: int = 1,
        *,
        decay: float = 0.8,
        eps: float = 1e-5,
        use_cosine_sim: bool = False,
        kmeans_init: bool = False,
        kmeans_iters: int = 10,
        threshold_ema_dead_code: float = 0,
        dead_code_threshold_fraction: float = 0.0,
        manual_ema_update: bool = False,
        parameter: bool = False,
        vq_bridge: nn.Module | None = None,
        affine_param: bool = False,
        affine_param_batch_decay: float = 0.99,
        affine_param_codebook_decay: float = 0.9,
        vqp_compat: bool = False,
        sync_every: int = 1,
        overlap_sync: bool = False,
        ema_update: bool = True,
        sample_codebook_temp: float = 1.0,
    ) -> None:
        super().__init__()
        kept = named(
            locals(),
            "codebook_size num_codebooks decay eps use_cosine_sim kmeans_iters "
            "threshold_ema_dead_code dead_code_threshold_fraction manual_ema_update affine_param "
            "affine_param_batch_decay affine_param_codebook_decay vqp_compat overlap_sync "
            "ema_update sample_codebook_temp",
        )
        keep_values(
            self,
            **kept,
            reset_cluster_size=threshold_ema_dead_code,
            # State between steps.
            step_in_flight=None,
            _initialised=not kmeans_init,
            _initialised_flag=None,
            _warned_uninitialised=False,
        )

        wide = wide_dtype()
        embed = torch.empty(num_codebooks, codebook_size, dim, dtype=wide)
        nn.init.kaiming_uniform_(embed)
        if use_cosine_sim:
            embed = _ops.unit_vectors(embed)
        self.register_buffer("initted", torch.tensor(not kmeans_init))
        self.register_buffer("cluster_size", torch.ones(num_codebooks, codebook_size, dtype=wide))
        self.register_buffer("embed_avg", embed.clone())
        if parameter:
            self.embed = nn.Parameter(embed.to(torch.get_default_dtype()))
        else:
            self.register_buffer("embed", embed)
        if affine_param:
            self.register_affine_state(num_codebooks, dim)
        self.register_buffer("rng", fresh_rng())
        # Codes that the last step that learns replaced; for ``stats``, not part of checkpoints.
        replaced = torch.zeros(num_codebooks, dtype=torch.long)
        self.register_buffer("replaced", replaced, persistent=False)
        self.vq_bridge = vq_bridge
        self.keep_statistics(sync_every, embed, self.has_dead_code_replacement)

        self._forget_replays()
        self.handle = _ops.new_handle()

    # Reading -------------------------------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The name of the metric for operators."""
        return "cosine" if self.use_cosine_sim else "euclidean"

    @property
    def signature(self) -> str:
        """The options in which all ranks must agree, as text."""
        return signature_of(self)

    @property
    def step_rng(self) -> Tensor:
        """The generator for the operators of a step."""
        # Attributes of a module take ten times as long, in every step.
        own: dict[str, Any] = self._buffers
        return rng_beside(own["cluster_size"], own["rng"])

    @property
    def has_dead_code_replacement(self) -> bool:
        """Whether a training step replaces dead codes."""
        return self.threshold_ema_dead_code > 0 or self.dead_code_threshold_fraction > 0

    @property
    def initialised(self) -> bool:
        """Whether the codes are set: False only between construction with k-means and the first training step.

        Set ``initted`` to False to repeat k-means: in place (``initted.fill_(False)``), or by assigning a tensor. On a
        GPU with a process group only an assignment is noticed, because reading the flag would wait. Compiled code
        notices either only after this property was read outside it. Writes through ``initted.data`` are never noticed.
        """
        if torch.compiler.is_compiling():
            # Compiled code cannot read the flag, and is guarded by the value that is known.
            return self._initialised
        # Other code may write to the flag (a broadcast, an average of models), or replace it (functional_call).
        flag: Any = self._buffers["initted"]
        if is_known_flag(flag, self._initialised_flag):
            return self._initialised
        if is_mapped(flag):
            return shared_flag(flag)
        if is_readable_after_wait(flag):
            self._initialised = bool(flag)
            # No step resets it, so True needs no further read of the tensor, for which a GPU would have to wait.
            self._initialised_flag = (flag, version_of(flag)) if self._initialised else None
        return self._initialised

    @property
    def begins_initialised(self) -> bool:
        """Whether the current step began with codes that were set; its recomputation takes the same branch."""
        return self.initialised if self._replay is None else self._replay.initialised

    def codes(self) -> Tensor:
        """The codes (H, K, D) for search, output and decoding: ``embed``, after the bridge or affine map."""
        embed = self.checked_embed()
        if self._replay is not None and self._replay.embed is not None:
            # The value of the recorded step, with the gradient to the current parameter.
            embed = _ops.straight_through(embed, self._replay.embed)
        elif self.recording and torch.is_grad_enabled() and "embed" in self._parameters:
            # Selective checkpointing expects a recomputation to call the operators of the first run.
            embed = _ops.straight_through(embed, embed.detach())
        if self.vq_bridge is not None:
            # A copy, because this step may replace dead codes before backward has used them.
            bridged = self.vq_bridge(_ops.snapshot(embed))
            expect_tensor("VectorQuantize", "the result of vq_bridge", bridged)
            if bridged.shape != embed.shape:
                raise ValueError(
                    f"VectorQuantize: expected vq_bridge to return codes of shape {list(embed.shape)}, "
                    f"but got {list(bridged.shape)}"
                )
            embed = bridged
        if self.affine_param:
            return _ops.affine_codes(embed, *self.affine_state())
        return embed

    def wide_embed(self) -> Tensor:
        """The codes in the dtype of the moving averages, for writing; ``store_embed`` completes the write."""
        embed = self.embed.detach()
        if embed.dtype not in HALF:
            return embed
        return _ops.wide_codes(
            embed, self.cluster_size, self.embed_avg, eps=self.eps, metric=self.metric
        )

    def store_embed(self, wide: Tensor) -> None:
        """Writes the changed ``wide_embed`` back."""
        if self.embed.dtype in HALF:
            # The operators write float32 state; a parameter in half precision gets the rounded values.
            self.embed.detach().copy_(wide)
        self.keep_in_shards()

    def keep_in_shards(self) -> None:
        """To be called after a write to the codes, which may be a parameter that FSDP2 shards."""
        if "embed" in self._parameters:
            keep_in_shards(self)

    def replicated_state(self, affine: bool) -> dict[str, Tensor]:
        """State that ranks share, by name, with the statistics of the affine map if ``affine``."""
        names = ["initted", "cluster_size", "embed_avg", "embed", "rng"]
        if affine and self.affine_param:
            names += [*AFFINE_STATE, *AFFINE_FLAGS]
        return {name: getattr(self, name) for name in names} | self.kept_by_all()

    # Learning ------------------------------------------------------------------------------------------------

    def prepare(
        self,
        x: Tensor,
        mask: Tensor | None,
        training: bool,
        ranks: Ranks = ALONE,
        *,
        sync_kmeans: bool = True,
        sync_affine: bool = False,
    ) -> None:
        """Prepares the search: k-means on the first training tokens, and the statistics of the affine map.

        Evaluation changes nothing; it uses codes that k-means has not set, with one message of the logger ``torchvq``.
        """
        if self._replay is not None:
            return
        if training:
            if not self.initialised and (not ranks.alone or x.shape[1] > 0):
                self._initialise(x, mask, ranks, sync_kmeans)
            if self.affine_param:
                self.update_affine(x, mask, ranks if sync_affine else ALONE)
        elif not (self.initialised or self._warned_uninitialised or torch.compiler.is_compiling()):
            self._warned_uninitialised = True
            logger.warning(
                "VectorQuantize: the codebook is evaluated before k-means has initialised it; "
                "its random codes are used. Run a training step, or load a checkpoint, first"
            )
        self.begin_record()

    @uncounted
    def _initialise(self, x: Tensor, mask: Tensor | None, ranks: Ranks, together: bool) -> None:
        self.check_averages()
        embed = self.wide_embed()
        state = [self.initted, self.cluster_size, self.embed_avg, embed]
        _ops.initialise_codebook_(
            *state,
            x.detach(),
            self.step_rng,
            mask=mask,
            iterations=self.kmeans_iters,
            metric=self.metric,
            vqp_compat=self.vqp_compat,
            **(ranks if together else ALONE).options(),
        )
        if not together and not ranks.alone:
            # Otherwise each rank would begin with its own codes; all ranks take those of rank 0.
            _ops.broadcast_state_(state, **ranks.options())
        self.store_embed(embed)
        if torch.compiler.is_compiling():
            # Compiled code cannot check for a real token: without any the codes stay as they were built, and begin.
            self.initted.fill_(True)
        self._initialised = torch.compiler.is_compiling() or self.initialised

    def learn(
        self,
        x: Tensor,
        indices: Tensor,
        mask: Tensor | None,
        *,
        ema_update: bool,
        accumulate: bool = False,
        weight: EmaWeight | None = None,
        ranks: Ranks = ALONE,
    ) -> Tensor | None:
        """All changes of a training step: averages, codes, replacement of dead codes. The last only in training mode.

        Args:
            x: tokens (H, N, D), unit vectors for the cosine metric.
            indices: (H, N), the code of each token.
            mask: (H, N) bool or None.
            ema_update: whether the codes follow the averages. Dead codes are counted and replaced in any case.
            accumulate: keep the statistics for the next step that does not accumulate.
            weight: see ``VectorQuantize.forward``.
            ranks: the ranks that learn together.

        Returns:
            Number of tokens of this step per code (H, K), over all ranks; None if the step does not learn.
        """
        if self._replay is not None or not self.learns(ema_update or accumulate):
            return None
        tokens = dict(rng=[self.step_rng], x=[self.raw_inputs(x)], indices=[indices])
        tokens["mask"] = [] if mask is None else [mask]
        options = tokens | self.statistics_options(ranks)
        counts: Tensor | None = None
        statistics: Sequence[Tensor] = []
        if self.learns_apart(accumulate, weight):
            found = _ops.collect_statistics(self.state(), **options)
            counts, sums, exponents = (of_all[0] for of_all in found)
            statistics = self._with_pending((counts, sums, exponents))
            if accumulate:
                self._pending = statistics
                return counts
        learnt = _ops.learn_codebooks_(
            self.state(),
            statistics=statistics,
            **options,
            **self.learning_options(
                ema_update, weight, statistics, accumulate=accumulate, replaces=self.training
            ),
        )
        self.keep_in_shards()
        return learnt[0] if counts is None else counts

    @property
    def learning_rules(self) -> tuple[object, ...]:
        """The options that codebooks must have in common to learn by one call."""
        thresholds = self.threshold_ema_dead_code, self.dead_code_threshold_fraction
        learning = self.decay, self.eps, self.manual_ema_update, self.reset_cluster_size
        return (self.metric, self.ema_update, *learning, *thresholds)

    def learns(self, ema_update: bool) -> bool:
        """Whether a training step computes statistics."""
        return ema_update or self.has_dead_code_replacement

    def state(self) -> list[Tensor]:
        """The tensors that training changes, in the order of the operators' arguments."""
        # A lookup through the module takes six times as long.
        own: dict[str, Any] = self._buffers
        embed = self.checked_embed() if self._replay is None else self.settled_embed()
        state = [embed, *(own[name] for name in _TRAINED)]
        return state + self.kept_on(state[1].device) if self._kept else state

    def statistics_options(self, ranks: Ranks) -> dict[str, Any]:
        """The arguments of operators that collect statistics."""
        arguments = dict(eps=self.eps, metric=self.metric)
        if not ranks.alone:
            arguments |= ranks.options()
            arguments |= dict(reduction=ranks.reduction, signature=self.signature)
        return arguments

    def learning_options(
        self,
        ema_update: bool,
        weight: EmaWeight | None = None,
        statistics: Sequence[Tensor] = (),
        *,
        accumulate: bool = False,
        replaces: bool = True,
    ) -> dict[str, Any]:
        """The arguments of operators that learn; a weight that is a function gets the statistics."""
        arguments: dict[str, Any] = dict(
            decay=self.decay,
            ema_update=ema_update,
            manual_ema_update=self.manual_ema_update,
            by_gradient="embed" in self._parameters,
            vqp_compat=self.vqp_compat,
        )
        replaces = replaces and self.has_dead_code_replacement
        if replaces:
            arguments |= self._thresholds()
        if ema_update or accumulate or replaces:
            self.check_averages()
        if self.keeps_statistics:
            arguments["sync_every"] = 0 if accumulate else self.sync_every
            arguments["ema_update"] = ema_update or accumulate
        if weight is not None:
            arguments["weight"] = weight_of(weight, statistics, self.cluster_size)
        return arguments

    def learns_apart(self, accumulate: bool, weight: EmaWeight | None) -> bool:
        """Whether Python code runs between the statistics of a step and the update."""
        return not self.keeps_statistics and (accumulate or callable(weight) or self.has_pending)

    def after_undo(self, pending: Statistics | None) -> None:
        """To be called after the state was restored: as before the step, ``pending`` waits; the flag is read again."""
        self._pending = pending
        self._initialised_flag = None
        self.keep_in_shards()

    def expire_codes(self, x: Tensor, ranks: Ranks) -> None:
        """Replaces dead codes by tokens (H, T, D), without learning from these tokens; needs a threshold."""
        self.check_averages()
        _ops.expire_codes_(
            self.state(),
            [self.step_rng],
            [self.raw_inputs(x)],
            eps=self.eps,
            metric=self.metric,
            vqp_compat=self.vqp_compat,
            **self._thresholds(),
            **ranks.options(),
        )
        self.keep_in_shards()

    def _thresholds(self) -> dict[str, float]:
        return dict(
            threshold=self.threshold_ema_dead_code,
            threshold_fraction=self.dead_code_threshold_fraction,
            reset_cluster_size=self.reset_cluster_size,
        )

    def update_ema(self) -> None:
        """Sets the codes from the moving averages: the second half of a step with ``manual_ema_update``."""
        self.check_averages()
        embed = self.wide_embed()
        # The reference's unused codes are recomputed like all others, and so drift to the origin.
        decay = 1.0 if self.vqp_compat else self.decay
        _ops.ema_finish_(
            embed, self.cluster_size, self.embed_avg, decay=decay, eps=self.eps, metric=self.metric
        )
        self.store_embed(embed)

    # Casts, copies, checkpoints ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_initialised_flag": None}  # a copy reads its own flag

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._state_was_loaded()

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        self._state_was_loaded()

    def _state_was_loaded(self) -> None:
        self._pending = None
        self._initialised_flag = None
        self._initialised = self.initialised  # read now, for compilers
