"""Checkpoints, copies and casts keep all state that a run depends on, and the reference's checkpoints load."""

from __future__ import annotations

import io
import math
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import vector_quantize_pytorch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from vector_quantize_cases import (
    CASES,
    CODES,
    DIM,
    adam,
    assert_continues_alike,
    assert_same_state,
    build,
    data,
    options_of,
    same,
    state,
    train,
)

import torchvq
from torchvq import VectorQuantize
from torchvq._base import readable

# State that torchvq adds to the reference's (docs/migrating.md).
ADDED = {"_codebook.rng"}
OWN_OPTIONS = ("dead_code_fraction", "compat")
SHARED_CASES = [case for case in CASES if case not in OWN_OPTIONS]
# The reference's forward raises with orthogonal_active.
RUNNING_CASES = [case for case in SHARED_CASES if case != "orthogonal_active"]


def added_state(case: str) -> set[str]:
    """Keys that only torchvq has."""
    flags = {"_codebook.batch_mean_needs_init", "_codebook.batch_variance_needs_init"}
    return ADDED | flags if "affine" in case else ADDED


def reference(case: str) -> nn.Module:
    torch.manual_seed(0)
    return vector_quantize_pytorch.VectorQuantize(DIM, **options_of(case))


@pytest.mark.parametrize("case", SHARED_CASES)
def test_state_is_the_references_and_what_is_documented(case: str) -> None:
    ours, theirs = build(case).state_dict(), reference(case).state_dict()
    added = set(ours) - set(theirs)
    # The reference creates these two buffers in its first forward.
    late = {"_codebook.batch_mean", "_codebook.batch_variance"} if "affine" in case else set()
    assert added == added_state(case) | late
    assert set(theirs) <= set(ours)
    for name, value in theirs.items():
        assert ours[name].shape == value.shape and ours[name].dtype == value.dtype, name
    trained = [name for name, _ in build(case).named_parameters()]
    assert sorted(trained) == sorted(name for name, _ in reference(case).named_parameters())


@pytest.mark.parametrize("case", RUNNING_CASES)
def test_checkpoints_of_the_reference_load_strictly_fresh_and_trained(case: str) -> None:
    theirs = reference(case)
    for steps in (0, 2):
        for step in range(steps):
            theirs(data(build(case), step))
        module = build(case, seed=7)
        module.load_state_dict(theirs.state_dict(), strict=True)
        stored = theirs.state_dict()
        for name, value in stored.items():
            unset = stored.get(name + "_needs_init", False)  # uninitialised memory there
            assert unset or same(module.state_dict()[name], value), name
        assert module._codebook.initialised == bool(theirs.state_dict()["_codebook.initted"])


@pytest.mark.parametrize("case", RUNNING_CASES)
def test_the_reference_loads_ours_but_for_what_is_documented(case: str) -> None:
    module, theirs = build(case), reference(case)
    for step in range(2):
        module(data(module, step))
        theirs(data(module, step))
    result = theirs.load_state_dict(module.state_dict(), strict=False)
    assert result.missing_keys == [] and set(result.unexpected_keys) == added_state(case)


@pytest.mark.parametrize("case", ["default", "affine", "cosine", "copied_gradient"])
def test_a_run_of_the_reference_goes_on_here(case: str) -> None:
    theirs, module = reference(case), build(case, seed=7)
    theirs._codebook.load_state_dict(build(case)._codebook.state_dict(), strict=False)
    for step in range(3):
        theirs(data(module, step))
    module.load_state_dict(theirs.state_dict(), strict=True)
    for step in range(3, 5):
        module(data(module, step))
        theirs(data(module, step))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("assign", [False, True])
