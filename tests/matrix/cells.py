"""The type of the fixture `cell`, for tests that take it."""

from collections.abc import Callable

Cell = Callable[[str, str, str, "str | float"], None]
