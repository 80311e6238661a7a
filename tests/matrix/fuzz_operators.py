"""Calls every operator with one spoiled tensor at a time; test_robust_operators.py runs this in its own process.

The calls are recorded from the classes; some are made by hand, for operators that no class calls. A line is printed
before each call, so that a crash can be attributed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from classes import ROWS, build, data, decode, forward, positions
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import torchvq

Call = tuple[tuple[Any, ...], dict[str, Any]]
# Errors that a call with a wrong tensor may raise.
PERMITTED = (ValueError, TypeError, IndexError, RuntimeError)
_ops = torch.ops.torchvq

SPOILERS: dict[str, Callable[[Tensor], Tensor]] = {
    "0-d": lambda x: x.new_zeros(()),
    "empty": lambda x: x.new_zeros((0,)),
    "no rows": lambda x: x[:0],
    "no features": lambda x: x[..., :0],
    "one axis more": lambda x: x.unsqueeze(0),
    "one axis less": lambda x: x.flatten(0, 1) if x.dim() > 1 else x.sum(),
    "shorter": lambda x: x[..., : max(x.shape[-1] - 1, 0)] if x.dim() else x,
    "longer": lambda x: torch.cat([x, x], -1) if x.dim() else x,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "expanded": lambda x: x[..., :1].expand(x.shape) if x.dim() else x,
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "int32": lambda x: x.int(),
    "int64": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "complex": lambda x: x.cfloat(),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "out of range": lambda x: x + 2**40 if x.dtype == torch.int64 else x * float("inf") if x.is_floating_point() else x,
    "negative": lambda x: x - 2**40 if x.dtype == torch.int64 else -x if x.dtype != torch.bool else ~x,
}  # fmt: skip


class _Recorder:
    """Records the first call of each operator."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def note(self, name: str, args: Any, kwargs: Any) -> None:
        if name.startswith("torchvq::") and name not in self.calls:
            self.calls[name] = tree_map(_copy, (tuple(args), dict(kwargs or {})))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Composites(TorchFunctionMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The name of an operator packet, or of its overload.
        name = getattr(func, "_qualified_op_name", "") or getattr(func, "_name", "")
        self.recorder.note(name.partition(".")[0], args, kwargs)
        return func(*args, **(kwargs or {}))


class _Leaves(TorchDispatchMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recorder.note(getattr(func, "_name", "").partition(".")[0], args, kwargs)
        return func(*args, **(kwargs or {}))


def recorded() -> dict[str, Call]:
    """A call of every operator, by name."""
    recorder = _Recorder()
    with _Composites(recorder), _Leaves(recorder):
        for row in ROWS:
            _use(row)
        _use("vq", masked=True, vqp_compat=True, codebook_diversity_loss_weight=0.1)
        _use("vq", sync_update_v=0.5, learnable_codebook=True, ema_update=False)
        _use("vq", route_gradients_to_input=False, straight_through=True, rotation_trick=False)
        _use("vq", rotation_trick=False)
        _use("hierarchical_vq", masked=True)
        build("vq")(data("vq"), topk=2)
        _use_helpers()
        _by_hand()
    # These need a process group; the checks of their tensors come before the lookup of the group.
    moments, group = torch.zeros(4, 8, dtype=torch.float64), dict(group_name="none", label="fuzz")
    recorder.calls["torchvq::gather_moments"] = ((moments,), group)
    recorder.calls["torchvq::attach_moments"] = ((moments[None], moments), group)
    # No class prepares codes.
    x, codes, mask = torch.randn(1, 6, 16), torch.randn(1, 4, 16), torch.ones(1, 6).bool()
    options = dict(mask=mask, prepared=[_ops.prepare_codes(codes)] * 2)
    recorder.calls["torchvq::residual_encode"] = ((x, [codes, codes * 0.5]), options)
    return recorder.calls


def _use(row: str, masked: bool = False, **options: Any) -> None:
    module = build(row, **options)
    x = data(row).requires_grad_()
    mask = {"mask": torch.ones(positions(row), dtype=torch.bool)} if masked else {}
    found = forward(module, x, **mask)
    if found.quantized.requires_grad:
        (found.quantized.sum() + found.loss.sum()).backward()
    module.eval()
    decode(module, forward(module, x, **mask).indices)
    if hasattr(module, "stats"):
        module.stats()


def _use_helpers() -> None:
    evo = build("evo_lfq")
    for _ in evo.evolve(lambda decoded, bits: bits.sum(-1), shape=(4,), generations=1):
        pass
    evo.init_population_from_data(data("evo_lfq")[:, 0], 6)
    fsp, x = build("fsp"), torch.rand(5, 3)
    fsp.quantize_act_value(x)
    fsp.inv_act_func(fsp.act_func(x))
    fsq = build("fsq")
    fsq.codes_to_indices(x)
    fsq.indices_to_level_indices(torch.arange(4))
    binary, logits = build("binary_mapper"), torch.randn(5, 8)
    binary.binary_entropy(logits)
    binary.log_prob(logits, indices=torch.arange(5))
    latent = build("latent")
    latent.commitment_loss(x, x)
    latent.quantization_loss(x, x)
    lfq = torchvq.LFQ(dim=8, codebook_size=16, orthogonal_rotation=True, cosine_sim_project_in=True)
    lfq(data("lfq"))
    vq = build("vq")
    vq(data("vq"), lens=torch.tensor([3, 4, 12]))
    vq(data("vq"), indices=torch.zeros(3, 12, dtype=torch.long))
    vq(data("vq"), accum_ema_update=True)
    vq(data("vq"))
    vq.half()
    torchvq.kmeans(torch.randn(1, 20, 3), 4)


def _by_hand() -> None:
    x, indices = torch.randn(1, 6, 4), torch.zeros(1, 6, dtype=torch.long)
    rng, one = torch.tensor([1, 2]), torch.ones(1)
    counts, sums = torch.ones(1, 4), torch.randn(1, 4, 4)
    used = torch.zeros(1, 4, dtype=torch.long)
    codes = torch.randn(1, 4, 4)
    statistics = _ops.code_statistics(x, indices, _ops.code_exponents(codes))
    hits = statistics[0]
    keys, rows = _ops.dead_code_candidates(x, rng, 4)
    _ops.replace_with_candidates_(
        [codes], [sums], [counts], [keys], [rows], [hits], [rng], threshold=2.0,
        reset_cluster_size=1.0, most_per_token=0.5,
    )  # fmt: skip
    _ops.merge_statistics(*statistics, *statistics)
    _ops.ema_update_(counts, sums, codes, *statistics, decay=0.8, eps=1e-5)
    _ops.ema_update_tokens_(
        [counts], [sums], [codes], [used], [x], [indices], mask=[], decay=0.8, eps=1e-5
    )
    state = [codes, counts, sums, torch.zeros(1, dtype=torch.long)]
    _ops.expire_codes_(state, [rng], [x], threshold=0.5, reset_cluster_size=0.5)
    _ops.finish_step_([used], [indices], [rng], counts=[], masks=[])
    mask = torch.ones(1, 6, dtype=torch.bool)
    # In one process, modules call token_moment_loss instead.
    moments = _ops.token_moments(x.clone().requires_grad_(), mask=mask)
    _ops.moment_loss(moments[None], [0.0] * 4, [1.0] * 4)[0].backward()
    _ops.fill_masked(x, mask)
    _ops.fill_padding(x, mask)
    _ops.zero_absent(x, indices)
    _ops.decode_indices(codes, indices[0], [])
    _ops.decode_residual(indices[0].unsqueeze(-1), [codes], [])
    _ops.split_heads(x, 1, False)
    _ops.split_mask(mask, 1, False)
    _ops.merge_heads(x, 1, 6, 1, False)
    _ops.restore_tokens(x, x, mask=mask)
    _ops.restore_positions(indices, x)
    _ops.shared_diversity_totals([codes], [x], [codes], masks=[], temperatures=[1.0])
    _ops.search_losses(x, codes, x, indices, training=True, diversity_weight=0.1)
    means = [torch.zeros(1, 1, 4), torch.ones(1, 1, 4)] * 2
    _ops.affine_inputs(x, *means)
    _ops.codebook_diversity_loss(x, codes, temperature=1.0, metric="euclidean")
    _ops.commitment_cross_entropy(x, codes, indices, metric="euclidean")
    _ops.orthogonal_loss(codes)
    _ops.averages_of_codes(codes, counts)
    _ops.prepare_codes(torch.randn(1, 4, 16))
    _ops.refine_codebooks(x, [codes], beam=1, iterations=1)
    _ops.synced_kmeans(x, 2, rng)
    _ops.synced_code_statistics(
        [x], [indices], [_ops.code_exponents(codes)], mask=[], state=[codes]
    )
    _ops.synced_step_statistics(
        [x], [indices], [_ops.code_exponents(codes)], mask=[], state=[codes], rng=[rng],
        cluster_size=[counts], threshold=2.0,
    )  # fmt: skip
    _ops.keep_statistics_(
        [used.new_zeros(4), used.clone(), used.new_zeros(2, 1, 4, 4),
         used.new_zeros(2, 1, 4, dtype=torch.int32), torch.zeros(1, 4, 5)],
        [used.clone(), used.new_zeros(2, 1, 4, 4), used.int(), torch.zeros(1, 4, 4)],
        [x], [indices], [_ops.code_exponents(codes)], mask=[], state=[codes], step=rng, rng=[rng],
        cluster_size=[counts], every=2, replaces=True,
    )  # fmt: skip
    _ops.synced_replace_dead_codes_(
        [codes], [sums], [counts], [x], [hits], [rng], mask=[], threshold=2.0,
        reset_cluster_size=1.0, most_per_token=0.5,
    )  # fmt: skip
    _ops.synced_usage([hits], [counts], [one.long()], threshold=[0.0], threshold_fraction=[0.0])
    _ops.average_gradients([x], x)
    _ops.handshake_([codes], handle=_ops.new_handle())
    _ops.all_reduce_statistics(x)
    _ops.all_reduce_differentiable(x)
    _ops.replica_hashes([x])
    _ops.state_hash([x])
    _ops.broadcast_state_([x])
    _ops.soft_clamp(x, one)
    _ops.random_numbers(rng, 1, [3])
    _ops.random_numbers(rng, 1, [3], normal=True)
    _ops.random_bits(rng, [3])
    _ops.no_second_derivative(x, [x, codes], "op")
    _ops.wide_codes(codes.half(), counts, sums)
    _ops.token_moments(x)
    _ops.vqp_rotation_trick(x, x)
    _ops.vqp_latent_loss(x, x, commitment=0.1, quantization=0.1)
    _ops.vqp_indices(indices, 4)
    _ops.residual_beam_search(x, [codes, codes], 2)
    _ops.sampled_beam_search(
        x, [codes, codes], [rng, rng], 2, temperature=1.0, metric="euclidean", mask=mask,
        depth=torch.tensor([2]),
    )  # fmt: skip
    paths = [x.unsqueeze(2), x.unsqueeze(2), x[..., :1].double(), indices.view(1, 6, 1, 1)]
    _ops.extend_paths(
        *paths, codes[:, None, None].expand(1, 6, 1, 4, 4), 3,
        candidates=torch.arange(4).expand(1, 6, 1, 4), weight=1.0,
    )  # fmt: skip
    _ops.projected_residual_encode(
        x, [codes[0]], [codes[0]], [codes[0, 0]], [codes[0]], [codes[0, 0]], metric="cosine"
    )
    _ops.directional_reparam(x, x, x, variance=0.1)
    _ops.sign_entropy_totals(x, sharpness=4.0)
    _ops.codebook_diversity_totals(x, codes, temperature=1.0, metric="euclidean")
    _ops.sign_entropy(x, sharpness=4.0)
    _ops.balanced_inputs(x, 2, ratio=0.5)
    _ops.undivided_inputs(x, 2)
    _ops.weighted_inputs(x, 1, 2)
    _ops.level_rng(rng, 1, True)
    _ops.noise_rng(rng, group_name="", label="fuzz")
    _ops.lookup_free_losses(x, x.sign(), commitment_weight=0.25)
    _ops.rotate_features(x, torch.eye(4))


def spoiled(call: Call) -> Iterator[tuple[str, Call]]:
    """The call with one tensor at a time made wrong, in each way that applies."""
    leaves, spec = tree_flatten(call)
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            continue
        for name, spoil in SPOILERS.items():
            try:
                wrong = spoil(leaf.clone())
            except (RuntimeError, IndexError, TypeError):
                continue  # this way does not apply to the tensor
            copies = [_copy(other) for other in leaves]
            copies[place] = wrong
            yield f"tensor {place} {name}", tree_unflatten(copies, spec)


def main(skip: set[str]) -> None:
    calls = recorded()
    print(json.dumps({"operators": sorted(calls)}), flush=True)
    for operator, call in sorted(calls.items()):
        if operator in skip or not any(isinstance(leaf, Tensor) for leaf in tree_flatten(call)[0]):
            continue
        for label, (args, kwargs) in spoiled(call):
            print(json.dumps({"operator": operator, "begins": label}), flush=True)
            outcome = "result"
            try:
                getattr(_ops, operator.partition("::")[2])(*args, **kwargs)
            except PERMITTED as error:
                outcome = f"{type(error).__name__}: {error}"[:400]
            except BaseException as error:
                outcome = f"not permitted: {type(error).__name__}: {error}"[:400]
            print(json.dumps({"operator": operator, "ends": label, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(set(sys.argv[1:]))
