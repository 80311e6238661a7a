"""Which differences affect a module with given options; those not listed depend on how the module is called."""

from collections.abc import Callable, Mapping
from typing import Any

Options = Mapping[str, Any]


def always(options: Options) -> bool:
    """True for all options."""
    return True


def _projected(o: Options) -> bool:
    heads = o["heads"]
    inner = heads * (o["dim"] if o["codebook_dim"] is None else o["codebook_dim"])
    return bool(inner != o["dim"])


def _rotates(o: Options) -> bool:
    plain = not (o["directional_reparam"] or o["straight_through"] or o["dim"] == 1)
    return bool(plain if o["rotation_trick"] is None else o["rotation_trick"])


def _moves(o: Options) -> bool:
    learnt = o["learnable_codebook"] or o["directional_reparam"] or o["vq_bridge"] is not None
    return bool(not learnt if o["ema_update"] is None else o["ema_update"])


def _replaces(o: Options) -> bool:
    return bool(o["threshold_ema_dead_code"] > 0)


def _moves_before_backward(o: Options) -> bool:
    # With a bridge averages learn only in calls that ask for it.
    return bool(
        o["vq_bridge"]
        or (
            _moves(o)
            and (
                o["commitment_use_cross_entropy_loss"]
                or o["codebook_diversity_loss_weight"] > 0
                or (o["straight_through"] and not o["route_gradients_to_input"])
            )
        )
    )


def _decodes_otherwise(o: Options) -> bool:
    first = not o["channel_last"] or o["accept_image_fmap"] or o["accept_3d_fmap"]
    shared = o["heads"] > 1 and not o["separate_codebook_per_head"]
    return bool(shared or o["affine_param"] or o["vq_bridge"] or (first and _projected(o)))


def _frozen(o: Options) -> bool:
    return bool(o["freeze_codebook"])


def _stacks(o: Options) -> bool:
    return bool(o.get("num_quantizers", 1) > 1)


def _projects_bits(o: Options) -> bool:
    """Whether a stack of LFQ has projections."""
    if not _stacks(o):
        return False
    bits = o["num_codebooks"] * (o["codebook_size"] - 1).bit_length()
    return bool(o["dim"] != bits * o.get("groups", 1))


def _lies_elsewhere(o: Options) -> bool:
    return _stacks(o) and bool(o["spherical"] or o["orthogonal_rotation"])


