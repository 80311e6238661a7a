"""One table of options for both languages: names, defaults, documentation, and the errors of bad values.

The oracles are Python's signatures and docstrings and the C++ headers, each parsed from its source.
"""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchvq
from torchvq import (
    FSP,
    FSQ,
    LFQ,
    HierarchicalVQ,
    LatentQuantize,
    ResidualFSQ,
    ResidualVQ,
    VectorQuantize,
)
from torchvq.sim_vq import _identity

ops = torch.ops.torchvq
HEADERS = Path(__file__).resolve().parents[2] / "include/torchvq/options"

# Classes, and the class whose options their **kwargs are.
CLASSES: dict[str, str | None] = {
    "BinaryMapper": None,
    "EvoLFQ": "LFQ",
    "FSP": None,
    "FSQ": None,
    "GroupedResidualFSQ": "ResidualFSQ",
    "GroupedResidualLFQ": "ResidualLFQ",
    "GroupedResidualVQ": "ResidualVQ",
    "HierarchicalVQ": None,
    "LFQ": None,
    "LatentQuantize": None,
    "RandomProjectionQuantizer": None,
    "ResidualFSQ": "FSQ",
    "ResidualLFQ": "LFQ",
    "ResidualSimVQ": "SimVQ",
    "ResidualVQ": "VectorQuantize",
    "SimVQ": None,
    "VectorQuantize": None,
}
NETWORKS = "C++ names the keys of mlp_kwargs"
SYMMETRIC = "levels of a stack always are, so Python's FSQ gets it twice, which is an error"
LAYOUT = "Python takes it out of **kwargs, whose rest is VectorQuantize's"
IDENTITY = "Python has a function, C++ none"
NO_DEFAULT = "C++ sets it by name and has 512; Python wants it, as the reference does"
# Intended differences between the languages: a name that only one of them has, or another default.
DIFFERENCES = {
    ("EvoLFQ", "encoder"): "a module, which is no option in C++",
    ("EvoLFQ", "decoder"): "a module, which is no option in C++",
    ("EvoLFQ", "lfq"): "a module; in C++ its options",
    ("GroupedResidualFSQ", "preserve_symmetry"): SYMMETRIC,
    ("GroupedResidualVQ", "codebook_size"): NO_DEFAULT,
    ("GroupedResidualVQ", "mlp_kwargs"): NETWORKS,
    ("GroupedResidualVQ", "mlp_kwargs.depth"): NETWORKS,
    ("GroupedResidualVQ", "mlp_kwargs.dim_hidden"): NETWORKS,
    ("LatentQuantize", "codebook_dim"): "C++ has a constructor for one number of levels",
    ("RandomProjectionQuantizer", "accept_3d_fmap"): LAYOUT,
    ("RandomProjectionQuantizer", "accept_image_fmap"): LAYOUT,
    ("RandomProjectionQuantizer", "channel_last"): LAYOUT,
    ("ResidualFSQ", "preserve_symmetry"): SYMMETRIC,
    ("ResidualVQ", "codebook_size"): NO_DEFAULT,
    ("ResidualVQ", "mlp_kwargs"): NETWORKS,
    ("ResidualVQ", "mlp_kwargs.depth"): NETWORKS,
    ("ResidualVQ", "mlp_kwargs.dim_hidden"): NETWORKS,
    ("ResidualSimVQ", "init_fn"): IDENTITY,
    ("SimVQ", "init_fn"): IDENTITY,
    ("VectorQuantize", "codebook_size"): NO_DEFAULT,
}
# Defaults that docstrings write in other words than the signature.
IN_WORDS = {
    ("BinaryMapper", "kl_loss_threshold"): ("log 2", math.log(2)),
    ("ResidualVQ", "beam_size"): ("1", None),
    ("BinaryMapper", "deterministic_on_eval"): ("True", None),
    ("SimVQ", "init_fn"): ("the same", _identity),
}
REQUIRED = inspect.Parameter.empty


