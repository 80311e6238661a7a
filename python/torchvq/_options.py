"""Validation of options, and what a default of None resolves to."""

from typing import Any, NamedTuple

_CODEBOOK_OPTIONS = (
    "decay",
    "eps",
    "use_cosine_sim",
    "kmeans_init",
    "kmeans_iters",
    "threshold_ema_dead_code",
    "dead_code_threshold_fraction",
    "manual_ema_update",
    "vq_bridge",
    "affine_param",
    "affine_param_batch_decay",
    "affine_param_codebook_decay",
    "vqp_compat",
)


class ResolvedVectorQuantize(NamedTuple):
    """Options of VectorQuantize whose default depends on the others."""

    rotation_trick: bool
    ema_update: bool
    learnable_codebook: bool


def check_vector_quantize(options: dict[str, Any]) -> ResolvedVectorQuantize:
    """Raises ValueError for options out of range or at odds; resolves those left open."""
    _check_ranges(options)
    by_gradient = options["directional_reparam"] or options["vq_bridge"] is not None
    resolved = ResolvedVectorQuantize(
        rotation_trick=_default(
            # In one dimension there is nothing to rotate.
            options["rotation_trick"],
            not options["directional_reparam"] and options["dim"] > 1,
        ),
        ema_update=_default(options["ema_update"], not by_gradient),
        learnable_codebook=_default(options["learnable_codebook"], by_gradient),
    )
    _check_combinations(options, resolved)
    return resolved


def codebook_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that a VectorQuantize hands to its codebook as they are."""
    return {name: options[name] for name in _CODEBOOK_OPTIONS}


def _default(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _expect(holds: bool, name: str, condition: str, value: object) -> None:
    if not holds:
        raise ValueError(f"VectorQuantize: expected {name} to be {condition}, but got {value}")


def _check_ranges(options: dict[str, Any]) -> None:
    for name in ("dim", "codebook_size", "codebook_dim", "heads", "orthogonal_reg_max_codes"):
        value = options[name]
        _expect(value is None or value >= 1, name, "at least 1", value)
    for name in ("decay", "affine_param_batch_decay", "affine_param_codebook_decay"):
        _expect(0 <= options[name] <= 1, name, "in [0, 1]", options[name])
    _expect(options["eps"] > 0, "eps", "above 0", options["eps"])
    _expect(
        0 <= options["sync_update_v"] <= 1, "sync_update_v", "in [0, 1]", options["sync_update_v"]
    )
    _expect(
        options["reduction"] in ("exact", "float"),
        "reduction",
        "exact or float",
        options["reduction"],
    )
    for name in (
        "kmeans_iters",
        "threshold_ema_dead_code",
        "dead_code_threshold_fraction",
        "directional_reparam_variance",
        "commitment_weight",
        "orthogonal_reg_weight",
        "codebook_diversity_loss_weight",
        "codebook_diversity_temperature",
    ):
        _expect(options[name] >= 0, name, "0 or more", options[name])


def _check_combinations(options: dict[str, Any], resolved: ResolvedVectorQuantize) -> None:
    learnable = resolved.learnable_codebook
    conflicts = {
        "accept_image_fmap and accept_3d_fmap": options["accept_image_fmap"]
        and options["accept_3d_fmap"],
        "learnable_codebook and ema_update (pass ema_update=False)": learnable
        and resolved.ema_update,
        "learnable_codebook and use_cosine_sim": learnable and options["use_cosine_sim"],
        "affine_param and use_cosine_sim": options["affine_param"] and options["use_cosine_sim"],
        "straight_through and rotation_trick (pass rotation_trick=False)": options[
            "straight_through"
        ]
        and resolved.rotation_trick,
        "straight_through and learnable_codebook": options["straight_through"] and learnable,
        "directional_reparam and rotation_trick": options["directional_reparam"]
        and resolved.rotation_trick,
        "directional_reparam and straight_through": options["directional_reparam"]
        and options["straight_through"],
    }
    for pair, present in conflicts.items():
        if present:
            raise ValueError(f"VectorQuantize: expected not both of {pair}, but got both")
    requirements = {
        "vq_bridge needs learnable_codebook": options["vq_bridge"] is None or learnable,
        "sync_update_v needs learnable_codebook": options["sync_update_v"] == 0 or learnable,
        "in_place_codebook_optimizer needs learnable_codebook": options[
            "in_place_codebook_optimizer"
        ]
        is None
        or learnable
        or options["orthogonal_reg_weight"] > 0,
        "directional_reparam needs threshold_ema_dead_code or dead_code_threshold_fraction above 0": not options[
            "directional_reparam"
        ]
        or options["threshold_ema_dead_code"] > 0
        or options["dead_code_threshold_fraction"] > 0,
    }
    for requirement, met in requirements.items():
        if not met:
            raise ValueError(f"VectorQuantize: expected options to fit together, but {requirement}")
