"""ResidualVQ and GroupedResidualVQ with a beam."""

from __future__ import annotations

import copy

import pytest
import torch

from torchvq import GroupedResidualVQ, ResidualVQ

DIM, LEVELS, CODES = 8, 4, 16


def make(**options):
    torch.manual_seed(0)
    defaults = dict(dim=DIM, num_quantizers=LEVELS, codebook_size=CODES)
    return ResidualVQ(**{**defaults, **options})


def tokens(generator, *shape):
    return torch.randn(*(shape or (2, 40, DIM)), generator=generator)


def remaining(x, output):
    return (output.quantized - x).square().sum()


IMPLICIT = dict(implicit_neural_codebook=True, mlp_kwargs=dict(depth=1))
OPTIONS = {
    "plain": {},
    "cosine": dict(use_cosine_sim=True),
    "shared": dict(shared_codebook=True),
    "sizes": dict(codebook_size=(4, 20, 3, 9)),
    "heads": dict(heads=2, codebook_dim=4),
    "separate heads": dict(heads=2, codebook_dim=4, separate_codebook_per_head=True),
    "projected": dict(codebook_dim=5),
    "learnable": dict(learnable_codebook=True, ema_update=False),
    "affine": dict(affine_param=True),
    "k-means": dict(kmeans_init=True),
    "diveq": dict(diveq=True),
    "gumbel": dict(straight_through=True, rotation_trick=False),
    "cross-entropy": dict(commitment_use_cross_entropy_loss=True),
    "dropout": dict(quantize_dropout=True),
    "dead codes": dict(threshold_ema_dead_code=2),
    "sampling": dict(stochastic_sample_codes=True),
    "sampling, cosine": dict(stochastic_sample_codes=True, use_cosine_sim=True),
    "sampling, k-means": dict(stochastic_sample_codes=True, kmeans_init=True),
    "implicit": IMPLICIT,
    "implicit, k-means": dict(kmeans_init=True, **IMPLICIT),
    "implicit, shared": dict(shared_codebook=True, **IMPLICIT),
    "implicit, sampling": dict(stochastic_sample_codes=True, **IMPLICIT),
    "implicit, dropout": dict(quantize_dropout=True, **IMPLICIT),
    "implicit, heads": dict(heads=2, codebook_dim=4, separate_codebook_per_head=True, **IMPLICIT),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_beams_train_evaluate_and_decode(options, generator):
    rvq = make(beam_size=4, **options)
    mask = torch.rand(2, 40, generator=generator) > 0.3
    for _ in range(2):
        x = tokens(generator).requires_grad_()
        output = rvq(x, mask=mask)
        (output.quantized.square().sum() + output.loss.sum()).backward()
        assert x.grad.isfinite().all() and x.grad[mask].abs().sum() > 0
        assert output.indices[~mask].eq(-1).all()
    rvq.eval()
    output = rvq(tokens(generator))
    decoded = rvq.get_output_from_indices(output.indices)
    assert torch.equal(decoded, output.quantized)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{}, dict(use_cosine_sim=True), dict(shared_codebook=True), IMPLICIT]
)
def test_beam_of_one_is_no_beam(options, training, generator):
    x = tokens(generator)
    runs = []
    for beam in (None, 1):
        rvq = make(beam_size=beam, **options).train(training)
        runs.append((*rvq(x), *rvq.state_dict().values()))
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


def test_larger_beams_leave_less(generator):
    x = tokens(generator)
    rvq = make().eval()
    left = [remaining(x, rvq(x, beam_size=beam)) for beam in (1, 4, 16, CODES ** (LEVELS - 1))]
    assert left == sorted(left, reverse=True) and left[0] > left[1]


def test_which_beam_is_used(generator):
    x = tokens(generator)
    rvq = make(beam_size=2, eval_beam_size=8)
    plain = make()
    for training, beam in ((True, 2), (False, 8)):
        rvq.train(training), plain.train(training)
        expected = plain(x, beam_size=beam, freeze_codebook=True).indices
        assert torch.equal(rvq(x, freeze_codebook=True).indices, expected)
        overridden = rvq(x, beam_size=1, freeze_codebook=True).indices
        assert torch.equal(overridden, plain(x, freeze_codebook=True).indices)


