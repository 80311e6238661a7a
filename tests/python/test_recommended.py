"""torchvq.recommended: its settings construct, train without warnings, and are those in the documentation."""

from __future__ import annotations

import ast
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import torchvq

ROOT = Path(__file__).parents[2]
AVERAGES = {"kmeans_init": True, "decay": 0.95, "dead_code_threshold_fraction": 0.1}
SIGNS = {"spherical": True, "entropy_loss_weight": 0.005, "commitment_loss_weight": 0.1}
STACKED_SIGNS = {"commitment_loss_weight": 0.25}
# For every class: the option for its size, at 6 bits, and the other settings. recommended_test.cpp has the same in C++.
RECOMMENDED = {
    "VectorQuantize": {"codebook_size": 64, **AVERAGES},
    "ResidualVQ": {"codebook_size": 64, **AVERAGES},
    "GroupedResidualVQ": {"codebook_size": 64, **AVERAGES},
    "HierarchicalVQ": {"codebook_size": 64},
    "SimVQ": {"codebook_size": 64},
    "ResidualSimVQ": {"codebook_size": 64, "rotation_trick": False},
    "RandomProjectionQuantizer": {"codebook_size": 64, "codebook_dim": 16},
    "LFQ": {"codebook_size": 64, **SIGNS},
    "EvoLFQ": {"codebook_size": 64, **SIGNS},
    "ResidualLFQ": {"codebook_size": 64, **STACKED_SIGNS},
    "GroupedResidualLFQ": {"codebook_size": 64, **STACKED_SIGNS},
    "FSQ": {"levels": [8, 8]},
    "ResidualFSQ": {"levels": [8, 8]},
    "GroupedResidualFSQ": {"levels": [8, 8]},
    "FSP": {"levels": [8, 8]},
    "LatentQuantize": {"levels": [8, 8]},
    "BinaryMapper": {"bits": 6},
}
SIZES = {"codebook_size", "levels", "bits"}
# Classes that return only indices, or need other modules: constructed, but not trained.
UNTRAINED = {"EvoLFQ", "BinaryMapper", "RandomProjectionQuantizer"}
STACK = {"num_quantizers": 3}
MORE = {
    "HierarchicalVQ": {"scales": (1, 4, 16)},
    "ResidualSimVQ": STACK,
    "ResidualVQ": STACK,
    "GroupedResidualVQ": {**STACK, "groups": 2},
    "ResidualLFQ": STACK,
    "GroupedResidualLFQ": {**STACK, "groups": 2},
    "ResidualFSQ": STACK,
    "GroupedResidualFSQ": {**STACK, "groups": 2},
}


def codes_of(settings: dict) -> int:
    if "levels" in settings:
        return math.prod(settings["levels"])
    return settings.get("codebook_size") or 2 ** settings["bits"]


@pytest.mark.parametrize("name", RECOMMENDED)
def test_what_it_is(name: str) -> None:
    found = torchvq.recommended(name, bits=6)
    assert found == RECOMMENDED[name]
    # The size comes first, as a reader expects.
    assert list(found) == list(RECOMMENDED[name])


def test_every_class_has_it() -> None:
    classes = {
        name
        for name in torchvq.__all__
        if isinstance(kind := getattr(torchvq, name), type) and issubclass(kind, torch.nn.Module)
    }
    assert classes >= RECOMMENDED.keys()
    for name in classes - RECOMMENDED.keys():
        with pytest.raises(ValueError, match="expected name to be that of a quantizer class"):
            torch.ops.torchvq.list_options(name)


