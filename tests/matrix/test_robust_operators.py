"""Every operator with one spoiled tensor: a result or an error of Python, never a crash or an internal assertion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cells import Cell

import torchvq  # noqa: F401  (registers the operators)

HERE = Path(__file__).parent
OPERATORS = sorted(
    {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
    }
)


class Fuzz(NamedTuple):
    """The outcomes of the calls of each operator."""

    called: set[str]
    outcomes: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def fuzz() -> Fuzz:
    called: set[str] = set()
    outcomes: dict[str, dict[str, str]] = {}
    finished: set[str] = set()
    while True:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        run = subprocess.run(
            [sys.executable, str(HERE / "fuzz_operators.py"), *sorted(finished)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=280,
            check=False,
        )
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        assert lines, run.stderr
        called |= set(lines[0]["operators"])
        for line in lines[1:]:
            own = outcomes.setdefault(line["operator"], {})
            label = line.get("begins") or line["ends"]
            own[label] = line.get("outcome", "crash")
            finished.add(line["operator"])
        if run.returncode == 0:
            return Fuzz(called, outcomes)
        # The last call ended the process; run the others without that operator.
        assert len(lines) > 1, run.stderr


@pytest.mark.parametrize("operator", OPERATORS)
def test_spoiled_tensors(operator: str, fuzz: Fuzz, cell: Cell) -> None:
    cell("operators", operator.partition("::")[2], "one spoiled tensor", "result or error")
    assert operator in fuzz.called, "no call of it is known: see fuzz_operators.py"
    outcomes = fuzz.outcomes[operator]
    cell("operators", operator.partition("::")[2], "calls", str(len(outcomes)))
    bad = {
        label: outcome
        for label, outcome in outcomes.items()
        if outcome == "crash" or outcome.startswith("not permitted") or "INTERNAL ASSERT" in outcome
    }
    assert not bad


def test_codes_beyond_32_bits_are_refused() -> None:
    """Kernels index codes in 32 bits, tokens in 64; neither tensor here allocates memory of that size."""
    for device in ("meta", "cpu"):
        codebook = torch.zeros(1, device=device).expand(1, 2**31, 1)
        with pytest.raises(ValueError, match="codebook to have at most 2\\^30 codes"):
            torch.ops.torchvq.nearest_code(torch.zeros(1, 1, 1, device=device), codebook)
    x = torch.empty(1, 2**33, 4, device="meta")
    assert torch.ops.torchvq.nearest_code(x, torch.empty(1, 5, 4, device="meta"))[0].shape == (
        1,
        2**33,
    )
