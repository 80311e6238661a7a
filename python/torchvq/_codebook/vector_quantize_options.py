"""The options that a VectorQuantize keeps as attributes."""

from torchvq._base.wide_buffers import WideBuffers


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
    _ema_update: bool

    sync_codebook: bool | None
    sync_kmeans: bool
    sync_affine_param: bool
    sync_every: int
    overlap_sync: bool
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
    sample_codebook_temp: float
    straight_through: bool
    rotation_trick: bool
    directional_reparam: bool
    directional_reparam_variance: float
    sync_update_v: float
    route_gradients_to_input: bool