def test_statistics_that_the_reference_has_not_set(assign: bool) -> None:
    """Its first step makes them; until then a checkpoint holds whatever the memory held."""
    stored = reference("affine").state_dict()
    for name in ("mean", "variance"):
        assert stored[f"_codebook.codebook_{name}_needs_init"]
        stored[f"_codebook.codebook_{name}"].fill_(math.nan)
    module = build("affine", seed=7)
    module.load_state_dict(stored, strict=True, assign=assign)
    assert torch.equal(module.codebook, stored["_codebook.embed"][0])
    for frozen in (True, False):
        assert module(data(module, 0), freeze_codebook=frozen).quantized.isfinite().all()
    assert stored["_codebook.codebook_mean"].isnan().all()


@pytest.mark.parametrize("case", CASES)
def test_resuming_is_going_on(case: str) -> None:
    original = build(case)
    train(original, range(3))
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    resumed = build(case, seed=7)
    resumed.load_state_dict(torch.load(file), strict=True)
    assert_continues_alike(resumed, original)


def _pickled(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("how", [deepcopy, _pickled])
@pytest.mark.parametrize(
    "case", ["default", "kmeans", "sampling", "affine", "learnable", "dead_codes", "orthogonal"]
)
def test_copies_go_on_and_share_nothing(case: str, how: Any) -> None:
    original = build(case)
    train(original, range(2))
    copy, before = how(original), state(original)
    train(copy, range(5, 7))
    assert_same_state(original, before)
    assert_continues_alike(how(original), original)


@pytest.mark.parametrize(
    "case", ["default", "kmeans", "cosine", "projections", "affine", "learnable", "dead_codes"]
)
def test_construction_on_the_meta_device(case: str) -> None:
    original = build(case)
    train(original, range(2))
    for assign in (False, True):
        with torch.device("meta"):
            module = VectorQuantize(DIM, **options_of(case))
        assert all(tensor.is_meta for tensor in module.state_dict().values() if tensor.dim() > 1)
        if not assign:
            module.to_empty(device="cpu")
        module.load_state_dict(deepcopy(original.state_dict()), strict=True, assign=assign)
        assert_continues_alike(module, deepcopy(original))


def test_a_reference_checkpoint_after_the_meta_device_gets_a_generator() -> None:
    with torch.device("meta"):
        module = VectorQuantize(DIM, codebook_size=CODES)
    module.load_state_dict(reference("default").state_dict(), strict=True, assign=True)
    assert not any(tensor.is_meta for tensor in module.state_dict().values())
    train(module, range(2))


@pytest.mark.parametrize("case", ["default", "projections", "learnable", "affine"])
def test_safetensors(case: str, tmp_path: Path) -> None:
    original = build(case)
    train(original, range(2))
    safetensors.torch.save_model(original, str(tmp_path / "state.safetensors"))
    module = build(case, seed=7)
    safetensors.torch.load_model(module, str(tmp_path / "state.safetensors"))
    assert_continues_alike(module, original)


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
@pytest.mark.parametrize("case", ["default", "learnable", "projections", "affine", "kmeans"])
def test_casts_keep_the_state(case: str, cast: str) -> None:
    """Moving averages stay wide, the generator and the flags are unchanged, and training continues."""
    module = build(case)
    train(module, range(2))
    before = state(module)
    getattr(module, cast)()
    for name, buffer in module._codebook.named_buffers(recurse=False):
        if name == "replaced":
            continue  # not state, only a statistic of the last step
        old = before["_codebook." + name]
        wide = torch.float64 if cast == "double" else torch.float32
        assert buffer.dtype == (wide if old.is_floating_point() else old.dtype), name
        assert torch.equal(buffer.to(old.dtype), old), name
    train(module, range(2, 4))
    # Back in float32, every dtype is as before.
    module.float()
    assert {tensor.dtype for tensor in module.state_dict().values()} == {
        v.dtype for v in before.values()
    }


def test_half_precision_checkpoint_loads_wide() -> None:
    """Averages that were cast in a checkpoint file are widened on loading."""
    narrow = {
        n: t.half() if t.is_floating_point() else t
        for n, t in build("default").state_dict().items()
    }
    module = build("default", seed=7)
    module.load_state_dict(narrow, assign=True)
    assert module._codebook.embed_avg.dtype == torch.float32
    train(module, range(2))


def test_loading_forgets_what_was_accumulated() -> None:
    module = build("default")
    checkpoint = deepcopy(module.state_dict())
    module(data(module, 5), accum_ema_update=True)
    module.load_state_dict(checkpoint)
    assert_continues_alike(module, build("default"))


def test_loading_an_uninitialised_checkpoint_starts_kmeans_anew() -> None:
    module = build("kmeans")
    checkpoint = deepcopy(module.state_dict())
    train(module, range(2))
    assert module._codebook.initialised
    module.load_state_dict(checkpoint)
    assert not module._codebook.initialised
    assert_continues_alike(module, build("kmeans"))


@pytest.mark.parametrize("options", [dict(sync_every=2), dict(in_place_codebook_optimizer=adam)])
def test_torch_distributed_checkpoint_finds_all_state(options: dict[str, Any]) -> None:
    module = build("learnable" if "sync_every" not in options else "default", **options)
    train(module, range(3))
    state = get_model_state_dict(module)
    assert state.keys() == module.state_dict().keys()
    other = build("learnable" if "sync_every" not in options else "default", seed=7, **options)
    set_model_state_dict(other, deepcopy(state))
    assert_continues_alike(other, module)


@pytest.mark.parametrize(("compat", "sync_every"), [(False, 1), (False, 3), (True, 1)])
def test_a_step_replaces_at_most_one_code_for_every_four_tokens(
    compat: bool, sync_every: int
) -> None:
    """With vqp_compat every token may replace one, and so it is in expire_codes_()."""
    module = VectorQuantize(
        8, 64, threshold_ema_dead_code=2, vqp_compat=compat, sync_every=sync_every
    )
    module.codebook = torch.randn(64, 8) + 100
    tokens = torch.randn(sync_every, 11, 8)
    mask = torch.ones(1, 11, dtype=torch.bool)
    mask[:, 4:6] = False
    for x in tokens:
        module(x[None], mask=mask)
    counted = 9 * sync_every
    assert module.stats().replaced == (counted if compat else math.ceil(counted / 4))
    module.expire_codes_(torch.randn(1, 30, 8))
    assert module.stats().replaced == 30


def test_expire_codes_changes_nothing_in_evaluation_or_without_a_threshold() -> None:
    x = torch.randn(1, 40, 8)
    module = VectorQuantize(8, 16, threshold_ema_dead_code=2)
    reference = vector_quantize_pytorch.VectorQuantize(8, 16, threshold_ema_dead_code=2)
    for vq in (module.eval(), reference.eval(), VectorQuantize(8, 16)):
        before = {name: value.clone() for name, value in vq.state_dict().items()}
        vq.expire_codes_(x)
        for name, value in vq.state_dict().items():
            assert torch.equal(value, before[name]), name
    codes = module.codebook.clone()
    module.train().expire_codes_(x)
    assert not torch.equal(module.codebook, codes)


@pytest.mark.parametrize("heads", [1, 2])
def test_expire_codes_refuses_other_tokens_before_it_counts(heads: int) -> None:
    module = VectorQuantize(8, 16, heads=heads, codebook_dim=4, threshold_ema_dead_code=50)
    module(torch.randn(2, 30, 8))
    width = 4 * heads
    x = torch.randn(2, 30, width)
    module.expire_codes_(x)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    assert module.stats().replaced > 0
    wrong = {
        ValueError: [x[..., 1:], torch.cat([x, x], -1), x[0], x[None]],
        TypeError: [x.long(), x.to_sparse(), None],
    }
    for error, values in wrong.items():
        for value in values:
            with pytest.raises(error, match="VectorQuantize: expected x to be "):
                module.expire_codes_(value)
    for name, value in module.named_buffers():
        assert torch.equal(value, buffers[name]), name


@pytest.mark.parametrize(
    "kind", [Tensor.clone, nn.Parameter, nn.Buffer], ids=["tensor", "parameter", "buffer"]
)
@pytest.mark.parametrize("learnable", [False, True])
def test_a_codebook_is_assigned_from_any_tensor(kind: Any, learnable: bool) -> None:
    module = VectorQuantize(DIM, CODES, learnable_codebook=learnable, ema_update=not learnable)
    names = list(module.state_dict())
    codes = torch.randn(CODES, DIM)
    given = kind(codes.clone())
    module.codebook = given
    assert torch.equal(module.codebook, codes) and list(module.state_dict()) == names
    with torch.no_grad():
        given.zero_()  # the assignment copied the codes
    assert torch.equal(module.codebook, codes)
    with pytest.raises(ValueError, match="VectorQuantize: expected codebook to have shape"):
        module.codebook = kind(torch.zeros(1, 1))


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_codebook_is_assigned_from_a_view_of_itself(heads: int, learnable: bool) -> None:
    separate: dict[str, Any] = dict(
        heads=heads, codebook_dim=DIM // heads, separate_codebook_per_head=heads > 1
    )
    options = dict(learnable_codebook=learnable, ema_update=not learnable)
    for change in (
        lambda codes: codes,
        lambda codes: codes.flip(-2),
        lambda codes: codes[..., :1].expand_as(codes),
        lambda codes: codes.mul_(2),
    ):
        module = VectorQuantize(DIM, CODES, **separate, **options)
        with torch.no_grad():
            expected = change(module.codebook.clone()).clone()
            module.codebook = change(module.codebook)
        assert torch.equal(module.codebook, expected)
        assert torch.equal(module._codebook.embed_avg.view_as(expected), expected)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Tensor.tolist, TypeError),
        (Tensor.bool, TypeError),
        (lambda codes: codes + 1j, TypeError),
        (lambda codes: codes * torch.nan, ValueError),
        (lambda codes: codes.double() * 1e300, ValueError),
    ],
    ids=["list", "bool", "complex", "NaN", "beyond float32"],
)
def test_other_codes_are_not_assigned(change: Any, error: type[Exception]) -> None:
    module = build("kmeans")
    before = module.codebook.clone()
    with pytest.raises(error, match="VectorQuantize: expected codebook to be"):
        module.codebook = change(torch.ones(CODES, DIM))
    assert torch.equal(module.codebook, before) and not module._codebook.initialised


