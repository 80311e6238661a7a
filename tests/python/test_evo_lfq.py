"""EvoLFQ (python/torchvq/evo_lookup_free_quantization.py): search over bits between an encoder and a decoder."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from torchvq import LFQ, EvoLFQ


def build(**options):
    torch.manual_seed(1)
    own = dict(dim=8, codebook_size=16, num_codebooks=2, commitment_loss_weight=0.25, pop_size=16)
    return EvoLFQ(nn.Linear(6, 8), nn.Linear(8, 6), **{**own, **options})


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def ones(decoded, bits):
    return bits.flatten(1).gt(0).sum(-1).float()


def test_forward_is_the_autoencoder():
    evo = build()
    x = data(2, 5, 6)
    reconstructed, indices, loss = evo(x)
    right = evo.lfq(evo.encoder(x))
    assert torch.equal(reconstructed, evo.decoder(right[0])) and torch.equal(indices, right[1])
    assert torch.equal(loss, right[2])
    (named, terms) = evo(x, return_loss_breakdown=True)
    assert named._fields == ("reconstructed", "indices", "entropy_aux_loss") and len(terms) == 3
    (reconstructed.square().mean() + loss).backward()
    assert evo.encoder.weight.grad.abs().max() > 0


@pytest.mark.parametrize("shape", [(4, 6), (2, 5, 6)])
def test_bits_and_signs_of_data_decode_to_its_reconstruction(shape):
    evo = build()
    x = data(*shape)
    bits, signs = evo.encode(x), evo.encode(x, return_signs=True)
    assert bits.shape == (*shape[:-1], 8) and torch.equal(bits * 2 - 1, signs) and evo.training
    torch.testing.assert_close(evo.decode_bits(bits), evo(x)[0])
    torch.testing.assert_close(evo.decode_bits(signs), evo(x)[0])


def test_images_and_projections():
    lfq = LFQ(dim=7, codebook_size=16, commitment_loss_weight=1.0)
    evo = EvoLFQ(nn.Conv2d(3, 7, 1), nn.Conv2d(7, 3, 1), lfq, pop_size=4).eval()
    x = data(2, 3, 4, 5)
    bits = evo.encode(x)
    assert bits.shape == (2, 4, 5, 4)
    torch.testing.assert_close(evo.decode_bits(bits), evo(x)[0])
    following, fitness = evo.step(
        evo.init_population_from_data(x), lambda d, b: d.flatten(1).sum(1)
    )
    assert following.shape == (4, 4, 5, 4) and fitness.shape == (4,)


def test_same_numbers_as_the_reference():
    from vector_quantize_pytorch import EvoLFQ as Reference

    evo = build()
    torch.manual_seed(1)
    theirs = Reference(nn.Linear(6, 8), nn.Linear(8, 6), dim=8, codebook_size=16, num_codebooks=2)
    evo.load_state_dict(theirs.state_dict(), strict=True)
    x = data(2, 5, 6)
    assert torch.equal(evo.encode(x), theirs.encode(x))
    assert torch.equal(evo.decode_bits(evo.encode(x)), theirs.decode_bits(theirs.encode(x)))
    population = evo.init_random_population(9, (5, 8))
    found = evo.step(population, lambda d, b: -d.square().flatten(1).sum(1), elitism_count=3)
    right = theirs.step(population, lambda d, b: -d.square().flatten(1).sum(1), elitism_count=3)
    assert torch.equal(found[0][:3], right[0][:3]) and torch.equal(found[1], right[1])
    for name in ("encode", "decode_bits", "evolve", "mutate", "init_random_population"):
        ours = inspect.signature(getattr(EvoLFQ, name)).parameters
        assert list(ours) == list(inspect.signature(getattr(Reference, name)).parameters)


def test_evolution_finds_all_ones():
    evo = build(pop_size=40, mutation_rate=0.01)
    results = list(evo.evolve(ones, shape=(3, 8), generations=60, return_best_decoded=True))
    best = [result.best_fitness for result in results]
    assert best == sorted(best) and best[-1] == 24 and best[0] < 24
    last = results[-1]
    assert last.best_gene.eq(1).all() and last.pop_bits.shape == (40, 3, 8)
    assert torch.equal(last.best_decoded, evo.decode_bits(last.best_gene[None])[0])
    assert evo.training and not last.best_decoded.requires_grad


def test_the_best_gene_is_a_copy():
    evo = build()
    population = torch.eye(8).flip(0).repeat(2, 1)
    population[0] = 1
    runs = evo.evolve(ones, pop_bits=population, generations=2, mutation_rate=0.0)
    first = next(runs)
    population.zero_()
    first.pop_bits.zero_()
    for result in (first, next(runs)):
        assert result.best_fitness == 8 and result.best_gene.eq(1).all()


def test_signs_stay_signs_and_batches_change_nothing():
    first, second = build(), build()
    population = first.init_random_population(10, (5, 8), is_sign=True)
    second.init_random_population(10, (5, 8), is_sign=True)
    assert set(population.unique().tolist()) == {-1, 1}
    a = first.step(population, ones, is_sign=True, mutation_rate=0.3)
    b = second.step(population, ones, is_sign=True, mutation_rate=0.3, batch_size=3)
    assert set(a[0].unique().tolist()) == {-1, 1} and all(map(torch.equal, a, b))


def test_operators_have_the_stated_distribution():
    evo = build()
    zeros = torch.zeros(200, 50)
    assert abs(evo.mutate(zeros, 0.3).mean() - 0.3) < 0.02
    assert evo.mutate(zeros, 0.0).sum() == 0 and evo.mutate(zeros, 1.0).mean() == 1
    assert abs(evo.uniform_crossover(zeros, zeros + 1).mean() - 0.5) < 0.02
    population = torch.arange(1000.0).unsqueeze(1)
    won = evo.tournament_selection(population, population.squeeze(1), 2).mean() / 999
    assert abs(won - 2 / 3) < 0.04
    best = evo.tournament_selection(population[:4], torch.tensor([0.0, float("nan"), 5.0, 1.0]), 64)
    assert best.eq(2).all()


@pytest.mark.parametrize("size", [2, 3, 7])
def test_population_from_data_is_mutated_as_in_the_reference(size):
    from vector_quantize_pytorch import EvoLFQ as Reference

    evo, theirs = build(), Reference(nn.Linear(6, 8), nn.Linear(8, 6), build().lfq)
    theirs.load_state_dict({k: v for k, v in evo.state_dict().items() if k != "rng"})
    x = data(3, 5, 6)
    # At the rates 0 and 1 no chance is left.
    for rate in (0.0, 1.0):
        population = evo.init_population_from_data(x, pop_size=size, mutation_rate=rate)
        right = theirs.init_population_from_data(x, pop_size=size, mutation_rate=rate)
        assert population.dtype == right.dtype and torch.equal(population, right)


class Noisy(nn.Module):
    """A decoder with dropout that notes how it is called."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.sizes = nn.Linear(8, 6), nn.Dropout(0.5), []

    def forward(self, codes):
        assert not (self.training or self.dropout.training or torch.is_grad_enabled())
        self.sizes.append(len(codes))
        return self.dropout(self.linear(codes))


