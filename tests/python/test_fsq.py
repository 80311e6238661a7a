"""FSQ beyond the numbers of the reference: precision, masks, noise, checkpointing, compilers, state."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from vector_quantize_pytorch import FSQ as Reference

import torchvq
from support import any_path
from torchvq import FSQ
from torchvq.finite_scalar_quantization import FSQ as SameFSQ

ops = torch.ops.torchvq
LEVELS = [8, 5, 5, 5]
HALVES = [torch.float16, torch.bfloat16]
NOISY: dict[str, Any] = dict(preserve_symmetry=True, noise_dropout=0.5)
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, (2, 7, 4)),
    "projected": (dict(dim=12), (2, 7, 12)),
    "several": (dict(num_codebooks=2, dim=12), (2, 7, 12)),
    "image": (dict(dim=12), (2, 12, 3, 5)),
    "video": (dict(num_codebooks=3, preserve_symmetry=True), (2, 12, 2, 3, 2)),
    "channel_first": (dict(channel_first=True, bound_hard_clamp=True), (2, 4, 7)),
    "rotated": (dict(levels=[5] * 4, orthogonal_rotation=True, dim=12), (2, 7, 12)),
    "vectors": (dict(dim=12), (9, 12)),
    "noisy": (NOISY, (2, 7, 4)),
    "noisy_rotated": (dict(levels=[5] * 4, orthogonal_rotation=True, **NOISY), (2, 7, 4)),
}


def make(case: str) -> tuple[FSQ, torch.Tensor]:
    kwargs, shape = CASES[case]
    torch.manual_seed(3)
    return FSQ(**{"levels": LEVELS, **kwargs}), torch.randn(shape)


def positions_of(case: str, x: torch.Tensor) -> torch.Size:
    first = CASES[case][0].get("channel_first") or x.dim() >= 4
    return x.shape[:1] + (x.shape[2:] if first else x.shape[1:-1])


def train_step(forward: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    quantized, indices = forward(x)
    (
        quantized.double() * torch.linspace(1, 2, quantized.numel()).view(quantized.shape)
    ).sum().backward()
    return quantized.detach(), indices, x.grad


def test_names_and_places():
    assert SameFSQ is FSQ is torchvq.FSQ
    assert "levels=[8, 5, 5, 5]" in repr(FSQ(LEVELS))


@pytest.mark.parametrize("case", CASES)
def test_decode_is_the_output_of_evaluation(case):
    module, x = make(case)
    quantized, indices = module.eval()(x)
    decoded = module.indices_to_codes(indices)
    if "rotated" in case or module.has_projections:
        torch.testing.assert_close(decoded, quantized, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(decoded, quantized)
    again = module(x)
    assert torch.equal(again.quantized, quantized) and torch.equal(again.indices, indices)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", [case for case in CASES if "noisy" not in case])
def test_mask_is_selection(case, training):
    module, x = make(case)
    module.train(training)
    mask = torch.rand(positions_of(case, x)) < 0.6
    first = x.shape[-1] != module.dim or module.channel_first
    place = mask.unsqueeze(1 if first else -1)
    padded = torch.where(place, x, torch.nan)
    quantized, indices, gradient = train_step(lambda z: module(z, mask=mask), padded)
    expected, expected_indices, expected_gradient = train_step(module, x)
    torch.testing.assert_close(quantized, expected * place, rtol=1e-6, atol=1e-6)
    absent = ~mask.unsqueeze(-1) if indices.dim() > mask.dim() else ~mask
    assert torch.equal(indices, expected_indices.masked_fill(absent, -1))
    torch.testing.assert_close(gradient, expected_gradient * place, rtol=1e-5, atol=1e-6)
    decoded = module.indices_to_codes(indices)
    torch.testing.assert_close(decoded, quantized, rtol=1e-6, atol=1e-6)


def test_mask_that_leaves_nothing_and_no_tokens():
    module, x = make("projected")
    quantized, indices = module(x, mask=torch.zeros(2, 7, dtype=torch.bool))
    assert quantized.eq(0).all() and indices.eq(-1).all()
    quantized, indices = module(x[:, :0])
    assert quantized.shape == (2, 0, 12) and indices.shape == (2, 0)
    quantized.sum().backward()


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_other_dtypes_get_the_tokens_of_float32(case, dtype):
    module, x = make(case)
    if dtype != torch.float64:
        x = x.to(dtype).float()
    expected = module.eval()(x)
    found = module(x.to(dtype))
    assert found.quantized.dtype == dtype
    if dtype == torch.float64 and (module.has_projections or module.orthogonal_rotation):
        return
    assert torch.equal(found.indices, expected.indices)
    torch.testing.assert_close(found.quantized.float(), expected.quantized, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_module_in_half_precision(case, dtype):
    module, x = make(case)
    module.to(dtype)
    if module.orthogonal_rotation:
        assert module.orthogonal_rot.dtype == torch.float32
    quantized, indices, gradient = train_step(module, x.to(dtype))
    assert quantized.dtype == gradient.dtype == dtype and gradient.isfinite().all()
    assert indices.dtype == torch.int64
    quantized, indices = module.eval()(x)
    assert quantized.dtype == torch.float32
    decoded = module.indices_to_codes(indices).to(quantized.dtype)
    torch.testing.assert_close(decoded, quantized, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", ["plain", "rotated", "noisy_rotated", "projected"])
def test_autocast_changes_no_quantization(case):
    module, x = make(case)
    expected = module.eval()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(x)
    assert found.quantized.dtype == x.dtype
    if not module.has_projections:
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(found.quantized, expected.quantized, rtol=0, atol=0)


# Noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scalar_noise_is_uniform_and_of_the_fraction(dtype):
    codes, rng = torch.zeros(20000, 3, dtype=dtype), torch.tensor([5, 1])
    noise = ops.scalar_noise(codes, [3, 5, 9], rng, fraction=0.25)
    assert torch.equal(noise, any_path("scalar_noise")(codes, [3, 5, 9], rng, fraction=0.25))
    half = torch.tensor([1 / 2, 1 / 4, 1 / 8], dtype=dtype)
    moved = noise != 0
    assert (moved.double().mean(0) - 0.25).abs().max() < 0.015
    relative = (noise / half)[moved]
    assert relative.abs().max() < 1 and abs(relative.mean()) < 0.02
    histogram = torch.histc(relative.float(), 10, -1, 1) / relative.numel()
    assert (histogram - 0.1).abs().max() < 0.01
    pairs = torch.corrcoef((noise / half).T)
    assert (pairs - torch.eye(3)).abs().max() < 0.03
    other = ops.scalar_noise(codes, [3, 5, 9], rng, fraction=0.25, stream=1)
    assert not torch.equal(other, noise)
    assert torch.equal(ops.scalar_noise(codes, [3, 5, 9], rng, fraction=0.0), codes)
    assert ops.scalar_noise(codes, [3, 5, 9], rng, fraction=1.0).ne(0).all()


def test_scalar_noise_has_the_gradient_of_the_identity_and_keeps_nan():
    codes = torch.tensor([[0.5, torch.nan]], requires_grad=True)
    noise = ops.scalar_noise(codes, [3, 3], torch.tensor([1, 2]), fraction=1.0)
    assert noise[0, 1].isnan() and noise[0, 0] != 0.5
    noise[0, 0].mul(3).backward()
    assert codes.grad.tolist() == [[3, 0]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (dict(codes=torch.zeros(2, 2).half()), TypeError, "float32 or float64"),
        (dict(codes=torch.zeros(2, 3)), ValueError, "2 features"),
        (dict(rng=torch.zeros(2)), TypeError, "rng"),
        (dict(fraction=1.5), ValueError, r"fraction to be in \[0, 1\]"),
        (dict(levels=[1, 2]), ValueError, "levels"),
    ],
)
def test_scalar_noise_bad_arguments(call, error, text):
    arguments = dict(codes=torch.zeros(2, 2), levels=[3, 3], rng=torch.tensor([1, 2]), fraction=0.5)
    with pytest.raises(error, match=text):
        ops.scalar_noise(**{**arguments, **call})


def test_noise_operators_pass_opcheck(generator):
    codes = torch.randn(3, 5, 2, generator=generator, requires_grad=True)
    rng = torch.tensor([1, 2])
    torch.library.opcheck(ops.scalar_noise.default, (codes, [5, 4], rng), {"fraction": 0.5})
    torch.library.opcheck(ops.scalar_code_indices.default, (codes.detach(), [5, 4]))


def test_noise_counts_steps_and_leaves_evaluation_alone():
    module, x = make("noisy")
    first, second = module(x).quantized, module(x).quantized
    assert module.rng[1] == 2 and not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x).quantized, module(x).quantized) and module.rng[1] == 2
    module.rng[1] = 0
    assert torch.equal(module.train()(x).quantized, first)
    assert torch.equal(module(x).indices, module.eval()(x).indices)
    assert "rng" not in FSQ(LEVELS).state_dict()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("case", ["noisy", "noisy_rotated", "projected"])
def test_checkpointed_steps_are_plain_steps(case, reentrant):
    plain, x = make(case)
    module = copy.deepcopy(plain)

    def forward(z: torch.Tensor) -> Any:
        return checkpoint(lambda z: tuple(module(z)), z, use_reentrant=reentrant)

    for _ in range(3):
        for found, expected in zip(train_step(forward, x), train_step(plain, x), strict=True):
            assert torch.equal(found, expected)
        for name, value in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
    assert len(module._records) == 0


# Compilers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_compiles_in_one_graph(case, compiler):
    module, x = make(case)
    twin = copy.deepcopy(module)
    compiled = torch.compile(twin, fullgraph=True, backend=compiler)
    for _ in range(2):
        for found, expected in zip(train_step(compiled, x), train_step(module, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        for name, value in module.state_dict().items():
            assert torch.equal(twin.state_dict()[name], value), name
    twin.eval(), module.eval()
    assert torch.equal(compiled(x).indices, module(x).indices)


# State ---------------------------------------------------------------------------------------------------------


def test_state_of_the_reference_loads():
    kwargs = dict(dim=12, orthogonal_rotation=True, preserve_symmetry=True, noise_dropout=0.3)
    theirs = Reference([5] * 4, **kwargs)
    module = FSQ([5] * 4, **kwargs)
    module.rng[1] = 7
    module.load_state_dict(theirs.state_dict(), strict=True)
    assert torch.equal(module.orthogonal_rot, theirs.orthogonal_rot) and module.rng[1] == 0
    with torch.device("meta"):
        shell = FSQ([5] * 4, **kwargs)
    shell.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    assert shell.rng.device.type == "cpu" and shell.rng[1] == 0


def test_state_resumes_copies_and_pickles():
    module, x = make("noisy_rotated")
    module(x)
    fresh = FSQ([5] * 4, orthogonal_rotation=True, **NOISY)
    fresh.load_state_dict(module.state_dict())
    twins = [fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    expected = module(x).quantized
    for twin in twins:
        assert torch.equal(twin(x).quantized, expected)


def test_construction_builds_no_table():
    module = FSQ([8] * 12, num_codebooks=2, orthogonal_rotation=True)
    numbers = sum(b.numel() for b in module.buffers())
    assert numbers == 144 + 2 * 12 and module.codebook_size == 8**12
    assert FSQ([65536] * 3 + [16384]).codebook_size == 2**62


@pytest.mark.parametrize("levels", [[17] * 6, [5] * 11, [8] * 12], ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("codebooks", [1, 2])
def test_a_million_random_codes_round_trip(levels, symmetric, codebooks, generator):
    module = FSQ(levels, preserve_symmetry=symmetric, num_codebooks=codebooks)
    size = (10**6 // codebooks, codebooks) if codebooks > 1 else (10**6,)
    indices = torch.randint(module.codebook_size, size, generator=generator)
    codes = module.indices_to_codes(indices)
    grouped = codes.unflatten(-1, (codebooks, -1)) if codebooks > 1 else codes
    assert torch.equal(module.codes_to_indices(grouped), indices)
    # Latents in the middle of each level also quantize to these indices.
    edge = 0.999 if symmetric else 0.99
    bounded = (grouped.double() * edge).clamp(-edge, edge)
    if not symmetric:
        return
    found = module(bounded.atanh().flatten(-2) if codebooks > 1 else bounded.atanh())[1]
    assert torch.equal(found, indices)


@pytest.mark.parametrize("symmetric", [False, True])
def test_codes_to_indices_takes_the_nearest_level(symmetric):
    module = FSQ([5, 4], preserve_symmetry=symmetric)
    codes = module.implicit_codebook
    assert torch.equal(module.codes_to_indices(codes), torch.arange(20))
    assert torch.equal(module.codes_to_indices(codes.bfloat16() + 0.01), torch.arange(20))
    far = torch.tensor([[9.0, -9.0], [torch.nan, 1.0], [torch.inf, 0.0]])
    assert module.codes_to_indices(far).tolist()[:2] == [4, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("symmetric", [False, True])
def test_indices_of_codes_are_those_of_plain_torch(symmetric, dtype, generator):
    """Halves between levels, numbers beyond them, and rows with NaN or infinity included."""
    levels = [5, 2, 8, 65536, 3]
    codes = torch.randn(3, 700, 5, generator=generator)
    codes[0] = codes[0].mul(8).round().div(8)
    codes[1, ::7, 2] = torch.nan
    codes[1, ::5, 1] = torch.inf
    codes[1, ::3, 0] = -torch.inf
    codes = codes.to(dtype)
    for given in (codes, codes.transpose(0, 1), codes[:, :0], codes[0, 0]):
        found = ops.scalar_code_indices(given, levels, symmetric=symmetric)
        expected = any_path("scalar_code_indices")(given, levels, symmetric=symmetric)
        assert torch.equal(found, expected)


def test_noise_moves_no_code_beyond_its_indices():
    """Codes with noise still belong to the index from which they came."""
    module = FSQ(LEVELS, preserve_symmetry=True, noise_dropout=1.0)
    quantized, indices = module(torch.randn(4, 500, 4))
    assert torch.equal(module.codes_to_indices(quantized), indices)


# Hostile input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        (dict(levels=[]), ValueError, "at least one number of levels"),
        (dict(levels=[1, 3]), ValueError, r"levels to be in \[3, 65536\]"),
        (dict(levels=[2]), ValueError, "preserve_symmetry"),
        (dict(levels=[8.5]), TypeError, "list of integers"),
        (dict(levels=7), TypeError, "list of integers"),
        (dict(levels=[65536] * 4), ValueError, r"at most 2\^62"),
        (dict(levels=[5], num_codebooks=0), ValueError, "num_codebooks"),
        (dict(levels=[5], dim=0), ValueError, "dim"),
        (dict(levels=[5], noise_dropout=0.5), ValueError, "noise_dropout"),
        (dict(levels=[5], noise_dropout=-1, preserve_symmetry=True), ValueError, "noise_dropout"),
        (dict(levels=[5], num_codebooks=2, keep_num_codebooks_dim=False), ValueError, "keep_num"),
    ],
)
def test_bad_options(kwargs, error, text):
    with pytest.raises(error, match=text):
        FSQ(**kwargs)


def test_bad_calls():
    module, x = make("noisy")
    for call, error in [
        (lambda: module(x.long()), TypeError),
        (lambda: module("text"), TypeError),
        (lambda: module(x[..., :3]), ValueError),
        (lambda: module(x, mask=torch.ones(2, 6, dtype=torch.bool)), ValueError),
        (lambda: module(x, mask=torch.ones(2, 7)), TypeError),
        (lambda: module.indices_to_codes(torch.tensor([[0.5]])), TypeError),
        (lambda: module.indices_to_codes(torch.tensor([[1000]])), IndexError),
        (lambda: module.indices_to_level_indices(torch.tensor([-2])), IndexError),
        (lambda: module.codes_to_indices(torch.zeros(3)), ValueError),
        (lambda: module.bound(x, eps=0.1), ValueError),
        (
            lambda: FSQ(LEVELS, num_codebooks=2).indices_to_codes(torch.zeros(1, 3).long()),
            ValueError,
        ),
    ]:
        with pytest.raises(error):
            call()
    assert module.rng[1] == 0


def test_unequal_levels_under_rotation_warn():
    with pytest.warns(UserWarning, match="different numbers of levels"):
        FSQ(LEVELS, orthogonal_rotation=True)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, True),
        (dict(channel_first=False), False),
        (dict(channel_first=True), True),
        (dict(channel_first=False, vqp_compat=True), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("places", [(4, 5), (2, 4, 5)], ids=["image", "video"])
def test_the_layout_of_maps_is_the_one_that_is_said(options, first, places):
    """Oracle: the same latents as a sequence."""
    fsq = FSQ([8, 5, 5], **options)
    tokens = torch.randn(2, *places, 3, generator=torch.Generator().manual_seed(0))
    quantized, indices = fsq(tokens.movedim(-1, 1) if first else tokens)
    expected = FSQ([8, 5, 5])(tokens.flatten(1, -2))
    right = expected.quantized.view_as(tokens)
    assert torch.equal(quantized, right.movedim(-1, 1) if first else right)
    assert torch.equal(indices.long(), expected.indices.view(2, *places))
    assert torch.equal(fsq.indices_to_codes(indices), quantized)


def test_two_levels_have_no_bound_of_the_paper_but_one_of_symmetry() -> None:
    module = FSQ([2, 3], preserve_symmetry=True)
    z = torch.tensor([[0.3, 0.9], [-5.0, 0.0], [-0.3, -0.6]])
    with pytest.raises(
        ValueError, match=r"expected levels to be in \[3, 65536\], but got \[2, 3\]"
    ):
        module.bound(z)
    expected = torch.stack([z[:, 0].sign(), z[:, 1].tanh().round()], dim=-1)
    assert torch.equal(module.symmetry_preserving_bound(z), expected)