def test_casts_by_type_leave_integers_and_flags() -> None:
    for module in (
        VectorQuantize(DIM, CODES, threshold_ema_dead_code=1, sync_every=2),
        torchvq.HierarchicalVQ(dim=DIM, codebook_size=CODES, scales=(1, 2), channel_first=False),
    ):
        before = {name: own.dtype for name, own in module.named_buffers()}
        module.type(torch.float64)
        for name, own in module.named_buffers():
            wide = torch.float64 if before[name].is_floating_point else before[name]
            assert own.dtype == wide, name
        x = torch.randn(2, 9, DIM, dtype=torch.float64)
        assert module(x)[0].dtype == torch.float64
        assert module.type(torch.float32)(x.float())[0].dtype == torch.float32


def test_codebook_assignment_is_checkpointed() -> None:
    module = build("kmeans")
    codes = torch.randn(CODES, DIM)
    module.codebook = codes
    other = build("kmeans", seed=7)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.codebook, codes) and other._codebook.initialised
    assert_continues_alike(other, module)


# K-means again ---------------------------------------------------------------------------------------------------

AGAIN = {
    "fill": lambda codebook: codebook.initted.fill_(False),
    "copy": lambda codebook: codebook.initted.copy_(torch.tensor(False)),
    "assign": lambda codebook: setattr(codebook, "initted", torch.tensor(False)),
    "load": lambda codebook: codebook.load_state_dict(
        codebook.state_dict() | {"initted": torch.tensor(False)}
    ),
}


