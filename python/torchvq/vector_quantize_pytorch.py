"""The module path under which users of ``vector_quantize_pytorch`` import VectorQuantize."""

from torchvq._base.not_here import explain_absent
from torchvq._tools.kmeans import kmeans
from torchvq.codebook import Codebook
from torchvq.outputs import LossBreakdown
from torchvq.vector_quantize import VectorQuantize

__all__ = ["Codebook", "LossBreakdown", "VectorQuantize", "kmeans"]

explain_absent(
    __name__,
    "accum_grad_ all_gather_sizes all_gather_variably_sized append_dims_to at_most_one_of "
    "batched_bincount batched_sample_vectors cdist default directional_reparam "
    "efficient_rotation_trick_transform ema_inplace entropy exists gumbel_noise "
    "gumbel_sample identity is_distributed is_empty l2norm laplace_smoothing lens_to_mask "
    "log noop orthogonal_loss_fn pack_one pad_shape rotate_to safe_div sample_multinomial "
    "sample_vectors sample_vectors_distributed Sequential straight_through uniform_init",
)
