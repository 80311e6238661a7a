"""The options that a VectorQuantize keeps as attributes."""

from typing import TYPE_CHECKING

from torchvq._base.wide_buffers import WideBuffers

if TYPE_CHECKING:
    from torchvq.codebook import Codebook


class VectorQuantizeOptions(WideBuffers):
    """Plain values, set at construction by ``keep_values``; the docstring of ``VectorQuantize`` describes them."""

    dim: int
    codebook_size: int
    heads: int
    separate_codebook_per_head: bool
    channel_last: bool
    accept_image_fmap: bool
    accept_3d_fmap: bool
    return_zeros_for_masked_padding: bool

    eps: float
    use_cosine_sim: bool
    freeze_codebook: bool
    learnable_codebook: bool
    manual_in_place_optimizer_update: bool
    vqp_compat: bool

    sync_codebook: bool | None
    sync_kmeans: bool
    sync_affine_param: bool
    process_group: str | None
    reduction: str

    commitment_weight: float
    has_commitment_loss: bool
    commitment_use_cross_entropy_loss: bool
    orthogonal_reg_weight: float
    has_codebook_orthogonal_loss: bool
    orthogonal_reg_active_codes_only: bool
    orthogonal_reg_max_codes: int | None
    codebook_diversity_loss_weight: float
    has_codebook_diversity_loss: bool
    codebook_diversity_temperature: float

    stochastic_sample_codes: bool
    straight_through: bool
    rotation_trick: bool
    directional_reparam: bool
    directional_reparam_variance: float
    sync_update_v: float
    route_gradients_to_input: bool

    #: The options that ``_codebook/set_later.py`` has found valid.
    checked_options: tuple[object, ...] | None = None

    if TYPE_CHECKING:

        @property
        def _codebook(self) -> Codebook: ...

    @property
    def sync_every(self) -> int:
        """Training steps per update of the codebook, fixed at construction."""
        return self._codebook.sync_every

    @property
    def overlap_sync(self) -> bool:
        """Whether backward hides the message of a step, fixed at construction."""
        return self._codebook.overlap_sync

    @property
    def ema_update(self) -> bool:
        """Whether training steps update the codes by moving averages."""
        return self._codebook.ema_update

    @ema_update.setter
    def ema_update(self, value: bool) -> None:
        self._codebook.ema_update = value

    @property
    def sample_codebook_temp(self) -> float:
        """Temperature of the sampling."""
        return self._codebook.sample_codebook_temp

    @sample_codebook_temp.setter
    def sample_codebook_temp(self, value: float) -> None:
        self._codebook.sample_codebook_temp = value