def test_bits_decode_without_dropout_and_gradient():
    evo = build()
    evo.decoder = Noisy()
    evo.encoder.eval()
    decoded = evo.decode_bits(evo.init_random_population(4, (5, 8)))
    assert not decoded.requires_grad and evo.decoder.dropout.training and not evo.encoder.training


def ranks(decoded, bits):
    return decoded.flatten(1).sum(1).argsort().argsort().float()


def test_batches_decode_apart_and_are_scored_together_as_in_the_reference():
    from vector_quantize_pytorch import EvoLFQ as Reference

    evo = build()
    evo.decoder = Noisy()
    theirs = Reference(nn.Linear(6, 8), evo.decoder, evo.lfq)
    population = evo.init_random_population(7, (5, 8))
    _, found = evo.step(population, ranks, batch_size=3)
    assert evo.decoder.sizes == [3, 3, 1]
    _, right = theirs.step(population, ranks, batch_size=3)
    assert torch.equal(found, right) and found.unique().numel() == 7


@pytest.mark.parametrize(
    "converted", [list, tuple, lambda scores: scores.numpy(), torch.Tensor.tolist]
)
def test_fitness_may_be_any_numbers(converted):
    first, second = build(), build()
    population = first.init_random_population(6, (8,))
    second.init_random_population(6, (8,))
    following, found = first.step(population, lambda d, b: converted(ones(d, b)))
    right, expected = second.step(population, ones)
    assert torch.equal(following, right) and torch.equal(found, expected)
    assert found.dtype == torch.float32