@pytest.mark.parametrize("how", [deepcopy, _pickled])
def test_a_copy_knows_that_the_flag_was_reset(how: Any) -> None:
    module = VectorQuantize(DIM, CODES, kmeans_init=True)
    module(torch.randn(1, 64, DIM))
    module._codebook.initted.fill_(False)
    copied = how(module)
    copied(5 + torch.randn(1, 64, DIM))
    assert copied._codebook.initted and abs(copied.codebook.mean() - 5) < 1


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stacked"])
def test_k_means_runs_again_when_the_flag_is_reset(again: str, stacked: bool) -> None:
    options = dict(dim=8, codebook_size=16, kmeans_init=True, decay=1.0)
    if stacked:
        module = torchvq.ResidualVQ(**options, num_quantizers=2)
        codebooks = [level._codebook for level in module.layers]
    else:
        module = torchvq.VectorQuantize(**options)
        codebooks = [module._codebook]
    for _ in range(3):
        module(torch.randn(4, 64, 8))
    for codebook in codebooks:
        assert codebook.initialised
        AGAIN[again](codebook)
        assert not codebook.initialised
    # With a decay of 1 only k-means moves the codes to tokens that are this far away.
    module(torch.randn(4, 64, 8) + 100)
    assert codebooks[0].embed.mean() > 90
    assert all(codebook.initialised and codebook.initted for codebook in codebooks)


