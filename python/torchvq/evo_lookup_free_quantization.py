"""EvoLFQ: evolutionary search over the bits of lookup-free codes, between an encoder and a decoder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.arguments import expect_tensor, integer
from torchvq._base.options import check_options, expect, named
from torchvq._base.projection import in_dtype_of
from torchvq._base.random_state import RandomState
from torchvq.lookup_free_quantization import LFQ
from torchvq.outputs import LookupFreeLossBreakdown, exportable

_ops = torch.ops.torchvq
#: Maps decoded candidates and their bits to one number per candidate; larger is fitter.
Fitness = Callable[[Tensor, Tensor], Tensor | Sequence[float]]


class Return(NamedTuple):
    """The result of a forward."""

    reconstructed: Tensor
    indices: Tensor
    entropy_aux_loss: Tensor


exportable(Return)


class Result(NamedTuple):
    """One generation: the next population, and the fittest candidate so far."""

    pop_bits: Tensor
    best_gene: Tensor
    best_fitness: float
    best_decoded: Tensor | None


class EvoLFQ(RandomState):
    """A genetic algorithm on the bits of an autoencoder's lookup-free codes.

    Candidates are bits (*, C * D) of all positions, features last in every layout, 0 and 1 or, with ``is_sign``, -1
    and 1. A generation keeps the fittest candidates and fills up with mutated crossovers of tournament winners
    (Goldberg and Deb 1991, A comparative analysis of selection schemes; Syswerda 1989, Uniform crossover). The search
    needs no gradient; ``forward`` is the autoencoder, which is trained first.

    Args:
        encoder: module that maps data to the input of ``lfq``.
        decoder: module that maps the output of ``lfq`` to data.
        lfq: the quantizer. Default: an ``LFQ`` with the following options.
        dim, codebook_size, num_codebooks: see ``LFQ``.
        pop_size: candidates ``P`` of a population, above elitism_count. Default: 64.
        mutation_rate: probability, in [0, 1], that a bit flips. Default: 0.02.
        tournament_size: candidates that compete to become a parent, at least 1. Default: 2.
        elitism_count: fittest candidates that survive unchanged, 0 or more. Default: 1.
        generations: number of generations of ``evolve``. Default: 50.
        **lfq_kwargs: more options of ``LFQ``.

    State: that of its modules, and ``rng`` (2,), seed and step of the counter-based generator: a search resumed from a
    checkpoint continues with the same bits. The seed is drawn at construction. Every draw counts a step.

    Shapes: ``B`` batch, ``*`` positions, ``C`` = ``num_codebooks``, ``D`` = log2(codebook_size) bits.

    Gradient: ``forward`` has that of ``LFQ`` in training; populations and fitness have none.

    Dtypes: each network gets its input in the dtype of its weights; populations that the class makes are float32,
    and those of another numeric dtype keep it.

    Raises:
        ValueError: an option out of range. TypeError: an option of a wrong type, or an unknown one.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> encoder, decoder = nn.Linear(8, 10), nn.Linear(10, 8)
        >>> evo = EvoLFQ(encoder, decoder, dim=10, codebook_size=1024, commitment_loss_weight=0.25, pop_size=16)
        >>> reconstructed, indices, loss = evo(torch.randn(4, 8))
        >>> reconstructed.shape, indices.shape
        (torch.Size([4, 8]), torch.Size([4]))
        >>> generations = list(evo.evolve(lambda decoded, bits: decoded.sum(-1), shape=(10,), generations=3))
        >>> generations[-1].pop_bits.shape, generations[-1].best_gene.shape
        (torch.Size([16, 10]), torch.Size([10]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        lfq: LFQ | None = None,
        *,
        dim: int | None = None,
        codebook_size: int | None = None,
        num_codebooks: int = 1,
        pop_size: int = 64,
        mutation_rate: float = 0.02,
        tournament_size: int = 2,
        elitism_count: int = 1,
        generations: int = 50,
        **lfq_kwargs: Any,
    ) -> None:
        super().__init__()
        lfq_kwargs |= dict(dim=dim, codebook_size=codebook_size, num_codebooks=num_codebooks)
        search = named(locals(), "pop_size mutation_rate tournament_size elitism_count generations")
        # A quantizer that is passed has been checked, and the options for another one are ignored.
        size = lfq_kwargs if lfq is None else dict(codebook_size=lfq.codebook_size)
        check_options("EvoLFQ", search | size)
        self.encoder = encoder
        self.decoder = decoder
        self.lfq = LFQ(**lfq_kwargs) if lfq is None else lfq
        self.pop_size = pop_size
        self.mutation_rate = mutation_rate
        self.tournament_size = tournament_size
        self.elitism_count = elitism_count
        self.generations = generations
        self.keep_rng()

    # The autoencoder -----------------------------------------------------------------------------------------

    def forward(self, x: Tensor, **kwargs: Any) -> Return | tuple[Return, LookupFreeLossBreakdown]:
        """decoder(lfq(encoder(x))); arguments beyond x as for ``LFQ.forward``.

        Each network gets its input in the dtype of its weights, and the result has the dtype that the decoder returns.

        Returns:
            ``(reconstructed, indices, entropy_aux_loss)``, named, with ``return_loss_breakdown`` and its terms.
        """
        found = self.lfq(self._encoded(x), **kwargs)
        with_terms = kwargs.get("return_loss_breakdown", False)
        quantized, indices, loss = found[0] if with_terms else found
        result = Return(self._data_of(quantized), indices, loss)
        return (result, found[1]) if with_terms else result

    @torch.no_grad()
    def encode(self, x: Tensor, return_signs: bool = False) -> Tensor:
        """Bits (B, *, C * D), float32, of data: 0 and 1, with ``return_signs`` -1 and 1."""
        with self._evaluating():
            indices = self.lfq(self._encoded(x))[1]
        if not self.lfq.keep_num_codebooks_dim:
            indices = indices.unsqueeze(-1)
        return _ops.indices_to_bits(indices, self.lfq.codebook_dim, is_sign=return_signs)

    @torch.no_grad()
    def decode_bits(self, bits: Tensor) -> Tensor:
        """Data of bits (B, *, C * D), set where above 0; without gradient, with all modules in evaluation."""
        lfq = self.lfq
        features = lfq.num_codebooks * lfq.codebook_dim
        fits = bits.dim() >= 1 and bits.shape[-1] == features
        expect("EvoLFQ", fits, "bits", f"of {features} features", f"shape {list(bits.shape)}")
        indices = _ops.bits_to_indices(bits, lfq.codebook_dim)
        if not lfq.keep_num_codebooks_dim:
            indices = indices.squeeze(-1)
        with self._evaluating():
            return self._data_of(lfq.indices_to_codes(indices))

    def _encoded(self, x: Tensor) -> Tensor:
        return self.encoder(in_dtype_of(self.encoder, x))

    def _data_of(self, codes: Tensor) -> Tensor:
        return self.decoder(in_dtype_of(self.decoder, codes))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modules = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in modules:
                module.training = True

    # Populations ---------------------------------------------------------------------------------------------

    def init_random_population(
        self,
        pop_size: int | None = None,
        shape: tuple[int, ...] | None = None,
        device: torch.device | str | None = None,
        is_sign: bool = False,
    ) -> Tensor:
        """Fair random bits (P, *shape); shape ends with the C * D features, which it is by default."""
        features = self.lfq.num_codebooks * self.lfq.codebook_dim
        rows = self._population_size(pop_size)
        size = (rows, *(integer("EvoLFQ", "shape", axis) for axis in shape or (features,)))
        bits = self._drawn(_ops.random_bits(self.rng, size, is_sign=is_sign))
        return bits if device is None else bits.to(device)

    def init_population_from_data(
        self,
        x: Tensor,
        pop_size: int | None = None,
        mutation_rate: float | None = None,
        is_sign: bool = False,
    ) -> Tensor:
        """(P, *, C * D): the bits of the first P items of the batch, or of all, repeated; mutated."""
        size = self._population_size(pop_size)
        rate = self._option("mutation_rate", mutation_rate)
        bits = self.encode(x, return_signs=is_sign)
        return self._drawn(_ops.grow_population(bits, self.rng, size, rate, is_sign=is_sign))

    def mutate(
        self, population: Tensor, mutation_rate: float | None = None, is_sign: bool = False
    ) -> Tensor:
        """The population with each bit flipped with the probability mutation_rate."""
        expect_tensor("EvoLFQ", "population", population)
        rate = self._option("mutation_rate", mutation_rate)
        return self._drawn(_ops.mutate_bits(population, self.rng, rate, is_sign=is_sign))

    def tournament_selection(
        self, population: Tensor, fitnesses: Tensor, tournament_size: int | None = None
    ) -> Tensor:
        """As many parents as candidates: each is the fittest of tournament_size draws with replacement."""
        expect_tensor("EvoLFQ", "population", population)
        expect_tensor("EvoLFQ", "fitnesses", fitnesses)
        size = self._option("tournament_size", tournament_size)
        return self._drawn(_ops.select_parents(population, fitnesses, self.rng, size))

    def uniform_crossover(self, parent1: Tensor, parent2: Tensor) -> Tensor:
        """Each bit from one parent or the other, by a fair coin."""
        expect_tensor("EvoLFQ", "parent1", parent1)
        expect_tensor("EvoLFQ", "parent2", parent2)
        return self._drawn(_ops.cross_bits(parent1, parent2, self.rng))

    # Evolution -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(
        self,
        pop_bits: Tensor,
        fitness_fn: Fitness,
        tournament_size: int | None = None,
        mutation_rate: float | None = None,
        elitism_count: int | None = None,
        is_sign: bool = False,
        batch_size: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One generation.

        Args:
            pop_bits: (P, *, C * D).
            fitness_fn: maps decoded candidates (P, ...) and their bits to (P,), a tensor or numbers that torch converts
                to one; NaN counts as least fit. Called once, without gradient, with all modules in evaluation.
            tournament_size, mutation_rate, elitism_count: override the options.
            is_sign: bits are -1 and 1.
            batch_size: candidates that are decoded together; all are scored together. Default: all.

        Returns:
            The next population, with the survivors first in order of fitness, and the fitness (P,) of this one.
        """
        # Before the fitness is asked for, and the generator advances.
        expect_tensor("EvoLFQ", "pop_bits", pop_bits)
        elite, count = self._option("elitism_count", elitism_count), len(pop_bits)
        expect("EvoLFQ", 0 <= elite < count, "elitism_count", f"in [0, {count})", elite)
        rate = self._option("mutation_rate", mutation_rate)
        size = self._option("tournament_size", tournament_size)
        fits = batch_size is None or batch_size >= 1
        expect("EvoLFQ", fits, "batch_size", "at least 1", batch_size)
        if pop_bits.dtype == torch.bool:
            raise TypeError("EvoLFQ: expected pop_bits to be numbers, but got torch.bool")
        fitnesses = self._fitness(pop_bits, fitness_fn, batch_size)
        survivors = pop_bits[_ops.fittest_first(fitnesses)[:elite].to(pop_bits.device)]
        first = self.tournament_selection(pop_bits, fitnesses, size)
        second = self.tournament_selection(pop_bits, fitnesses, size)
        children = self.mutate(self.uniform_crossover(first, second), rate, is_sign)
        return torch.cat([survivors, children[elite:]]), fitnesses

    def evolve(
        self,
        fitness_fn: Fitness,
        pop_bits: Tensor | None = None,
        pop_size: int | None = None,
        shape: tuple[int, ...] | None = None,
        generations: int | None = None,
        is_sign: bool = False,
        return_best_decoded: bool = False,
        **step_kwargs: Any,
    ) -> Iterator[Result]:
        """Yields one ``Result`` per generation.

        Args:
            fitness_fn: as for ``step``.
            pop_bits: the initial population. Default: a random one of ``pop_size`` and ``shape``.
            generations: number of generations. Default: the option.
            return_best_decoded: decode the fittest candidate in each generation.
            **step_kwargs: further arguments of ``step``.
        """
        rounds = self._option("generations", generations)
        if pop_bits is None:
            expect("EvoLFQ", shape is not None, "shape", "given if pop_bits is None", shape)
            pop_bits = self.init_random_population(pop_size, shape, is_sign=is_sign)
        # Copies: the caller may write to the population.
        best_gene, best_fitness = pop_bits[0].clone(), -float("inf")
        for _ in range(rounds):
            following, fitnesses = self.step(pop_bits, fitness_fn, is_sign=is_sign, **step_kwargs)
            fittest = int(_ops.fittest_first(fitnesses)[0])
            # NaN compares as not above.
            if float(fitnesses[fittest]) > best_fitness:
                best_gene, best_fitness = pop_bits[fittest].clone(), float(fitnesses[fittest])
            pop_bits = following
            decoded = self.decode_bits(best_gene[None])[0] if return_best_decoded else None
            yield Result(pop_bits, best_gene, best_fitness, decoded)

    def _fitness(self, bits: Tensor, fitness_fn: Fitness, batch_size: int | None) -> Tensor:
        parts = torch.split(bits, len(bits) if batch_size is None else batch_size)
        with self._evaluating():
            decoded = torch.cat([self.decode_bits(part) for part in parts])
            scores = fitness_fn(decoded, bits)
        if scores is None:
            raise TypeError("EvoLFQ: expected fitness_fn to return numbers, but got None")
        fitnesses = torch.as_tensor(
            scores, device=None if isinstance(scores, Tensor) else bits.device
        )
        if fitnesses.shape != bits.shape[:1]:
            raise ValueError(
                f"EvoLFQ: expected fitness_fn to return fitnesses of shape [{len(bits)}], "
                f"but got shape {list(fitnesses.shape)}"
            )
        return fitnesses

    def _option(self, name: str, value: Any) -> Any:
        """An option, or what a call gives instead, checked like the option."""
        if value is None:
            return getattr(self, name)
        # Each population has its own size.
        given = {"codebook_size": self.lfq.codebook_size, "pop_size": 2**62, name: value}
        check_options("EvoLFQ", given)
        return value

    def _population_size(self, given: int | None) -> int:
        """The candidates of a population, by the option or by a call."""
        if given is None:
            return self.pop_size
        size = integer("EvoLFQ", "pop_size", given)
        expect("EvoLFQ", size >= 1, "pop_size", "at least 1", size)
        return size

    def _drawn(self, result: Tensor) -> Tensor:
        """Counts a draw."""
        _ops.advance_rng_(self.rng)
        return result

    @property
    def device(self) -> torch.device:
        """The device of the codes."""
        return self.lfq.mask.device