def test_a_search_resumes_from_its_checkpoint():
    first = build()
    population = first.init_random_population(shape=(8,))
    population, _ = first.step(population, ones)
    second = build(pop_size=5)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.step(population, ones)[0], second.step(population, ones)[0])
    assert not torch.equal(first.mutate(population, 0.5), first.mutate(population, 0.5))


@pytest.mark.parametrize(
    "options",
    [
        dict(pop_size=1),
        dict(elitism_count=16),
        dict(mutation_rate=1.5),
        dict(tournament_size=0),
        dict(generations=-1),
        dict(codebook_size=10),
    ],
)
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="expected"):
        build(**options)


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.decode_bits(torch.zeros(2, 7)),
        lambda e: next(e.evolve(ones)),
        lambda e: e.step(torch.zeros(4, 8), ones, elitism_count=4),
        lambda e: e.step(torch.zeros(4, 8), lambda d, b: d.sum().view(1)),
        lambda e: e.step(torch.zeros(4, 8), lambda d, b: 1.0),
        lambda e: e.mutate(torch.zeros(4, 8), 2.0),
        lambda e: next(e.evolve(ones, shape=(8,), generations=-3)),
        lambda e: e.init_random_population(0, (8,)),
        lambda e: e.init_population_from_data(torch.randn(3, 6), 0),
    ],
)
def test_calls_are_checked(call):
    with pytest.raises(ValueError, match="expected"):
        call(build())


@pytest.mark.parametrize(
    "call",
    [
        lambda e, p: e.init_random_population(2.5, (3, 4)),
        lambda e, p: e.init_random_population(4, (3, 4.0)),
        lambda e, p: e.init_population_from_data(torch.randn(3, 6), 2.5),
        lambda e, p: e.init_population_from_data(torch.randn(3, 6), 2, "x"),
        lambda e, p: e.mutate(p, "x"),
        lambda e, p: e.mutate("x"),
        lambda e, p: e.uniform_crossover(p, "x"),
        lambda e, p: e.tournament_selection(p, torch.randn(4), 1.5),
        lambda e, p: e.tournament_selection(p, [1.0] * 4),
        lambda e, p: e.step(p, ones, 2.5),
        lambda e, p: e.step(p, lambda d, b: None),
    ],
)
def test_wrong_types_are_type_errors_and_draw_nothing(call):
    evo = build()
    population, before = torch.zeros(4, 8), evo.rng.clone()
    with pytest.raises(TypeError, match="EvoLFQ: expected"):
        call(evo, population)
    assert torch.equal(evo.rng, before)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(mutation_rate=1.5), ValueError),
        (dict(tournament_size=0), ValueError),
        (dict(batch_size=0), ValueError),
        (dict(elitism_count=-1), ValueError),
        (dict(bits=torch.bool), TypeError),
    ],
)
def test_a_refused_step_draws_nothing(options, error):
    evo = build()
    bits = evo.init_random_population(5, (3,)).to(options.pop("bits", torch.float32))
    before, asked = evo.rng.clone(), []

    def fitness(decoded, bits):
        asked.append(bits)
        return torch.ones(len(bits))

    with pytest.raises(error, match="EvoLFQ: expected"):
        evo.step(bits, fitness, **options)
    assert torch.equal(evo.rng, before) and not asked