def signature_of(name: str) -> dict[str, Any]:
    """The options that the class itself names, with their defaults."""
    parameters = inspect.signature(getattr(torchvq, name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}


def python_options(name: str) -> dict[str, Any]:
    levels = CLASSES[name]
    return (python_options(levels) if levels else {}) | signature_of(name)


def value_of(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def cpp_options(name: str) -> dict[str, Any]:
    lines = (line.partition("=") for line in ops.list_options(name))
    return {option: value_of(text) if equals else REQUIRED for option, equals, text in lines}


def in_text(value: Any) -> Any:
    """Defaults that are tuples of dtypes, as C++ writes them."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else value


# Names and defaults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_and_the_table_agree(name: str) -> None:
    python, cpp = python_options(name), cpp_options(name)
    different = python.keys() ^ cpp.keys()
    different |= {
        option for option in python.keys() & cpp.keys() if in_text(python[option]) != cpp[option]
    }
    assert different == {option for owner, option in DIFFERENCES if owner == name}


def fields_of(struct: str) -> dict[str, str | None]:
    """Names and defaults of the TORCH_ARG lines of a struct."""
    text = "".join(header.read_text() for header in sorted(HEADERS.glob("*.h")))
    start = text.index(f"struct TORCHVQ_API {struct} {{")
    body = re.sub(r"//[^\n]*", "", text[start : text.index("\n};", start)])
    fields = re.findall(r"TORCH_ARG\((.*?),\s*(\w+)\)\s*(?:=\s*([^;]+))?;", body, re.DOTALL)
    assert len(fields) == body.count("TORCH_ARG")
    return {name: default or None for _, name, default in fields}


# Nested options, whose fields are in the table.
PARTS = {"fsq", "lfq", "mlp_kwargs", "rfsq", "rlfq", "rvq", "sim_vq", "vq"}


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_has_every_field_of_the_struct(name: str) -> None:
    assert fields_of(f"{name}Options").keys() - PARTS <= cpp_options(name).keys()


def documented_options(name: str) -> dict[str, str]:
    """Names in the section Args of a docstring, with their descriptions."""
    doc = inspect.getdoc(getattr(torchvq, name)) or ""
    section = doc[doc.index("\nArgs:\n") + len("\nArgs:\n") :]
    section = re.split(r"\n\n|\n(?=\S)", section)[0]
    entries = re.split(r"\n?^    (?=\S)", section, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        names, _, words = entry.partition(": ")
        found |= {each.strip(): " ".join(words.split()) for each in names.split(",")}
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_docstrings_name_every_option_and_its_default(name: str) -> None:
    said = documented_options(name)
    for option, default in signature_of(name).items():
        assert option in said
        words = re.search(r"Default: (.+?)\.(?:\s|$)", said[option])
        if words is None:
            continue
        if (name, option) in IN_WORDS:
            start, value = IN_WORDS[name, option]
            assert words[1].startswith(start) and default == value, option
            continue
        literal = value_of(re.split("[,:]", words[1])[0])
        depends = ", but " in words[1]
        assert default == (None if depends or isinstance(literal, str) else literal) or (
            default == literal
        ), option


@pytest.mark.parametrize("header", ["fsq", "lfq", "residual_fsq", "residual_vq", "vector_quantize"])
def test_headers_document_every_option(header: str) -> None:
    lines = (HEADERS / f"{header}.h").read_text().splitlines()
    for above, line in itertools.pairwise(lines):
        if "TORCH_ARG(" in line:
            assert above.lstrip().startswith("///"), line


# Arguments of a call, which are not options of a class; C++ has structs for them.
CALLS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "VectorQuantizeForwardOptions": (VectorQuantize.forward, {"x", "return_loss_breakdown"}),
    "ResidualVQForwardOptions": (ResidualVQ.forward, {"x"}),
    "HierarchicalVQForwardOptions": (HierarchicalVQ.forward, {"x", "return_cutoff"}),
}


@pytest.mark.parametrize("struct", CALLS)
def test_calls_take_the_same_arguments_in_both_languages(struct: str) -> None:
    forward, only_python = CALLS[struct]
    parameters = dict(inspect.signature(forward).parameters)
    python = {name: p.default for name, p in parameters.items() if name != "self"}
    cpp = fields_of(struct)
    assert python.keys() - only_python == cpp.keys()
    for name, default in cpp.items():
        assert {"true": True, "false": False, None: None}[default] == python[name], name


# The operators ---------------------------------------------------------------------------------------------------

GIVEN = {
    "dim": "8",
    "levels": "[8, 5]",
    "num_quantizers": "2",
    "codebook_size": "16",
    "codebook_dim": "4",
    "scales": "[1, 2]",
}


def check(name: str, options: dict[str, str]) -> list[int]:
    return ops.check_options(name, list(options), list(options.values()))


def given_to(name: str) -> dict[str, str]:
    return {option: text for option, text in GIVEN.items() if option in cpp_options(name)}


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_read_back_and_valid(name: str) -> None:
    lines = (line.partition("=") for line in ops.list_options(name))
    check(name, {option: text for option, equals, text in lines if equals} | given_to(name))


# Options for which any text is valid, or any name: the name is resolved later.
ANY_TEXT = {
    "codebook_transform",
    "init_fn",
    "in_place_codebook_optimizer",
    "process_group",
    "straight_through_activation",
    "vq_bridge",
}


@pytest.mark.parametrize("name", CLASSES)
def test_text_of_another_kind_is_refused_by_name(name: str) -> None:
    # A stack leaves the check of names to its levels.
    names = {"reduction"} if name.endswith("ResidualVQ") else set()
    for option in cpp_options(name).keys() - ANY_TEXT - names:
        message = rf"^\w+: expected {re.escape(option)} to be .+, but got \(nothing$"
        with pytest.raises((TypeError, ValueError), match=message):
            check(name, given_to(name) | {option: "(nothing"})


def test_open_options_are_resolved() -> None:
    assert check("VectorQuantize", {"dim": "8"}) == [1, 1, 0]
    assert check("VectorQuantize", {"dim": "1"}) == [0, 1, 0]
    assert check("VectorQuantize", {"dim": "8", "vq_bridge": "given"}) == [1, 0, 1]
    assert check("ResidualVQ", {"dim": "8", "codebook_size": "[4, 16]"}) == [4, 16]
    sizes = {"dim": "8", "codebook_size": "4", "num_quantizers": "3"}
    assert check("ResidualVQ", sizes) == [4, 4, 4]
    assert check("FSQ", {"levels": "[8, 5]"}) == []
    # Each scale's number of codes, then its grid, then its convolution.
    image = {"dim": "8", "codebook_size": "4", "accept_image_fmap": "True"}
    scales = {"scales": "[1, (2, 3), [4, 4]]", "share_quant_resi": "2"}
    assert check("HierarchicalVQ", image | scales) == [4, 4, 4, 1, 1, 2, 3, 4, 4, 0, 0, 1]


BAD_VALUES = [
    (TypeError, "VectorQuantize: expected decay to be a number, but got x", dict(decay="x")),
    (TypeError, "expected codebook_size to be an integer of 64 bits, but got 1.5", dict(codebook_size="1.5")),
    (TypeError, "expected codebook_size to be an integer of 64 bits, but got 1e400", dict(codebook_size="1e400")),
    (TypeError, "expected dim to be an integer of 64 bits, but got None", dict(dim="None")),
    (TypeError, "expected heads to be an integer of 64 bits, but got ", dict(heads="")),
    (TypeError, "expected kmeans_init to be True or False, but got yes", dict(kmeans_init="yes")),
    (TypeError, "expected options to be of dim, codebook_size, .*, but got speed", dict(speed="1")),
    (TypeError, "expected freeze_codebook to be True or False, but got 'False'", dict(freeze_codebook="'False'")),
    (ValueError, r"VectorQuantize: expected decay to be in \[0, 1\], but got nan", dict(decay="nan")),
    (ValueError, r"expected decay to be in \[0, 1\], but got -inf", dict(decay="-inf")),
    (ValueError, r"expected eps to be above 0 and finite, but got -1e-06", dict(eps="-0.000001")),
    (ValueError, "expected reduction to be exact or float, but got int8", dict(reduction="int8")),
    (ValueError, "at most one of affine_param and use_cosine_sim", dict(affine_param="True", use_cosine_sim="1")),
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        dict(freeze_codebook="False"),
        dict(dim="8"),
        dict(commitment_weight="1"),
        dict(kmeans_iters="5"),
    ],
)
def test_strings_of_python_are_neither_numbers_nor_booleans(options: Any) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"VectorQuantize: expected {name} to be .*, but got '"):
        VectorQuantize(**dict(dim=8, codebook_size=4) | options)
    assert VectorQuantize(8, 4, reduction="float").reduction == "float"


@pytest.mark.parametrize(("error", "message", "options"), BAD_VALUES)
def test_bad_values_are_named(error: type[Exception], message: str, options: Any) -> None:
    with pytest.raises(error, match=message):
        check("VectorQuantize", {"dim": "8"} | options)


# What a class needs beside the option, and the values that each number refuses. Infinity means something to
# kl_loss_threshold alone: no loss.
NEVER, FRACTION = "nan inf -inf", "nan inf -inf -0.1 1.1"
WEIGHT, POSITIVE = "nan inf -inf -0.1", "nan inf -inf -0.1 0"
STACK = {"dim": "8", "codebook_size": "4", "num_quantizers": "2"}
FLOATS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "BinaryMapper": ({"bits": "3"}, {"kl_loss_threshold": "nan -inf"}),
    "EvoLFQ": ({"dim": "8"}, {"mutation_rate": FRACTION}),
    "FSP": ({"levels": "[4, 4]"}, {"quantize_rate": FRACTION}),
    "FSQ": ({"levels": "[4, 4]", "preserve_symmetry": "True"}, {"noise_dropout": FRACTION}),
    "HierarchicalVQ": (
        {"dim": "8", "codebook_size": "4", "scales": "(1, 2)"},
        {
            "quant_resi": NEVER,
            "nested_dropout": FRACTION,
            "decay": FRACTION,
            "commitment_weight": WEIGHT,
            "threshold_ema_dead_code": WEIGHT,
            "dead_code_threshold_fraction": WEIGHT,
            "sample_codebook_temp": NEVER,
            "orthogonal_reg_weight": WEIGHT,
        },
    ),
    "LFQ": (
        {"dim": "8"},
        {
            "entropy_loss_weight": WEIGHT,
            "commitment_loss_weight": WEIGHT,
            "diversity_gamma": WEIGHT,
            "frac_per_sample_entropy": POSITIVE + " 1.1",
            "entropy_loss_offset": NEVER,
            "codebook_scale": POSITIVE,
            "soft_clamp_input_value": POSITIVE + " 0.5",
            "cosine_sim_project_in_scale": NEVER,
        },
    ),
    "LatentQuantize": (
        {"levels": "[4, 4]", "dim": "2"},
        {"commitment_loss_weight": WEIGHT, "quantization_loss_weight": WEIGHT},
    ),
    "ResidualFSQ": (
        {"levels": "[4, 4]", "num_quantizers": "2", "bound_hard_clamp": "False"},
        {"soft_clamp_input_value": "[nan] [inf] [-inf] [-0.1] [0]"},
    ),
    "ResidualLFQ": (STACK, {"soft_clamp_input_value": POSITIVE + " 0.5"}),
    "ResidualVQ": (
        STACK,
        {
            "quant_grad_frac": FRACTION,
            "beam_score_quantizer_weights": "[1,nan] [inf,1] [1,-inf] [-0.1,1]",
        },
    ),
    "SimVQ": (
        {"dim": "8", "codebook_size": "4"},
        {"input_to_quantize_commit_loss_weight": WEIGHT, "commitment_weight": WEIGHT},
    ),
    "VectorQuantize": (
        {"dim": "8", "codebook_size": "4"},
        {
            "sample_codebook_temp": NEVER,
            "directional_reparam_variance": WEIGHT,
            "sync_update_v": FRACTION,
            "commitment_weight": WEIGHT,
            "orthogonal_reg_weight": WEIGHT,
            "codebook_diversity_loss_weight": WEIGHT,
            "codebook_diversity_temperature": WEIGHT,
            "decay": FRACTION,
            "eps": POSITIVE,
            "threshold_ema_dead_code": WEIGHT,
            "dead_code_threshold_fraction": WEIGHT,
            "affine_param_batch_decay": FRACTION,
            "affine_param_codebook_decay": FRACTION,
        },
    ),
}
FLOAT_ROWS = [
    (name, option, value)
    for name, (_, options) in FLOATS.items()
    for option, values in options.items()
    for value in values.split()
]


@pytest.mark.parametrize(("name", "option", "value"), FLOAT_ROWS)
def test_numbers_out_of_range_are_named(name: str, option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f": expected {option} to be .*, but got "):
        check(name, FLOATS[name][0] | {option: value})


def test_every_number_among_the_options_is_in_the_table() -> None:
    number = re.compile(
        r"^struct TORCHVQ_API (\w+)Options|TORCH_ARG\([\w:<]*double>*, (\w+)\)", re.M
    )
    found = set()
    for header in HEADERS.glob("*.h"):
        owner = ""
        for name, option in number.findall(header.read_text()):
            owner = name or owner
            if option and owner in CLASSES:
                found.add((owner, option))
    found.remove(("FSQ", "scale"))  # it has no effect
    assert found == {(name, option) for name, (_, options) in FLOATS.items() for option in options}


def test_bad_calls_of_the_operators_are_refused() -> None:
    with pytest.raises(TypeError, match="FSQ: expected levels to be given, but got none"):
        check("FSQ", {})
    with pytest.raises(ValueError, match=r"to be that of a quantizer class, but got Quantizer"):
        ops.list_options("Quantizer")
    with pytest.raises(ValueError, match="expected values to be 2, one for each name, but got 1"):
        ops.check_options("FSQ", ["levels", "dim"], ["[8]"])


# Python's values -------------------------------------------------------------------------------------------------


class Code(str, enum.Enum):
    """Names of options as enum members, as some configuration libraries have them."""

    EXACT = "exact"


@pytest.mark.parametrize(
    "options",
    [
        dict(dim=np.int64(8), codebook_size=np.int32(16), decay=np.float32(0.5)),
        dict(decay=torch.tensor(0.5), heads=torch.tensor(2), kmeans_init=np.bool_(False)),
        dict(decay=1, eps=1, use_cosine_sim=0, reduction=Code.EXACT),
        dict(sample_codebook_temp=np.float64(0.5), orthogonal_reg_max_codes=np.int64(4)),
    ],
)
def test_numbers_of_numpy_and_tensors_are_options(options: dict[str, Any]) -> None:
    module = VectorQuantize(**{"dim": 8, "codebook_size": 16} | options)
    assert module(torch.zeros(1, 3, 8)).indices.shape[:2] == (1, 3)


def test_lists_of_every_kind_are_levels() -> None:
    for levels in (np.array([8, 5]), torch.tensor([8, 5]), (8, np.int64(5)), [8, torch.tensor(5)]):
        assert FSQ(levels).codebook_size == FSP(levels).codebook_size == 40
        assert LatentQuantize(levels, 2).codebook_size == 40
    assert ResidualVQ(dim=8, codebook_size=np.int64(4), num_quantizers=2).codebook_sizes == (4, 4)
    limit = torch.tensor([2.0, 1.5])
    soft = dict(bound_hard_clamp=False, soft_clamp_input_value=limit)
    stack = ResidualFSQ(levels=[8, 5], num_quantizers=2, **soft)
    assert torch.equal(stack.soft_clamp_input_value, limit)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: VectorQuantize(8, 16, decay=2), r"VectorQuantize: .* \[0, 1\], but got 2.0"),
        (lambda: LFQ(dim=8, codebook_scale=math.inf), "LFQ: expected codebook_scale to be .* inf"),
        (lambda: LFQ(dim=8, diversity_gamma=math.inf), "LFQ: expected diversity_gamma .* inf"),
        (
            lambda: ResidualVQ(
                dim=8, codebook_size=4, num_quantizers=2, mlp_kwargs=dict(dim_hidden=0)
            ),
            "ResidualVQ: expected mlp_kwargs.dim_hidden to be at least 1, but got 0",
        ),
    ],
)
def test_python_raises_what_cpp_raises(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ResidualFSQ", dict(levels=[5, 5], num_quantizers=2)),
        ("ResidualLFQ", dict(dim=2, codebook_size=4, num_quantizers=2)),
        ("ResidualSimVQ", dict(dim=2, codebook_size=4, num_quantizers=2)),
        ("GroupedResidualLFQ", dict(dim=2, codebook_size=2, num_quantizers=2, groups=2)),
        ("LFQ", dict(codebook_size=4)),
    ],
)
def test_integers_of_numpy_are_integers(name: str, options: dict[str, Any]) -> None:
    x = torch.randn(1, 3, 2)
    torch.manual_seed(0)
    plain = getattr(torchvq, name)(**options)
    given = {k: v if isinstance(v, list) else np.int64(v) for k, v in options.items()}
    torch.manual_seed(0)
    module = getattr(torchvq, name)(**given)
    for training in (True, False):
        outputs = [m.train(training)(x)[0] for m in (plain, module)]
        assert torch.equal(*outputs)
