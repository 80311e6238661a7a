"""Importing torchvq loads only itself, beyond the modules that ``import torch`` loads."""

from __future__ import annotations

import json
import subprocess
import sys

COMPILERS = {"onnx", "sympy", "torch._dynamo", "torch._inductor", "torch.distributed.fsdp"}


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads after ``import torch``, in a new Python process."""
    code = (
        "import json, sys, torch; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_import_loads_nothing_but_the_package():
    modules = loaded_by("import torchvq")
    assert "torchvq.vector_quantize" in modules
    assert {name for name in modules if name.split(".")[0] != "torchvq"} <= set(
        sys.stdlib_module_names
    )


def test_training_loads_no_compiler():
    modules = loaded_by(
        "import torchvq\n"
        "vq = torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2, kmeans_init=True)\n"
        "vq(torch.randn(1, 64, 8, requires_grad=True)).quantized.sum().backward()\n"
        "torchvq.LatentQuantize([4, 4], 2)(torch.randn(1, 2, 64))"
    )
    assert not COMPILERS & modules


def test_tools_look_at_translations_without_onnxscript():
    """Doctest and others ask each name of a module for ``__wrapped__``."""
    code = (
        "import inspect, sys; sys.modules['onnxscript'] = None; import torchvq.onnx\n"
        "for value in vars(torchvq.onnx).values(): inspect.unwrap(value)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
