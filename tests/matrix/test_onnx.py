"""ONNX of every graph in evaluation: onnxruntime gives the tokens and outputs of eager execution, at all sizes."""

from __future__ import annotations

from pathlib import Path

import classes
import onnxruntime
import pytest
import torch
from cells import Cell
from classes import ROWS, TRAIN_OTHERWISE
from kinds import one_of_each
from test_export import NO_DECODE, SIZES, Decode, Encode, sized, trained
from torch import Tensor, nn

import torchvq.onnx

# Operators without a translation; the error names them.
NO_ENCODE = {
    "residual_vq_beam": "residual_beam_search",
    "residual_vq_sampled_beam": "residual_beam_search",
    "residual_vq_implicit_beam": "extend_paths",
    "fsp": "scalar_perturb",
    "fsp_kurt": "scalar_perturb",
    "binary_mapper": "binary_sample",
} | {row: "latent_quantize" for row in ROWS if row.startswith("latent")}
NO_CENTROIDS = {"fsp": "scalar_centroids", "fsp_kurt": "scalar_centroids"}
EVALUATED = [row for row in ROWS if row not in TRAIN_OTHERWISE]


def run(module: nn.Module, x: Tensor, fixed: set[int], path: Path, inputs: list[Tensor]) -> None:
    free = dict.fromkeys(set(range(x.dim())) - fixed, torch.export.Dim.DYNAMIC)
    torchvq.onnx.export(module, (x,), str(path), dynamic_shapes=(free,), verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in inputs:
        found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        expected = module(x).detach()
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("row", one_of_each(EVALUATED))
def test_encoders(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("onnx", row, "encode", "no" if row in NO_ENCODE else "yes")
    module, x = Encode(trained(row)), classes.data(row, 1)
    inputs = [sized(row, sizes) for sizes in SIZES]
    fixed = {ROWS[row].channel_axis % x.dim()}
    if row in NO_ENCODE:
        with pytest.raises(ValueError, match=f"docs/serving.md.*torchvq.{NO_ENCODE[row]}"):
            run(module, x, fixed, tmp_path / "encode.onnx", [])
        return
    run(module, x, fixed, tmp_path / "encode.onnx", inputs)


@pytest.mark.parametrize("row", one_of_each(row for row in EVALUATED if row not in NO_DECODE))
def test_decoders(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("onnx", row, "decode", "no" if row in NO_CENTROIDS else "yes")
    quantizer = trained(row)
    encode, decode = Encode(quantizer), Decode(quantizer)
    indices, other = encode(classes.data(row, 1)), encode(sized(row, SIZES[0]))
    fixed = {axis for axis in range(indices.dim()) if indices.shape[axis] == other.shape[axis]}
    if row in NO_CENTROIDS:
        with pytest.raises(ValueError, match=NO_CENTROIDS[row]):
            run(decode, indices, fixed, tmp_path / "decode.onnx", [])
        return
    inputs = [encode(sized(row, sizes)) for sizes in SIZES]
    run(decode, indices, fixed, tmp_path / "decode.onnx", inputs)


class SharedCodebooks(nn.Module):
    """Codebooks of one head, shared by all heads, and separate for each head."""

    def __init__(self) -> None:
        super().__init__()
        for level, shape in enumerate([(1, 6, 4), (7, 4), (3, 5, 4)]):
            self.register_buffer(f"codebook{level}", torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        codebooks = list(self.buffers())
        _, indices = torch.ops.torchvq.residual_encode(x, codebooks)
        return torch.ops.torchvq.residual_decode(indices, codebooks)


def test_heads_share_codebooks(tmp_path: Path) -> None:
    x = torch.randn(3, 5, 4)
    run(SharedCodebooks(), x, {0, 1, 2}, tmp_path / "shared.onnx", [x, torch.randn(3, 5, 4)])


@pytest.mark.parametrize("row", ["fsq", "lfq"])
def test_float64_is_refused(row: str, tmp_path: Path) -> None:
    module = trained(row).double()
    indices = Encode(module)(classes.data(row, 1, dtype=torch.float64))
    with pytest.raises(Exception, match=r"expected s.*_decode without float64"):
        run(Decode(module), indices, set(), tmp_path / "decode.onnx", [])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "options", "features"),
    [
        ("VectorQuantize", dict(dim=4, codebook_size=8), 4),
        ("VectorQuantize", dict(dim=4, codebook_size=8, use_cosine_sim=True), 4),
        ("FSQ", dict(levels=[5, 4]), 2),
        ("LFQ", dict(codebook_size=16), 4),
    ],
    ids=["euclidean", "cosine", "fsq", "lfq"],
)
def test_the_default_dtype_does_not_matter(
    name: str, options: dict, features: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    module = getattr(torchvq, name)(**options).eval()
    x = torch.randn(2, 6, features)
    torch.set_default_dtype(dtype)
    try:
        run(Encode(module), x, {2}, tmp_path / "encode.onnx", [x])
    finally:
        torch.set_default_dtype(torch.float32)