TOUCHES: dict[str, Callable[[Options], Any]] = {
    "scales-shared": lambda o: o["shared_codebook"],
    "scales-kmeans": lambda o: o["kmeans_init"],
    "scales-dropped": lambda o: o["nested_dropout"] > 0,
    "scales-convolutions": lambda o: o["nested_dropout"] > 0,
    "scales-drawn": lambda o: o["nested_dropout"] > 0,
    "scales-orthogonal": lambda o: o["shared_codebook"] and o["orthogonal_reg_weight"] > 0,
    "unused-codes": _moves,
    "rotation-near-zero": _rotates,
    "diversity-loss": lambda o: o["codebook_diversity_loss_weight"] > 0,
    "dead-codes": _replaces,
    "kmeans": lambda o: o["kmeans_init"],
    "orthogonal-ema": lambda o: _moves(o) and o["orthogonal_reg_weight"] > 0,
    "mixed-gradient": _moves_before_backward,
    "in-place-ema": lambda o: o["in_place_codebook_optimizer"] is not None,
    "training-output": always,
    "search": always,
    "input-dtype": _projected,
    "projection-gradient": _projected,
    "cosine-length": lambda o: o["use_cosine_sim"],
    "topk-breakdown": lambda o: bool(o["accept_image_fmap"] or o["accept_3d_fmap"]),
    "topk-gumbel": lambda o: o["straight_through"],
    "orthogonal-mask": lambda o: o["orthogonal_reg_active_codes_only"],
    "shared-orthogonal": lambda o: (
        o["shared_codebook"] and o["orthogonal_reg_weight"] > 0 and _moves(o)
    ),
    "lengths-channel-first": lambda o: not o["channel_last"],
    "cross-entropy-shapes": lambda o: o["commitment_use_cross_entropy_loss"],
    "sync-alone": lambda o: bool(o["sync_codebook"] or o["sync_affine_param"]),
    "affine-statistics": lambda o: o["affine_param"],
    "kmeans-evaluation": lambda o: o["kmeans_init"],
    "decode": _decodes_otherwise,
    "codebook-bridge": lambda o: bool(o["vq_bridge"] or o["affine_param"]),
    "stack-gradient": lambda o: o["num_quantizers"] != 1,
    "stack-losses": lambda o: o["num_quantizers"] != 1,
    "grad-frac": lambda o: o["quant_grad_frac"] > 0,
    "shared-codebook": lambda o: o["shared_codebook"],
    "shared-dead-codes": lambda o: o["shared_codebook"] and _replaces(o),
    "stack-frozen": _frozen,
    "diveq-variance": lambda o: o["diveq"] and o["directional_reparam_variance"] != 0.005,
    "beam-score": lambda o: (o["beam_size"] or 1) > 1,
    "beam-cosine": lambda o: (o["beam_size"] or 1) > 1 and o["use_cosine_sim"],
    "beam-training": lambda o: (o["beam_size"] or 1) > 1,
    "implicit-condition": lambda o: o["implicit_neural_codebook"],
    "stack-masked-cosine": lambda o: o["use_cosine_sim"],
    "stack-kmeans": lambda o: o["kmeans_init"],
    "stack-kmeans-evaluation": lambda o: o["kmeans_init"],
    "beam-losses": lambda o: (
        (o["beam_size"] or 1) > 1
        and (o["codebook_diversity_loss_weight"] > 0 or o["orthogonal_reg_weight"] > 0)
    ),
    "beam-evaluation": lambda o: (o["beam_size"] or 1) > 1,
    "beam-zero": lambda o: o["eval_beam_size"] is not None or (o["beam_size"] or 1) < 1,
    "beam-large": lambda o: (o["beam_size"] or 1) > 1,
    "in-place-counts": lambda o: (
        o["in_place_codebook_optimizer"] is not None
        and not o["shared_codebook"]
        and (_replaces(o) or _moves(o))
    ),
    "beam-in-place": lambda o: (
        (o["beam_size"] or 1) > 1 and o["in_place_codebook_optimizer"] is not None
    ),
    "diveq-evaluation": lambda o: o["diveq"],
    "stack-heads": lambda o: o["heads"] > 1,
    "stack-decode": lambda o: bool(o["affine_param"] or o["vq_bridge"]),
    "stack-padding": _projected,
    "stack-search": always,
    "stack-input-dtype": _projected,
    "stack-depth": lambda o: o["quantize_dropout"],
    "sim-stack-gradient": _stacks,
    "sim-stack-losses": _stacks,
    "sim-all-codes": _stacks,
    "sim-rotation": lambda o: o["rotation_trick"],
    "sim-search": always,
    "sim-evaluation": always,
    "sim-evaluation-loss": always,
    "sim-depth": lambda o: bool(o.get("quantize_dropout")),
    "sim-heads": lambda o: o.get("heads", 1) > 1,
    "projection-layers": lambda o: o.get("num_codebooks", 1) > 1,
    "fsq-noise": lambda o: o["noise_dropout"] > 0,
    "fsq-int32": always,
    "fsq-channel-last": lambda o: "channel_first" in o["given"] and not o["channel_first"],
    "fsq-noise-source": lambda o: o["noise_dropout"] > 0,
    "fsq-table": always,
    "fsq-rotation": lambda o: o["orthogonal_rotation"],
    "rfsq-gradient": lambda o: o["num_quantizers"] > 1,
    "rfsq-noise": lambda o: o["noise_dropout"] > 0,
    "rfsq-int32": always,
    "rfsq-channel-first": lambda o: o["is_channel_first"],
    "rfsq-groups-images": lambda o: bool(o.get("accept_image_fmap")),
    "rfsq-rotation": lambda o: o["orthogonal_rotation"],
    "rfsq-table": always,
    "rfsq-seed": lambda o: o["quantize_dropout"],
    "binary-evaluation": lambda o: "deterministic_on_eval" not in o["given"],
    "binary-output": always,
    "latent-values": lambda o: bool(o["optimize_values"]),
    "latent-commitment": always,
    "latent-projected": always,
    "latent-int32": always,
    "latent-in-place": lambda o: o["in_place_codebook_optimizer"] is not None,
    "latent-weights": lambda o: (
        o["commitment_loss_weight"] is None or o["quantization_loss_weight"] is None
    ),
    "fsp-ranks": always,
    "fsp-int32": always,
    "fsp-evaluation": always,
    "fsp-eps": lambda o: o["need_inv_act"],
    "lfq-clamp": lambda o: o["entropy_loss_weight"] > 0,
    "lfq-stack-gradient": _stacks,
    "lfq-stack-losses": _stacks,
    "lfq-stack-padding": _projects_bits,
    "lfq-ranks": lambda o: o["entropy_loss_weight"] > 0,
    "lfq-memory": lambda o: o["entropy_loss_weight"] > 0,
    "lfq-fraction": lambda o: o["frac_per_sample_entropy"] < 1,
    "lfq-channel-last": lambda o: o.get("channel_first") is False,
    "lfq-spherical-bits": lambda o: o["spherical"],
    "lfq-stack-decode": _lies_elsewhere,
    "lfq-stack-codes": _lies_elsewhere,
}
