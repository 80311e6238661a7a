"""The gradient estimators by name, for codes that are already chosen."""

import torch
from torch import Tensor

_ops = torch.ops.torchvq

_DIRECTIONAL_NOISE = 8  # RandomPurpose::kDirectionalReparam


def estimate(
    x: Tensor, codes: Tensor, estimator: str, rng: Tensor, *, variance: float, sync_update_v: float
) -> Tensor:
    """The values of the codes with the gradient of an estimator of VectorQuantize, other than "gumbel".

    x and codes are (H, T, D). With "none" the gradient goes to the codes alone.
    """
    if estimator == "none":
        output = codes
    elif estimator == "straight_through":
        output = _ops.straight_through(x, codes)
    elif estimator == "rotation_trick":
        output = _ops.rotation_trick(x, codes)
    elif estimator == "vqp_rotation_trick":
        output = _ops.vqp_rotation_trick(x, codes)
    else:
        noise = _ops.random_normal(rng, _DIRECTIONAL_NOISE, x.shape, dtype=x.dtype)
        output = _ops.directional_reparam(x, codes, noise, variance=variance)
    return _ops.sync_update_v(output, v=sync_update_v) if sync_update_v != 0 else output
