"""The private names of torch: each exists, does what the package needs, and gives a clear message if it is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo.testing
import torch.distributed as dist
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchvq import VectorQuantize
from torchvq._base import torch_private as private

NAMES = [f"{part.module}.{part.name}" for part in private.PRIVATE_NAMES]


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Each part is there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", private.PRIVATE_NAMES, ids=NAMES)
def test_part_is_in_this_torch(part):
    assert part.get() is not None


def test_every_part_is_listed():
    named = {part for part in vars(private).values() if isinstance(part, private.PrivateName)}
    assert named == set(private.PRIVATE_NAMES)


def test_no_other_module_of_the_package_names_a_private_part_of_torch():
    folder = Path(private.__file__).parents[1]
    # Foreach functions begin with an underscore, but are in the manual.
    pattern = re.compile(
        r"\btorch\.(?:\w+\.)*_(?!_version__|foreach_)\w+"
        r"|from torch\b[\w.]* import .*\b_\w+|import torch\b[\w.]*\._"
    )
    for path in folder.rglob("*.py"):
        if path.name != "torch_private.py":
            assert not pattern.findall(path.read_text(encoding="utf-8")), path.name


# Each part does what it is taken for ---------------------------------------------------------------------------------


def test_constant_in_graphs_is_what_torch_makes_of_it():
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    private.constant_in_graphs(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs)


def test_constant_in_graphs_is_run_and_not_traced():
    @private.constant_in_graphs
    def untraceable() -> int:
        return sys._getframe().f_lineno

    @torch.compile(fullgraph=True, backend="eager")
    def add(x: Tensor) -> Tensor:
        return x + untraceable()

    assert add(torch.zeros(1)).item() == untraceable()


def graphs_of(disable: Any) -> tuple[int, Tensor]:
    """The number of graphs of a function that calls a disabled one in its middle, and its results for two inputs."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()

    @disable
    def middle(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return x * 3 if x.sum() > 0 else x

    @torch.compile(backend=counter)
    def run(x: Tensor) -> Tensor:
        return middle(x + 1) - 1

    results = torch.stack([run(torch.ones(2)), run(-torch.ones(2))])
    return counter.frame_count, results


@pytest.mark.filterwarnings("error")
def test_outside_graphs_breaks_the_graph_where_torch_would():
    ours, theirs = (
        graphs_of(disable)
        for disable in (private.outside_graphs("said"), torch.compiler.disable(reason="said"))
    )
    assert ours[0] == theirs[0] == 2
    assert torch.equal(ours[1], theirs[1])


def test_outside_graphs_gives_its_reason_where_one_graph_is_asked_for():
    @private.outside_graphs("the reason that we gave")
    def middle(x: Tensor) -> Tensor:
        return x * 3

    @torch.compile(fullgraph=True, backend="eager")
    def run(x: Tensor) -> Tensor:
        return middle(x)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="the reason that we gave"):
        run(torch.ones(2))


def test_a_module_is_observed_by_a_hook_of_its_own_or_of_all_and_by_a_forward_of_its_own():
    plain, hooked, prepared, replaced = (nn.Identity() for _ in range(4))
    hooked.register_forward_hook(lambda *_: None)
    prepared.register_forward_pre_hook(lambda *_: None)
    replaced.forward = lambda x: x
    assert not private.is_observed(plain, nn.Linear(1, 1))
    for module in (hooked, prepared, replaced):
        assert private.is_observed(plain, module)
    register = (
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_forward_pre_hook,
    )
    for everywhere in register:
        hook = everywhere(lambda *_: None)
        assert private.is_observed(plain)
        hook.remove()
    assert not private.is_observed(plain)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_registered_named_tuples_are_saved_with_exported_programs(tmp_path):
    private.register_namedtuple(Pair, "torchvq.tests.Pair")

    class Both(nn.Module):
        def forward(self, x: Tensor) -> Pair:
            return Pair(x, x + 1)

    torch.export.save(torch.export.export(Both(), (torch.ones(2),)), tmp_path / "both.pt2")
    out = torch.export.load(tmp_path / "both.pt2").module()(torch.ones(2))
    assert isinstance(out, Pair)
    assert out.second.tolist() == [2, 2]


def test_mapped_tensors_are_told_from_others_and_unwrapped():
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.extend([private.is_mapped(x), private.unmapped(x).shape])
        return x

    torch.vmap(look)(torch.ones(3, 2))
    assert seen == [True, (3, 2)]
    assert not private.is_mapped(torch.ones(3))


