"""ONNX of every graph in evaluation: onnxruntime gives the tokens and outputs of eager execution, at all sizes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import classes
import onnx
import onnxruntime
import pytest
import torch
from cells import Cell
from classes import ROWS, TRAIN_OTHERWISE
from kinds import exhaustive, one_of_each
from test_export import NO_DECODE, SIZES, Decode, Encode, sized, trained
from torch import Tensor, nn

import torchvq.onnx

# Operators without a translation; the error names them.
NO_ENCODE = {
    "residual_vq_beam": "residual_beam_search",
    "residual_vq_sampled_beam": "residual_beam_search",
    "residual_vq_implicit_beam": "extend_paths",
    "residual_sim_vq_beam": "residual_beam_search",
    "fsp": "scalar_perturb",
    "fsp_kurt": "scalar_perturb",
    "binary_mapper": "binary_sample",
} | {row: "latent_quantize" for row in ROWS if row.startswith("latent")}
NO_CENTROIDS = {"fsp": "scalar_centroids", "fsp_kurt": "scalar_centroids"}
EVALUATED = [row for row in ROWS if row not in TRAIN_OTHERWISE]
# The same translations as in rows of other classes, with another layout or more than once.
ALIKE = {
    "sim_vq_image",
    "latent_in_place",
    "grouped_residual_vq",
    "grouped_residual_fsq",
    "grouped_residual_lfq",
    "evo_lfq",
    "sequential",
}


def translated(rows: Iterable[str]) -> list[Any]:
    """`one_of_each`, of which `make test` leaves out those that are alike."""
    chosen = one_of_each(rows)
    return [exhaustive(row) if isinstance(row, str) and row in ALIKE else row for row in chosen]


def run(module: nn.Module, x: Tensor, fixed: set[int], path: Path, inputs: list[Tensor]) -> None:
    free = dict.fromkeys(set(range(x.dim())) - fixed, torch.export.Dim.DYNAMIC)
    torchvq.onnx.export(module, (x,), str(path), dynamic_shapes=(free,), verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in inputs:
        found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        expected = module(x).detach()
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("row", translated(EVALUATED))
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


@pytest.mark.parametrize("row", translated(row for row in EVALUATED if row not in NO_DECODE))
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


@pytest.mark.parametrize(
    ("name", "options", "features"),
    [
        ("FSQ", dict(levels=[16] * 15), 15),
        ("LFQ", dict(codebook_size=2**60, entropy_loss_weight=0), 60),
    ],
    ids=["fsq", "lfq"],
)
def test_indices_of_more_bits_than_float64_has(
    name: str, options: dict, features: int, tmp_path: Path
) -> None:
    module, x = getattr(torchvq, name)(**options).eval(), torch.randn(2, 50, features)
    run(Encode(module), x, {2}, tmp_path / "encode.onnx", [x])


class Masked(nn.Module):
    """Codes and indices of a quantizer that is called with a mask."""

    def __init__(self, name: str, options: dict) -> None:
        super().__init__()
        self.quantizer = getattr(torchvq, name)(dim=8, codebook_size=16, **options).eval()

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return tuple(self.quantizer(x, mask=mask)[:2])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("VectorQuantize", dict()),
        ("VectorQuantize", dict(heads=2, codebook_dim=4, separate_codebook_per_head=True)),
        ("ResidualVQ", dict(num_quantizers=2)),
        ("ResidualVQ", dict(num_quantizers=2, implicit_neural_codebook=True)),
        ("SimVQ", dict()),
    ],
    ids=["plain", "heads", "residual", "implicit", "simvq"],
)
def test_masks(name: str, options: dict, tmp_path: Path) -> None:
    module, x, path = Masked(name, options), torch.randn(2, 6, 8), str(tmp_path / "masked.onnx")
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    torchvq.onnx.export(module, (x,), path, kwargs={"mask": mask}, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x[0, 1], x[1, 4] = torch.inf, torch.nan  # a token and padding
    found = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
    for own, expected in zip(found, module(x, mask=mask), strict=True):
        torch.testing.assert_close(torch.from_numpy(own), expected.detach(), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("VectorQuantize", dict(use_cosine_sim=True)),
        ("ResidualVQ", dict(num_quantizers=2, use_cosine_sim=True)),
        ("RandomProjectionQuantizer", dict(codebook_dim=8)),
    ],
    ids=["plain", "residual", "random"],
)
def test_codes_that_are_equally_near_to_a_zero_vector(
    name: str, options: dict, tmp_path: Path
) -> None:
    module = Encode(getattr(torchvq, name)(dim=16, codebook_size=32, **options).eval())
    x = torch.randn(2, 6, 16)
    x[:, ::2] = 0
    run(module, x, {2}, tmp_path / "encode.onnx", [x])


@pytest.mark.parametrize("size", [1e-30, 1e30], ids=["small", "large"])
def test_vectors_whose_squares_are_no_float32(size: float, tmp_path: Path) -> None:
    module = Encode(torchvq.VectorQuantize(dim=16, codebook_size=32, use_cosine_sim=True).eval())
    x = torch.randn(2, 200, 16)
    run(module, x, {2}, tmp_path / "encode.onnx", [x * size])


class WithLoss(nn.Module):
    """All outputs of a quantizer, whose loss is not 0 in evaluation."""

    def __init__(self, name: str, options: dict) -> None:
        super().__init__()
        self.quantizer = getattr(torchvq, name)(dim=8, codebook_size=16, **options).eval()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        return tuple(self.quantizer(x) if mask is None else self.quantizer(x, mask=mask))


@pytest.mark.parametrize(
    ("name", "options", "lengths"),
    [
        ("SimVQ", dict(commitment_weight=0.5, input_to_quantize_commit_loss_weight=0.3), None),
        ("SimVQ", dict(), [6, 3]),
        ("SimVQ", dict(), [0, 0]),
        ("ResidualSimVQ", dict(num_quantizers=3), None),
    ],
    ids=["plain", "masked", "padding", "residual"],
)
def test_losses_of_evaluation(
    name: str, options: dict, lengths: list[int] | None, tmp_path: Path
) -> None:
    module, path = WithLoss(name, options), str(tmp_path / "loss.onnx")
    inputs = [torch.randn(2, 6, 8)]
    if lengths is not None:
        inputs.append(torch.arange(6) < torch.tensor(lengths)[:, None])
    torchvq.onnx.export(module, tuple(inputs), path, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    for own, expected in zip(found, module(*inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(own), expected.detach())


@pytest.mark.parametrize("option", [dict(kwargs={"mask": None}), dict(dynamic_shapes=({},))])
def test_an_exported_program_has_its_inputs(option: dict, tmp_path: Path) -> None:
    program = torch.export.export(
        Encode(torchvq.FSQ(levels=[5, 5]).eval()), (torch.randn(1, 2, 2),)
    )
    with pytest.raises(
        ValueError, match=f"expected {next(iter(option))} to be None for an exported"
    ):
        torchvq.onnx.export(program, (), str(tmp_path / "encode.onnx"), **option)


@pytest.mark.parametrize("row", ["fsq", "lfq"])
def test_decoding_in_float64_is_refused(row: str, tmp_path: Path) -> None:
    module = trained(row).double()
    indices = Encode(module)(classes.data(row, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"expected float64 of s.*_decode to be left out"):
        run(Decode(module), indices, set(), tmp_path / "decode.onnx", [])


@pytest.mark.parametrize(
    ("row", "dtype", "operator"),
    [
        ("vq", torch.float32, "nearest_code"),
        ("vq", torch.float64, "nearest_code"),
        ("residual_vq", torch.float64, "residual_encode"),
        ("fsq", torch.float64, "scalar_quantize"),
        ("lfq", torch.float64, "sign_quantize"),
    ],
)
def test_latents_in_float64_are_refused(
    row: str, dtype: torch.dtype, operator: str, tmp_path: Path
) -> None:
    # The file would compute in float32, whatever the module is.
    module, x = Encode(trained(row).to(dtype)), classes.data(row, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"expected float64 of {operator} to be left out"):
        run(module, x, {0, 1, 2}, tmp_path / "encode.onnx", [])


class Nearest(nn.Module):
    """The two nearest codes."""

    def __init__(self) -> None:
        super().__init__()
        self.quantizer = torchvq.VectorQuantize(dim=4, codebook_size=8).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.quantizer(x, topk=2).indices


def test_an_argument_without_a_translation_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected topk of nearest_code to be left out, but got 2"):
        run(Nearest(), torch.randn(2, 6, 4), {0, 1, 2}, tmp_path / "encode.onnx", [])


def test_the_opset_may_be_chosen(tmp_path: Path) -> None:
    quantizer, path = torchvq.VectorQuantize(dim=4, codebook_size=8), str(tmp_path / "o.onnx")
    module, x = Encode(quantizer.eval()), torch.randn(2, 6, 4)
    torchvq.onnx.export(module, (x,), path, opset_version=18, verbose=False)
    assert [(each.domain, each.version) for each in onnx.load(path).opset_import] == [("", 18)]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert torch.equal(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), module(x))


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