def test_levels_learn_from_the_residuals_of_the_path(generator):
    x = tokens(generator)
    rvq = make(beam_size=4, decay=0.5)
    before = [(c.embed.clone(), c.embed_avg.clone()) for c in rvq._codebooks()]
    indices = rvq(x).indices
    residual = x.double()
    for level, (codes, average) in enumerate(before):
        chosen = indices[..., level].flatten()
        sums = torch.zeros(CODES, DIM, dtype=torch.float64)
        sums.index_add_(0, chosen, residual.flatten(0, 1))
        expected = average[0].double() / 2 + sums / 2
        actual = rvq.levels[level]._codebook.embed_avg[0].double()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        residual = residual - codes[0].double()[indices[..., level]]


def test_masks_equal_the_selection(generator):
    x = tokens(generator)
    mask = torch.rand(2, 40, generator=generator) > 0.4
    padded, plain = make(beam_size=4), make(beam_size=4)
    x_padded = torch.where(mask[..., None], x, float("nan"))
    a, b = padded(x_padded, mask=mask), plain(x[mask][None])
    assert torch.equal(a.indices[mask], b.indices[0])
    torch.testing.assert_close(a.loss, b.loss)
    for name, value in plain.state_dict().items():
        assert torch.equal(padded.state_dict()[name], value), name


def test_non_finite_tokens_are_nan_and_teach_nothing(generator):
    x = tokens(generator)
    x[0, 0, 0] = float("nan")
    rvq = make(beam_size=4)
    output = rvq(x)
    assert output.quantized[0, 0].isnan().all() and output.quantized[0, 1:].isfinite().all()
    assert output.indices[0, 0].eq(0).all()
    assert all(value.isfinite().all() for value in rvq.state_dict().values())


def test_no_tokens_change_nothing():
    rvq = make(beam_size=4)
    before = {name: value.clone() for name, value in rvq.state_dict().items()}
    output = rvq(torch.zeros(2, 0, DIM))
    assert output.indices.shape == (2, 0, LEVELS) and output.loss.eq(0).all()
    assert all(torch.equal(before[name], value) for name, value in rvq.state_dict().items())


