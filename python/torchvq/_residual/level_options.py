"""The options of the levels of a residual stack, from those of the stack."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ


def level_options(rvq: "ResidualVQ", given: Mapping[str, Any], several: bool) -> dict[str, Any]:
    """The options given for all levels, with those that the stack sets.

    Args:
        given: options of ``VectorQuantize``. A shared codebook's own optimizer stays with the stack.
        several: whether there are several levels.
    """
    options = dict(given, vqp_compat=rvq.vqp_compat)
    one = several and not rvq.vqp_compat and not options.get("use_cosine_sim")
    if one and options.get("rotation_trick") is None:
        # One copied gradient for the whole stack learns better than rotated ones (docs/design/residual.md).
        options["rotation_trick"] = False
    if rvq.implicit_neural_codebook or rvq.diveq:
        options |= {"learnable_codebook": True, "ema_update": False}
    if rvq.diveq:
        options |= {"commitment_weight": 0.0}
    if rvq.shared_codebook:
        options.pop("in_place_codebook_optimizer", None)
    if rvq.vqp_compat:
        options |= _as_in_the_reference(rvq)
    return options


def _as_in_the_reference(rvq: "ResidualVQ") -> dict[str, Any]:
    """Options that a stack of the reference accepts and ignores."""
    options: dict[str, Any] = {"freeze_codebook": False}
    if rvq.diveq:
        options["directional_reparam_variance"] = 0.005
    if rvq.shared_codebook:
        options |= {"manual_ema_update": False, "manual_in_place_optimizer_update": True}
    return options