class Recorder(nn.Module):
    """Records what the package would detect in each of its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        opened, recomputation = private.checkpointed_regions()
        self.seen.append((private.inside_backward(), len(opened), recomputation is not None))
        return x.square()


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_forwards_of_a_checkpointed_region_are_recognised(reentrant):
    recorder = Recorder()
    x = torch.ones(2, requires_grad=True)
    checkpoint(recorder, x, use_reentrant=reentrant).sum().backward()
    first, again = recorder.seen
    assert first == (False, 1, False)
    assert again == (True, 0, True)
    recorder(x)
    with torch.no_grad():
        recorder(x)
    assert recorder.seen[2:] == [(False, 0, False)] * 2


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_each_backward_recomputes_a_region_in_a_run_of_its_own(inner, outer):
    """Each recomputation is one of a region that an earlier run opened, and other runs have other names."""
    opened, runs = [], []

    def look(x: Tensor) -> Tensor:
        regions, recomputation = private.checkpointed_regions()
        if recomputation is not None:
            assert any(recomputation.region is region for region in opened)
            runs.append((id(recomputation.region), recomputation.run))
        opened.extend(regions)
        return x.square()

    def region(x: Tensor) -> Tensor:
        return checkpoint(look, x, use_reentrant=inner)

    x = torch.ones(2, requires_grad=True)
    y = checkpoint(region, x, use_reentrant=outer).sum()
    y.backward(retain_graph=True)
    y.backward()
    # The outer region opens the inner one anew, unless it needs nothing but the input of the inner one and stops there.
    assert len(runs) == len(set(runs)) == (4 if inner or outer else 2)


def test_other_hooks_of_saved_tensors_are_no_checkpoint():
    with torch.autograd.graph.save_on_cpu():
        assert private.checkpointed_regions() == ([], None)


def test_shards_of_a_gathered_parameter(group):
    mesh = dist.init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    shards = dict(private.shards_of(model[1]))
    assert sorted(shards) == ["bias", "weight"]
    assert shards["weight"] is dict(model[1].named_parameters())["weight"]
    sizes, starts = private.place_of_shard(shards["weight"])
    assert (tuple(sizes), tuple(starts)) == ((2, 3), (0, 0))


def test_wrappers_of_torch_put_these_names():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    compiled = torch.compile(nn.Linear(1, 1), backend="eager")
    checkpointed = checkpoint_wrapper(nn.Linear(1, 1))
    names = {name for module in (compiled, checkpointed) for name, _ in module.named_children()}
    assert {*names, torch.distributed.fsdp.fully_sharded_data_parallel.FSDP_WRAPPED_MODULE} == set(
        private.WRAPPER_NAMES
    )


# Each part is missed in plain words ----------------------------------------------------------------------------------


def another_copy() -> ModuleType:
    """The module, imported again by a torch that lacks something."""
    spec = importlib.util.spec_from_file_location("torch_private_copy", private.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.mark.filterwarnings("ignore:torchvq. expected torch:RuntimeWarning")
@pytest.mark.parametrize("part", private.PRIVATE_NAMES, ids=NAMES)
def test_part_that_has_moved_is_named_and_the_module_still_imports(part, monkeypatch):
    *path, last = part.name.split(".")
    owner = importlib.import_module(part.module)
    for name in path:
        owner = getattr(owner, name)
    # A code object cannot be deleted, so the class that holds it is removed.
    if last == "__code__":
        monkeypatch.setattr(torch.utils.checkpoint, "CheckpointFunction", None)
    else:
        monkeypatch.delattr(owner, last)
    moved = another_copy()
    lost = next(one for one in moved.PRIVATE_NAMES if one.name == part.name)
    with pytest.raises(NotImplementedError) as caught:
        lost.get()
    assert f"{part.module}.{part.name}" in str(caught.value)
    assert torch.__version__ in str(caught.value)
    assert str(caught.value).endswith(part.without)


@pytest.mark.parametrize(
    "part",
    [
        private.REGISTER_NAMEDTUPLE,
        private.IS_BATCHED,
        private.GRAPH_TASK,
        private.SAVED_TENSOR_HOOKS,
    ],
    ids=lambda part: part.name,
)
def test_part_that_every_forward_asks_for_is_missed_once_at_import(part, monkeypatch):
    monkeypatch.delattr(importlib.import_module(part.module), part.name)
    with pytest.warns(RuntimeWarning, match=part.without.replace("(", r"\(")) as warned:
        moved = another_copy()
    assert len(warned) == 1
    assert moved.is_mapped(torch.ones(1)) is False
    assert moved.inside_backward() is False
    assert moved.has_saved_tensor_hooks() is False


def observed_by(name: str, module: nn.Module) -> None:
    """Makes a module return twice its output."""
    own = module.forward
    {
        "forward": lambda: setattr(module, "forward", lambda x: 2 * own(x)),
        "hook": lambda: module.register_forward_hook(lambda _module, _x, y: 2 * y),
        "pre-hook": lambda: module.register_forward_pre_hook(lambda _module, x: (2 * x[0],)),
    }[name]()


@pytest.mark.parametrize("name", ["forward", "hook", "pre-hook"])
def test_a_projection_that_does_more_than_its_class_is_called(name):
    """An identity without hooks is skipped."""
    torch.manual_seed(0)
    vq = VectorQuantize(dim=4, codebook_size=16).eval()
    x = torch.randn(2, 5, 4)
    expected = vq(2 * x).indices
    observed_by(name, vq.project_in)
    assert torch.equal(vq(x).indices, expected)