def test_groups(generator):
    torch.manual_seed(0)
    grouped = GroupedResidualVQ(
        dim=DIM, groups=2, num_quantizers=3, codebook_size=CODES, eval_beam_size=6
    ).eval()
    x = tokens(generator)
    output = grouped(x)
    parts = [rvq(part) for rvq, part in zip(grouped.stacks, x.chunk(2, -1), strict=True)]
    assert torch.equal(output.indices, torch.stack([part.indices for part in parts]))
    assert remaining(x, output) < remaining(x, grouped(x, beam_size=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(beam_size=0), "beam_size to be at least 1"),
        (dict(eval_beam_size=-1), "eval_beam_size to be at least 1"),
        (dict(beam_size=2, beam_score_quantizer_weights=[1.0]), "beam_score_quantizer_weights"),
        (dict(beam_score_quantizer_weights=[-1.0] * LEVELS), "beam_score_quantizer_weights"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("beam", [0, -1])
@pytest.mark.parametrize("training", [True, False])
def test_bad_beams_that_are_set_later_are_named(training, beam, generator):
    rvq = make(beam_size=2).train(training)
    setattr(rvq, "beam_size" if training else "eval_beam_size", beam)
    before = copy.deepcopy(rvq.state_dict())
    with pytest.raises(ValueError, match=f"expected beam_size to be at least 1, but got {beam}"):
        rvq(tokens(generator))
    assert all(torch.equal(value, before[name]) for name, value in rvq.state_dict().items())


@pytest.mark.parametrize("beam", [2.0, "2"])
def test_beams_of_a_call_that_are_no_integers_are_named(beam, generator):
    rvq = make()
    before = copy.deepcopy(rvq.state_dict())
    with pytest.raises(
        TypeError, match=f"ResidualVQ: expected beam_size to be an integer, but got {beam!r}"
    ):
        rvq(tokens(generator), beam_size=beam)
    assert all(torch.equal(value, before[name]) for name, value in rvq.state_dict().items())


def test_in_place_optimizers_with_a_beam_are_refused_in_training_alone(generator):
    rvq = make(
        beam_size=2,
        learnable_codebook=True,
        ema_update=False,
        in_place_codebook_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    with pytest.raises(ValueError, match="beam_size to be 1 in training with in_place"):
        rvq(tokens(generator))
    rvq.eval()(tokens(generator))


def all_paths(rvq):
    """The vectors that a stack of 4 codes and 3 levels can decode to, (64, D), by its own decoder."""
    paths = torch.cartesian_prod(*[torch.arange(4)] * 3)
    return rvq.get_output_from_indices(paths[None])[0]


def test_a_beam_of_all_implicit_paths_is_optimal(generator):
    rvq = make(num_quantizers=3, codebook_size=4, **IMPLICIT).eval()
    x = tokens(generator, 1, 30, DIM)
    found = rvq(x, beam_size=16)
    errors = torch.cdist(x[0].double(), all_paths(rvq).double())
    torch.testing.assert_close(
        (found.quantized[0].double() - x[0].double()).norm(dim=-1), errors.min(-1).values
    )
    greedy = rvq(x).quantized
    assert remaining(x, found) < (greedy - x).square().sum()


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_sampled_paths_depend_on_the_step_and_lie_between_greedy_and_best(temperature, generator):
    """Cold draws are nearly the beam's; warm ones leave more, and every step draws anew."""
    x = tokens(generator, 4, 100, DIM)
    rvq = make(stochastic_sample_codes=True, sample_codebook_temp=temperature, freeze_codebook=True)
    plain = make(freeze_codebook=True)
    best = remaining(x, plain(x, beam_size=6))
    first, second = rvq(x, beam_size=6), rvq(x, beam_size=6)
    assert not torch.equal(first.indices, second.indices)
    assert remaining(x, first) > best
    # More draws leave less, and one draw of each level more than the nearest codes.
    assert remaining(x, first) < remaining(x, rvq(x, beam_size=2)) < remaining(x, rvq(x))


def test_draws_of_all_codes_are_the_beam_itself(generator):
    x = tokens(generator)
    sampled = make(stochastic_sample_codes=True, freeze_codebook=True)(x, beam_size=CODES)
    assert torch.equal(sampled.indices, make(freeze_codebook=True)(x, beam_size=CODES).indices)


def test_draws_of_all_implicit_codes_are_the_beam_itself(generator):
    """Every level draws as many codes as the beam is wide, the last one too."""
    x = tokens(generator)
    options = dict(freeze_codebook=True, **IMPLICIT)
    sampled = make(stochastic_sample_codes=True, **options)(x, beam_size=CODES)
    assert torch.equal(sampled.indices, make(**options)(x, beam_size=CODES).indices)


@pytest.mark.parametrize("options", [{}, IMPLICIT], ids=["plain", "implicit"])
def test_a_seed_repeats_the_draws_of_a_beam(options, generator):
    x = tokens(generator)
    runs = []
    for _ in range(2):
        rvq = make(beam_size=3, stochastic_sample_codes=True, **options)
        runs.append([rvq(x).indices for _ in range(2)])
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])


@pytest.mark.parametrize(
    "options",
    [
        dict(quantize_dropout=True),
        dict(stochastic_sample_codes=True),
        dict(quantize_dropout=True, stochastic_sample_codes=True),
        {},
    ],
)
def test_implicit_beams_compile(options, generator):
    """Dropout leaves the depth to the device: the best path of the levels in use."""
    x = tokens(generator)
    results = []
    for compiles in (False, True):
        rvq = make(beam_size=3, **IMPLICIT, **options)
        call = torch.compile(rvq, fullgraph=True, backend="aot_eager") if compiles else rvq
        results.append([call(x) for _ in range(3)])
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager.indices, compiled.indices)
        torch.testing.assert_close(eager.quantized, compiled.quantized)


@pytest.mark.parametrize("of_the_call", [True, False])
@pytest.mark.parametrize("temperature", [0.0, -1.0])
@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("common", [{}, IMPLICIT], ids=["plain", "implicit"])
def test_at_no_temperature_the_best_codes_are_taken(
    common, beam, temperature, of_the_call, generator
):
    x = tokens(generator)
    found = []
    for options in ({}, dict(stochastic_sample_codes=True)):
        torch.manual_seed(0)
        if options and not of_the_call:
            options |= dict(sample_codebook_temp=temperature)
        rvq = make(beam_size=beam, **common, **options)
        call = dict(sample_codebook_temp=temperature) if options and of_the_call else {}
        found.append(rvq(x, **call))
    for plain, sampled in zip(*found, strict=True):
        assert torch.equal(plain, sampled)
