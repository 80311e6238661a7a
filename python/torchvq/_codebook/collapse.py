"""Signs that a codebook is collapsing, from the statistics of its steps."""

from collections.abc import Iterator
from typing import NamedTuple

from torchvq._codebook.stats import CodebookStats


class CollapseWarning(UserWarning):
    """A codebook is losing its codes."""


class CollapseLimits(NamedTuple):
    """When ``Monitor`` warns. All are compared with running means of the records of a level.

    They are plain means until there are ``window`` records, then exponential ones, in which a new record has the share
    1 / ``window``.
    """

    #: Records after which warnings begin, and over which exponential means decay; at least 1.
    window: int = 50
    #: Warn when the perplexity is below this fraction of its best, in [0, 1]; 0 never warns.
    perplexity_fall: float = 0.5
    #: Warn when more than this fraction of the codes is dead; 1 never warns.
    dead: float = 0.5
    #: Warn when more than this fraction of the codes is replaced in a step; 1 never warns.
    churn: float = 0.1


class LevelWatch:
    """Running means of the statistics of one level, and the warnings that it has already had."""

    def __init__(self, name: str, limits: CollapseLimits) -> None:
        self._name, self._limits = name, limits
        self._codes = 0
        self._records = 0
        self._perplexity = self._best = self._dead = self._replaced = 0.0
        self._warned: set[str] = set()

    def add(self, stats: CodebookStats, codes: int, step: int) -> list[str]:
        """Takes a record of so many codes; returns the texts of warnings whose cause appears for the first time."""
        if stats.tokens == 0:
            return []  # dropped, or a batch of padding: no evidence about the codes
        self._codes = codes
        self._records += 1
        # A plain mean until the window is full, then an exponential one.
        share = 1 / min(self._records, self._limits.window)
        self._perplexity += share * (stats.perplexity - self._perplexity)
        self._dead += share * (stats.dead / self._codes - self._dead)
        self._replaced += share * (stats.replaced / self._codes - self._replaced)
        self._best = max(self._best, self._perplexity)
        if self._records < self._limits.window:
            return []
        return [
            f"Monitor: {self._name}, step {step}: {text}"
            for cause, text in self._signs()
            if not self._known(cause)
        ]

    def _signs(self) -> Iterator[tuple[str, str]]:
        limits = self._limits
        if self._perplexity < limits.perplexity_fall * self._best:
            yield (
                "falling",
                f"perplexity has fallen to {self._perplexity:.1f} from {self._best:.1f}: ever fewer codes are "
                "chosen. Likely reasons: a learning rate too high for the encoder, a commitment weight too low, no "
                "replacement of dead codes",
            )
        if self._dead > limits.dead:
            yield (
                "dead",
                f"{self._dead:.0%} of {self._codes} codes are dead. Likely reasons: a codebook too large for the "
                "batch, no k-means initialisation, a threshold that the batch cannot meet "
                "(dead_code_threshold_fraction does not depend on its size)",
            )
        if self._replaced > limits.churn:
            yield (
                "churn",
                f"{self._replaced:.0%} of {self._codes} codes are replaced in each step, so they never settle. Likely "
                "reason: threshold_ema_dead_code is above the tokens per code that a step has",
            )

    def _known(self, cause: str) -> bool:
        known = cause in self._warned
        self._warned.add(cause)
        return known
