"""What users do with results, imports and inputs besides training: save, star imports, wrong layouts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import Tensor

import torchvq

X = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
RESULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "VectorQuantize": (dict(dim=8, codebook_size=16), dict(return_loss_breakdown=True)),
    "ResidualVQ": (
        dict(dim=8, codebook_size=16, num_quantizers=2),
        dict(return_all_codes=True),
    ),
    "HierarchicalVQ": (dict(dim=8, codebook_size=16, scales=[1, 2]), dict(return_cutoff=True)),
    "SimVQ": (dict(dim=8, codebook_size=16), {}),
    "FSQ": (dict(levels=[4, 4], dim=8), {}),
    "LFQ": (dict(dim=8, codebook_size=16), dict(return_loss_breakdown=True)),
    "LatentQuantize": (dict(levels=[4, 4], dim=8), {}),
    "FSP": (dict(levels=[4, 4], dim=8), {}),
}


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", RESULTS)
def test_a_saved_result_loads_by_default(name: str, tmp_path: Path) -> None:
    """Without unpickling arbitrary code (`weights_only`), as the reference's tuples do."""
    options, call = RESULTS[name]
    result = getattr(torchvq, name)(**options).eval()(X, **call)
    torch.save(result, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")
    assert type(loaded) is type(result)
    expected, found = _tensors(result), _tensors(loaded)
    assert len(expected) >= 2
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_modules_are_attributes_of_the_package() -> None:
    """As in the reference: `torchvq.vector_quantize_pytorch.VectorQuantize` after `import torchvq` alone."""
    modules = [name for name, held in vars(reference).items() if isinstance(held, ModuleType)]
    assert "vector_quantize_pytorch" in modules
    code = f"import torchvq; [getattr(torchvq, name) for name in {modules}]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_write_to_one_result_changes_no_other(name: str, training: bool) -> None:
    """Such as `loss += reconstruction` before the terms of the loss are logged."""
    options, call = RESULTS[name]
    results = _tensors(getattr(torchvq, name)(**options).train(training)(X, **call))
    with torch.no_grad():
        for number, written in enumerate(results):
            before = [result.clone() for result in results]
            written += 1
            changed = [not torch.equal(a, b) for a, b in zip(results, before, strict=True)]
            assert changed == [other == number for other in range(len(results))]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("residual_vq", ["GroupedResidualVQ", "MLP", "ResidualVQ"]),
        ("residual_fsq", ["GroupedResidualFSQ", "ResidualFSQ"]),
        ("residual_lfq", ["GroupedResidualLFQ", "ResidualLFQ"]),
    ],
)
def test_a_star_import_brings_the_classes_and_nothing_else(module: str, names: list[str]) -> None:
    found: dict[str, Any] = {}
    exec(f"from torchvq.{module} import *", found)
    assert sorted(set(found) - {"__builtins__"}) == names


@pytest.mark.parametrize(
    ("name", "options", "where"),
    [
        ("VectorQuantize", dict(codebook_size=16), "the last axis"),
        ("SimVQ", dict(codebook_size=16, channel_first=True), "axis 1"),
        ("LatentQuantize", dict(levels=[4, 4]), "axis 1"),
    ],
)
def test_a_wrong_layout_is_told_where_features_are(
    name: str, options: dict[str, Any], where: str
) -> None:
    module = getattr(torchvq, name)(dim=32, **options)
    x = torch.randn(2, 32, 10) if where != "axis 1" else torch.randn(2, 10, 32)
    with pytest.raises(ValueError, match=rf"32 features \(dim\) on {where}, but got shape"):
        module(x)