@pytest.mark.parametrize("name", sorted(RECOMMENDED.keys() - UNTRAINED))
def test_a_module_of_it_trains(name: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = getattr(torchvq, name)
    settings = torchvq.recommended(kind, bits=6)
    caplog.set_level(logging.WARNING)
    module = kind(dim=16, **settings, **MORE.get(name, {}))
    x = torch.randn(2, 16, 16, requires_grad=True)
    quantized = module(x)[0]
    quantized.square().sum().backward()
    assert x.grad.abs().sum() > 0
    # Recommended settings cause no warning.
    assert not caplog.records


def test_those_that_need_other_modules_construct() -> None:
    identity = torch.nn.Identity()
    settings = torchvq.recommended("EvoLFQ", bits=4)
    assert torchvq.EvoLFQ(identity, identity, dim=16, **settings).lfq.spherical
    assert torchvq.BinaryMapper(**torchvq.recommended("BinaryMapper", bits=5)).bits == 5
    settings = torchvq.recommended("RandomProjectionQuantizer", bits=5)
    quantizer = torchvq.RandomProjectionQuantizer(dim=8, **settings)
    assert quantizer(torch.randn(1, 4, 8)).max() < 32


@pytest.mark.parametrize("name", sorted(RECOMMENDED))
def test_its_size_is_near_the_bits(name: str) -> None:
    for bits in range(3, 19):
        assert abs(math.log2(codes_of(torchvq.recommended(name, bits=bits))) - bits) < 0.1


def test_names() -> None:
    same = torchvq.recommended(torchvq.VectorQuantize, bits=10)
    assert torchvq.recommended("vq") == torchvq.recommended("vectorquantize") == same
    assert torchvq.recommended("bsq") == torchvq.recommended("LFQ")


def test_each_call_returns_settings_of_its_own() -> None:
    torchvq.recommended("fsq")["levels"].append(2)
    torchvq.recommended("vq")["decay"] = 0.5
    assert torchvq.recommended("fsq")["levels"] == [8, 5, 5, 5]
    assert torchvq.recommended("vq")["decay"] != 0.5


def test_decay_follows_the_tokens_of_a_step() -> None:
    decays = [torchvq.recommended("vq", bits=10, tokens=n)["decay"] for n in (1, 1024, 2048, 10**6)]
    assert decays == [0.99, 0.975, 0.95, 0.9]


def test_averages_of_moving_tokens_are_shorter() -> None:
    counts = (1, 512, 1024, 10**6)
    decays = [torchvq.recommended("vq", tokens=n, moving=True)["decay"] for n in counts]
    assert decays == [0.975, 0.969, 0.938, 0.9]
    with pytest.raises(ValueError, match="expected tokens to be given with moving=True"):
        torchvq.recommended("vq", moving=True)


@pytest.mark.parametrize(("name", "tokens"), [("vq", 0), ("fsq", 64), ("rvq", 64)])
def test_tokens_that_mean_nothing(name: str, tokens: int) -> None:
    with pytest.raises(ValueError, match="recommended: expected tokens to be at least 1, and for"):
        torchvq.recommended(name, tokens=tokens)


@pytest.mark.parametrize(
    ("name", "most"), [("vq", 30), ("BinaryMapper", 30), ("lfq", 62), ("ResidualLFQ", 62)]
)
def test_bits_out_of_range(name: str, most: int) -> None:
    assert torchvq.recommended(name, bits=most)
    for bits in (0, -1, most + 1):
        with pytest.raises(
            ValueError, match=rf"expected bits to be in \[1, {most}\], but got {bits}"
        ):
            torchvq.recommended(name, bits=bits)


def test_levels_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"expected bits to be in \[3, 18\], but got 19"):
        torchvq.recommended("fsq", bits=19)


def test_unknown_quantizer() -> None:
    with pytest.raises(ValueError, match=r"expected quantizer to be one of .*, but got 'PQ'"):
        torchvq.recommended("PQ")


def calls_in(page: str) -> list[ast.Call]:
    """Calls of quantizers in the Python blocks of a page."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in RECOMMENDED
    ]


def test_choosing_md_repeats_it() -> None:
    """The first block of each class shows the recommended settings, and besides them only the beam."""
    first: dict[str, dict] = {}
    for call in calls_in("docs/choosing.md"):
        written = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        first.setdefault(call.func.id, written)
    assert {"VectorQuantize", "ResidualVQ", "FSQ", "LFQ"} <= first.keys()
    for name, written in first.items():
        settings = torchvq.recommended(name)
        given = {key: written.get(key) for key in settings.keys() - SIZES}
        expected = {key: settings[key] for key in given}
        assert given == expected, f"docs/choosing.md shows other settings of {name}"
        assert settings.keys() & SIZES <= written.keys()
        more = written.keys() - settings.keys() - SIZES - {"dim", "num_quantizers"}
        assert more == ({"beam_size"} if name == "ResidualVQ" else set())


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("LFQ", "python/torchvq/lookup_free_quantization.py"),
        ("LFQ", "src/modules/lfq.cpp"),
        ("ResidualLFQ", "python/torchvq/residual_lfq.py"),
        ("ResidualLFQ", "src/modules/residual_lfq.cpp"),
    ],
)
def test_the_warning_of_lfq_says_it(name: str, file: str) -> None:
    text = re.sub(r'"\s*\n\s*"', "", (ROOT / file).read_text())
    warning = re.search(rf"\b{name}: commitment_loss_weight is 0,[^;]*;([^\n]*)", text).group(1)
    settings = torchvq.recommended(name)
    for option in {"commitment_loss_weight", "entropy_loss_weight"} & settings.keys():
        assert re.search(rf"{option}[ =]{settings[option]:g}\b", warning)
    # A stack collapses with the weights of a single LFQ.
    for option in ("spherical", "entropy_loss_weight"):
        assert (option in settings) == (option in warning)


@pytest.mark.parametrize(
    ("name", "sizes", "warns"),
    [
        ("LFQ", dict(dim=8, codebook_size=16), "LFQ: "),
        ("LFQ", dict(dim=8, codebook_size=16, cosine_sim_project_in=True), ""),
        # These have no projection that cosine_sim_project_in could make.
        ("LFQ", dict(codebook_size=16, cosine_sim_project_in=True), "LFQ: "),
        (
            "ResidualLFQ",
            dict(dim=8, codebook_size=16, num_quantizers=2, cosine_sim_project_in=True),
            "ResidualLFQ: ",
        ),
    ],
)
def test_latents_that_nothing_bounds_are_warned_of(
    name: str, sizes: dict[str, Any], warns: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "torchvq"):
        getattr(torchvq, name)(**sizes)
    assert [record.message.startswith(warns) for record in caplog.records] == [True] * bool(warns)
    assert f"recommended('{name}')" in caplog.text or not warns
