"""The parts of the demo, each against values worked out by hand."""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python" / "demo"))

from codes import on_a_grid, principal_components, windows
from data import mnist_sample, read_idx
from errors import DemoError
from folder import load_folder, read_picture
from train import Progress, psnr, usage


def test_usage_of_codes() -> None:
    assert usage(torch.tensor([5, 5, 5, 5])) == pytest.approx((1.0, 4.0))
    assert usage(torch.tensor([9, 0, 0, 0])) == pytest.approx((0.25, 1.0))
    used, perplexity = usage(torch.tensor([3, 1, 0, 0]))
    assert used == 0.5
    assert perplexity == pytest.approx(2 ** (0.75 * math.log2(4 / 3) + 0.25 * 2))


def test_psnr() -> None:
    assert psnr(0.01) == pytest.approx(20.0)
    assert psnr(0.0) == pytest.approx(100.0)


def test_read_idx(tmp_path: Path) -> None:
    expected = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = b"\0\0\x08\x03" + np.array([2, 3, 4], ">u4").tobytes() + expected.tobytes()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content))
    np.testing.assert_array_equal(read_idx(tmp_path / "plain"), expected)
    np.testing.assert_array_equal(read_idx(tmp_path / "packed.gz"), expected)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x01x", b"\0\0\x08\x01\0\0\0\x02x"]
)
def test_read_idx_refuses(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DemoError, match="expected an idx file"):
        read_idx(tmp_path / "file")


def test_read_idx_refuses_a_truncated_archive(tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(gzip.compress(bytes(1000))[:-10])
    with pytest.raises(DemoError, match="cannot read"):
        read_idx(tmp_path / "file.gz")


def test_mnist_sample() -> None:
    pictures = mnist_sample()
    assert pictures.train.shape == (4500, 1, 28, 28)
    assert pictures.test.shape == (500, 1, 28, 28)
    assert pictures.test.float().mean() > 20


def test_picture_on_white_where_transparent(tmp_path: Path) -> None:
    Image.new("RGBA", (20, 20), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_picture(tmp_path / "clear.png", 16) == 255).all()


def test_picture_of_sixteen_bits_keeps_its_shades(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    row = read_picture(tmp_path / "deep.png", 64)[0, :, 0].astype(int)
    np.testing.assert_allclose(row, ramp[0] / 257, atol=1)


def test_picture_of_floats_with_nan(tmp_path: Path) -> None:
    values = np.full((32, 32), 2.0, np.float32)
    values[:, 16:], values[0, 0] = -1.0, np.nan
    Image.fromarray(values).save(tmp_path / "float.tiff")
    picture = read_picture(tmp_path / "float.tiff", 32)
    assert picture[16, 2, 0] == 255
    assert picture[16, 30, 0] == 0


def test_picture_lies_as_its_camera_says(tmp_path: Path) -> None:
    picture = Image.new("L", (32, 32), 0)
    picture.paste(255, (0, 0, 32, 16))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # orientation: rotated by 180 degrees
    picture.save(tmp_path / "turned.png", exif=exif)
    upright = read_picture(tmp_path / "turned.png", 32)
    assert upright[4, 16, 0] == 0
    assert upright[28, 16, 0] == 255


def test_folder_is_grey_only_when_all_is(tmp_path: Path) -> None:
    for index in range(10):
        Image.new("L", (30, 200), 20 * index).save(tmp_path / f"{index}.png")
    train, test = load_folder(tmp_path, 16)
    assert train.shape == (8, 1, 16, 16)
    assert test.shape == (2, 1, 16, 16)
    Image.new("RGB", (1, 1), (255, 0, 0)).save(tmp_path / "red.png")
    assert load_folder(tmp_path, 16)[0].shape[1] == 3


def test_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(DemoError, match="expected --data to be a folder"):
            load_folder(path, 16)


def test_a_single_picture_is_learnt_from_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("L", (30, 30)).save(tmp_path / "one.png")
    train, test = load_folder(tmp_path, 16)
    assert torch.equal(train, test)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("count", [1, 2, 7, 512])
def test_order_on_a_grid_is_an_order(count: int) -> None:
    points, _ = principal_components(torch.randn(count, 3))
    assert sorted(on_a_grid(points, 3).tolist()) == list(range(count))


def test_principal_components_find_the_plane() -> None:
    random = torch.Generator().manual_seed(0)
    plane = torch.randn(2, 8, generator=random)
    flat = torch.randn(100, 2, generator=random) @ plane + 5
    points, share = principal_components(flat)
    assert share == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(
        torch.cdist(points, points),
        torch.cdist(flat.double(), flat.double()),
        rtol=1e-6,
        atol=1e-6,
    )
    assert principal_components(torch.ones(4, 3))[0].abs().max() == 0


def test_windows_show_the_pixels_of_their_tokens() -> None:
    pictures = torch.arange(2 * 3 * 12 * 8).float().view(2, 3, 12, 8)
    squares = windows(pictures)
    assert squares.shape == (2, 6, 3, 8, 8)
    torch.testing.assert_close(squares[1, 3, :, 2:6, 2:6], pictures[1, :, 4:8, 4:8])


def test_progress_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 3.0, 12.0, 14.0, 20.0])
    with Progress(4, clock=lambda: next(times)) as progress:
        for step in range(1, 5):
            progress.say(step, "PSNR 20 dB")
            progress.advance()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "step     2 of 4: PSNR 20 dB, 12 s left",
        "step     4 of 4: PSNR 20 dB, 0 s left",
    ]