def test_a_flag_of_an_inference_module_may_be_reset() -> None:
    with torch.inference_mode():
        module = torchvq.VectorQuantize(dim=8, codebook_size=16, kmeans_init=True)
        module(torch.randn(4, 64, 8))
        assert module._codebook.initialised
        module._codebook.initted = torch.tensor(False)
    assert not module._codebook.initialised


def test_a_compiled_module_sees_a_reset_flag_once_it_is_read_outside() -> None:
    module = torchvq.VectorQuantize(dim=8, codebook_size=16, kmeans_init=True, decay=1.0)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(torch.randn(4, 64, 8))
    module._codebook.initted.fill_(False)
    assert not module._codebook.initialised
    compiled(torch.randn(4, 64, 8) + 100)
    assert module._codebook.embed.mean() > 90 and module._codebook.initialised


@pytest.mark.parametrize("ranks", [False, True])
def test_writes_to_flags_of_gpus_are_not_read_back_among_ranks(
    ranks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "distributed_training", lambda: ranks)
    for device in ("cpu", "meta"):  # meta in place of a GPU
        flag = torch.ones((), dtype=torch.bool, device=device)
        known = (flag, readable.version_of(flag))
        assert readable.is_known_flag(flag, known)
        flag.fill_(False)
        assert readable.is_known_flag(flag, known) == (ranks and device == "meta")
        assert not readable.is_known_flag(flag.clone(), known)


def test_a_state_that_codebooks_no_longer_have_is_left_out() -> None:
    vq, state = torchvq.VectorQuantize(4, 32), torchvq.VectorQuantize(4, 32).state_dict()
    state["_codebook.cooldown"] = torch.zeros(1, 32, dtype=torch.long)
    vq.load_state_dict(state, strict=True)
    assert torch.equal(vq._codebook.embed, state["_codebook.embed"])
    assert "_codebook.cooldown" in state and "_codebook.cooldown" not in vq.state_dict()
    state["_codebook.cooling"] = state.pop("_codebook.cooldown")
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict"):
        vq.load_state_dict(state, strict=True)


def test_a_module_that_was_saved_with_that_state_loads_without_it() -> None:
    vq = torchvq.VectorQuantize(4, 32)
    vq._codebook.register_buffer("cooldown", torch.zeros(1, 32, dtype=torch.long))
    loaded = pickle.loads(pickle.dumps(vq))
    assert "_codebook.cooldown" not in loaded.state_dict()
    loaded.load_state_dict(torchvq.VectorQuantize(4, 32).state_dict(), strict=True)
