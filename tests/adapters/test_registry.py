"""User-defined adapters, as docs/adapters.md shows them, and models without known quantizers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import parametrize

from torchvq import adapters
from torchvq.adapters import _frozen

DOCS = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)


def test_the_first_example_adapts_a_model() -> None:
    from transformers import EncodecConfig, EncodecModel

    names: dict[str, Any] = {"model": EncodecModel(EncodecConfig(num_filters=4))}
    exec(examples()[0], names)
    found = adapters.describe(names["model"])
    assert all(row.adapted for row in found)
    module = "transformers.models.encodec.modeling_encodec"
    assert str(found).splitlines() == [
        f"quantizer: {module}.EncodecResidualVectorQuantizer, adapted",
        f"quantizer.layers.*.codebook (32 of them): {module}.EncodecEuclideanCodebook, adapted",
    ]


@torch.no_grad()
def test_the_example_of_frozen_codes() -> None:
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig(num_filters=4)).eval()
    exec(examples()[1], {"model": model, "adapters": adapters})
    assert model.quantizer in _frozen._frozen


@torch.no_grad()
def test_the_example_of_an_adapter() -> None:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(examples()[2], names)
    quantizer = names["MyQuantizer"]().eval()
    x = torch.randn(100, 8, dtype=torch.float64)
    model = nn.Sequential(quantizer.double())
    before = model(x)
    adapters.adapt(model)
    assert type(quantizer) is not names["MyQuantizer"] and isinstance(
        quantizer, names["MyQuantizer"]
    )
    assert torch.equal(model(x), before)
    adapters.restore(model)
    assert type(quantizer) is names["MyQuantizer"]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(4, 2))

    def encode(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.codes).argmin(-1)

    def forward(self, x: Tensor) -> str:
        return "original"


class Inherits(Plain):
    pass


class Overrides(Plain):
    def forward(self, x: Tensor) -> str:
        return "its own"


@adapters.register(Plain)
class PlainAdapter(adapters.Adapter):
    def forward(self, x: Tensor) -> str:
        return f"adapted {self.original.forward(x)}"


def test_subclasses_are_adapted_unless_they_define_the_method_anew() -> None:
    model = nn.ModuleList([Plain(), Inherits(), Overrides()])
    assert [row.path for row in adapters.describe(model)] == ["0", "1"]
    adapters.adapt(model.eval())
    x = torch.randn(3, 2)
    assert [m(x) for m in model] == ["adapted original", "adapted original", "its own"]
    assert [m(x) for m in model.train()] == ["original", "original", "its own"]
    assert [m(x) for m in adapters.restore(model).eval()] == ["original", "original", "its own"]


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(module: nn.Module) -> None:
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))


def parametrized(module: nn.Module) -> None:
    parametrize.register_parametrization(module, "codes", nn.Tanh())


WRAPPERS = {"fsdp2": [shard], "parametrization": [parametrized], "both": [parametrized, shard]}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", WRAPPERS)
def test_what_wraps_an_adapted_module_stays(name: str) -> None:
    model, x = nn.Sequential(Plain()).eval(), torch.randn(3, 2)
    adapters.adapt(model)
    for wrap in WRAPPERS[name]:
        wrap(model[0])
    wrapped = type(model[0])
    described = adapters.describe(model)
    assert described[0].adapted and described[0].kind.endswith("test_registry.Plain")
    assert described[0].adapter.endswith("PlainAdapter")
    adapters.adapt(model, frozen=True)
    assert type(model[0]) is wrapped and model[0] in _frozen._frozen
    assert model(x) == "adapted original"

    restored: Any = adapters.restore(model)[0]
    assert not isinstance(restored, adapters.Adapter) and restored not in _frozen._frozen
    assert isinstance(restored, Plain) and type(restored).__name__ == wrapped.__name__
    assert isinstance(restored, FSDPModule) == (name == "fsdp2" or name == "both")
    assert parametrize.is_parametrized(restored) == (name != "fsdp2")
    assert model(x) == "original"
    assert adapters.describe(model)[0].adapted is False
    assert adapters.adapt(model)(x) == "adapted original"


def test_a_parametrization_is_removed_before_and_after_restoring() -> None:
    for restore_first in (True, False):
        module = adapters.adapt(Plain().eval())
        adapted = type(module)
        parametrized(module)
        if restore_first:
            adapters.restore(module)
        parametrize.remove_parametrizations(module, "codes")
        assert type(module) is (Plain if restore_first else adapted)


def test_a_model_without_known_quantizers_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Overrides())
    assert adapters.describe(model) == []
    with pytest.raises(
        ValueError, match=r"adapt: expected model to have a quantizer with an adapter .*Sequential"
    ):
        adapters.adapt(model)
    assert [type(m) for m in model] == [nn.Linear, Overrides]
    assert adapters.restore(model) is model


@pytest.mark.parametrize("call", [adapters.adapt, adapters.restore, adapters.describe])
def test_what_is_no_module_is_refused(call: Any) -> None:
    with pytest.raises(
        TypeError, match=f"{call.__name__}: expected model to be a torch.nn.Module, but got str"
    ):
        call("model")


@pytest.mark.parametrize("target", [nn.Linear(2, 2), None, 3, int, lambda: None], ids=repr)
def test_a_target_that_is_no_class_of_modules_is_refused(target: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^register: expected target to be a subclass of nn\.Module or its name"
    ):
        adapters.register(target)


def test_what_is_no_adapter_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"register: expected adapter to be a subclass of .*Adapter"
    ):
        adapters.register("a.B")(nn.Linear)  # type: ignore[type-var]
    with pytest.raises(
        TypeError, match="register: expected Nothing to define a method, but got none"
    ):

        @adapters.register("a.B")
        class Nothing(adapters.Adapter):
            pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (staticmethod(lambda x: x), "staticmethod"),
        (classmethod(lambda cls, x: x), "classmethod"),
        (property(lambda self: 1), "property"),
    ],
)
def test_what_would_replace_the_module_s_in_training_is_refused(value: Any, kind: str) -> None:
    """Alone, beside methods, and inherited."""
    for bases, body in [
        ((adapters.Adapter,), {"encode": value}),
        ((PlainAdapter,), {"encode": value}),
        ((type("Base", (adapters.Adapter,), {"encode": value}),), {"forward": lambda self, x: x}),
    ]:
        with pytest.raises(
            TypeError,
            match=rf"register: expected Own\.encode to be a plain method, but got a {kind}$",
        ):
            adapters.register(Plain)(type("Own", bases, body))
    assert adapters.describe(Plain())[0].adapter.endswith("PlainAdapter")


def test_importing_adapters_imports_none_of_the_packages() -> None:
    code = (
        "import sys, torchvq.adapters; "
        "assert not {'transformers', 'diffusers', 'encodec', 'dac', 'moshi', 'snac'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_of_the_docs_names_every_adapter() -> None:
    from torchvq.adapters._registry import _adapters

    text = DOCS.read_text(encoding="utf-8")
    ours = [
        name for name, adapter in _adapters.items() if adapter.__module__.startswith("torchvq.")
    ]
    assert len(ours) > 10
    assert [name for name in ours if f"`{name.rsplit('.', 1)[1]}`" not in text] == []


def test_the_docs_name_every_quantizer_of_transformers() -> None:
    """Searches the sources of the installed version for classes that compare or choose, so as to notice new ones."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    names = set()
    for source in models.glob("*/modeling_*.py"):
        for body in re.split(r"^(?=class )", source.read_text(encoding="utf-8"), flags=re.M):
            name = re.match(
                r"class (\w*(?:Quanti[sz]|Codebook)\w*)\(nn\.Module|class (\w*Codebook)\(", body
            )
            if name and re.search(r"arg(min|max)\(|\.(max|min)\(|cdist\(|round\(", body):
                names.add(name[1] or name[2])
    text = DOCS.read_text(encoding="utf-8")
    assert len(names) > 15
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_models_that_hold_a_tokenizer_are_adapted_through_it() -> None:
    import transformers as t

    with torch.device("meta"):
        model = t.MusicgenForConditionalGeneration(
            t.MusicgenConfig(
                text_encoder=t.T5Config(num_layers=1),
                audio_encoder=t.EncodecConfig(),
                decoder=t.MusicgenDecoderConfig(num_hidden_layers=1),
            )
        )
    assert adapters.describe(model)[0].path == "audio_encoder.quantizer"
    assert type(adapters.adapt(model).audio_encoder.quantizer).__mro__[1].__name__ == "EncodecStack"
