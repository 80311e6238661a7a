"""Monitor: records, files, plots and warnings."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import support
from torchvq import (
    CodebookStats,
    CollapseLimits,
    CollapseWarning,
    GroupedResidualVQ,
    Monitor,
    RandomProjectionQuantizer,
    ResidualVQ,
    VectorQuantize,
)
from torchvq._codebook.collapse import LevelWatch
from torchvq.monitor import plot_json_lines, read_json_lines

DIM = 6
HEALTHY = CodebookStats(
    usage=1.0, perplexity=50.0, dead=0, replaced=0, entropy_bits=5.6, tokens=100
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vq = VectorQuantize(DIM, 8)
        self.stack = ResidualVQ(dim=DIM, num_quantizers=2, codebook_size=16, kmeans_init=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(self.vq(x)[0])[0]


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def train(monitor: Monitor, model: nn.Module, steps: range) -> list[dict[str, CodebookStats]]:
    found = []
    for step in steps:
        model(torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(step)))
        found.append(monitor.step(step))
    return found


def test_json_lines_hold_what_stats_says(tmp_path: Path) -> None:
    support.seed_everything()
    model, file = Model(), tmp_path / "runs" / "one.jsonl"
    with Monitor(model, json_lines=file) as monitor:
        found = train(monitor, model, range(3))
        assert found[-1]["vq"] == model.vq.stats()
        assert (found[-1]["stack.layers.0"], found[-1]["stack.layers.1"]) == model.stack.stats()
        # The file can be read while the run goes on.
        records = read_json_lines(file)
    names = ["vq", "stack.layers.0", "stack.layers.1"]
    assert [(r["step"], r["quantizer"]) for r in records] == [
        (s, n) for s in range(3) for n in names
    ]
    for record in records:
        stats = found[record["step"]][record["quantizer"]]
        assert CodebookStats(*(record[field] for field in CodebookStats._fields)) == stats
        assert record["codes"] == (8 if record["quantizer"] == "vq" else 16)


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    support.seed_everything()
    model, file = Model(), tmp_path / "run.jsonl"
    for steps in (range(2), range(2, 5)):
        monitor = Monitor(model, json_lines=file)
        train(monitor, model, steps)
        monitor.close()
        monitor.close()
    assert [r["step"] for r in read_json_lines(file)] == [s for s in range(5) for _ in range(3)]


def test_every_leaves_steps_out(tmp_path: Path) -> None:
    support.seed_everything()
    model = Model()
    monitor = Monitor(model, json_lines=tmp_path / "run.jsonl", every=3)
    found = train(monitor, model, range(7))
    assert [bool(entry) for entry in found] == [True, False, False, True, False, False, True]
    assert monitor.step() == {} and monitor.step() == {} and monitor.step() != {}
    steps = [r["step"] for r in read_json_lines(tmp_path / "run.jsonl")][::3]
    assert steps == [0, 3, 6, 9]


def test_a_writer_gets_every_number() -> None:
    support.seed_everything()
    model, writer = Model(), Writer()
    found = train(Monitor(model, writer=writer, tag="codes"), model, range(2))
    expected = [
        (f"codes/{name}/{field}", value, step)
        for step, entry in enumerate(found)
        for name, stats in entry.items()
        for field, value in stats._asdict().items()
    ]
    assert writer.scalars == expected and len(expected) == 2 * 3 * 6


def test_tensorboard_reads_them_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    support.seed_everything()
    model = Model()
    with SummaryWriter(str(tmp_path)) as writer:
        found = train(Monitor(model, writer=writer), model, range(3))
    events = EventAccumulator(str(tmp_path)).Reload()
    for step, event in enumerate(events.Scalars("torchvq/stack.layers.1/perplexity")):
        assert event.step == step
        # TensorBoard stores float32.
        assert event.value == pytest.approx(found[step]["stack.layers.1"].perplexity, rel=1e-6)
    assert len(events.Tags()["scalars"]) == 18


def test_names_are_those_of_the_model_below_its_wrappers() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    names = ["vq", "stack.layers.0", "stack.layers.1"]
    assert list(Monitor(Wrapper(Model())).quantizers) == names
    assert list(Monitor(torch.compile(Model())).quantizers) == names
    assert list(Monitor(VectorQuantize(DIM, 4)).quantizers) == ["quantizer"]
    grouped = GroupedResidualVQ(dim=DIM, groups=2, num_quantizers=1, codebook_size=4)
    assert list(Monitor(grouped).quantizers) == ["rvqs.0.layers.0", "rvqs.1.layers.0"]


def test_wrong_arguments_are_told() -> None:
    fixed = RandomProjectionQuantizer(dim=4, codebook_size=8, codebook_dim=2)
    for module in (nn.Linear(2, 2), fixed):
        with pytest.raises(ValueError, match=r"expected module to contain .* but got \w+ without"):
            Monitor(module)
    assert set(Monitor(nn.ModuleList([fixed, VectorQuantize(4, 8)])).quantizers) == {"1"}
    with pytest.raises(TypeError, match=r"expected module to be a torch.nn.Module, but got None"):
        Monitor(None)
    with pytest.raises(TypeError, match="expected limits to be CollapseLimits or None, but got di"):
        Monitor(Model(), limits={})
    with pytest.raises(ValueError, match="expected json_lines for a plot"):
        Monitor(Model()).plot("never.png")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(every=0), ValueError, "every to be at least 1, but got 0"),
        (dict(every=1.5), TypeError, "every to be an integer, but got 1.5"),
        (dict(every=math.nan), TypeError, "every to be an integer, but got nan"),
        (dict(every=None), TypeError, "every to be an integer, but got None"),
        (dict(window=0), ValueError, "the window of limits to be at least 1, but got 0"),
        (dict(window=1.5), TypeError, "the window of limits to be an integer, but got 1.5"),
        (dict(perplexity_fall=5), ValueError, r"perplexity_fall of limits to be in \[0, 1\]"),
        (dict(dead=-1), ValueError, r"dead of limits to be in \[0, 1\], but got -1"),
        (dict(dead="a"), TypeError, "dead of limits to be a number, but got 'a'"),
        (dict(churn=math.nan), ValueError, r"churn of limits to be in \[0, 1\], but got nan"),
    ],
)
def test_numbers_out_of_range_are_told(arguments: Any, error: Any, message: str) -> None:
    if "every" not in arguments:
        arguments = dict(limits=CollapseLimits(**arguments))
    with pytest.raises(error, match=f"^Monitor: expected {message}"):
        Monitor(VectorQuantize(DIM, 8), **arguments)


@pytest.mark.parametrize("step", [0.5, "a", torch.tensor(0.5)], ids=repr)
def test_a_step_that_is_no_integer_records_nothing(tmp_path: Path, step: Any) -> None:
    file, writer = tmp_path / "run.jsonl", Writer()
    monitor = Monitor(VectorQuantize(DIM, 8), json_lines=file, writer=writer)
    with pytest.raises(TypeError, match=r"^Monitor: expected step to be an integer, but got"):
        monitor.step(step)
    assert not writer.scalars and not file.exists()
    monitor.step()
    assert [record["step"] for record in read_json_lines(file)] == [0]


@pytest.mark.parametrize("step", [np.int64(3), torch.tensor(3)], ids=repr)
def test_integers_of_other_packages_number_steps(tmp_path: Path, step: Any) -> None:
    monitor = Monitor(VectorQuantize(DIM, 8), json_lines=tmp_path / "run.jsonl")
    monitor.step(step)
    monitor.step()
    assert [record["step"] for record in read_json_lines(tmp_path / "run.jsonl")] == [3, 4]


# Reading and drawing -----------------------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    support.seed_everything()
    model, file = Model(), tmp_path / "run.jsonl"
    train(Monitor(model, json_lines=file), model, range(2))
    whole = read_json_lines(file)
    file.write_text(file.read_text()[:-30])
    assert read_json_lines(file) == whole[:-1]
    file.write_text("step 3: fine\n")
    with pytest.raises(ValueError, match=r"expected line 1 of .* to be a record of a Monitor"):
        read_json_lines(file)
    file.write_text('{"step": 3}\n')
    with pytest.raises(ValueError, match="expected line 1"):
        read_json_lines(file)


RECORD: dict[str, Any] = dict(step=0, quantizer="q", codes=8) | HEALTHY._asdict()


@pytest.mark.parametrize(
    "changed",
    [
        *({field: None} for field in RECORD),
        *({field: "1"} for field in RECORD if field != "quantizer"),
        dict(quantizer=1),
        dict(step=0.5),
        dict(codes=0),
        dict(usage=True),
    ],
    ids=str,
)
def test_lines_that_no_monitor_writes(tmp_path: Path, changed: dict[str, Any]) -> None:
    file = tmp_path / "run.jsonl"
    # json writes NaN, and a later version may add a field.
    right = json.dumps(RECORD | dict(perplexity=math.nan, later=[]))
    wrong = {field: v for field, v in (RECORD | changed).items() if v is not None}
    file.write_text(f"{right}\n")
    assert len(read_json_lines(file)) == 1
    for line in (json.dumps(wrong), json.dumps(RECORD | changed), "[]", "null"):
        file.write_text(f"{right}\n{line}\n")
        with pytest.raises(ValueError, match=r"expected line 2 of .* to be a record of a Monitor"):
            read_json_lines(file)


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_resumed_run_ends_the_line_that_was_cut(tmp_path: Path, cut: int) -> None:
    support.seed_everything()
    model, file = Model(), tmp_path / "run.jsonl"
    train(Monitor(model, json_lines=file), model, range(2))
    whole = read_json_lines(file)
    text = file.read_text()
    file.write_text(text[: len(text) - cut])
    train(Monitor(model, json_lines=file), model, range(2, 3))
    steps = [record["step"] for record in read_json_lines(file)]
    kept = [record["step"] for record in whole]
    assert steps == kept[: len(kept) - (cut > 1)] + [2] * (len(kept) // 2)


def test_a_plot_has_a_line_per_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    support.seed_everything()
    model, file = Model(), tmp_path / "run.jsonl"
    monitor = Monitor(model, json_lines=file)
    found = train(monitor, model, range(4))
    # Step 3 is written twice; the later record counts.
    found[3] = train(monitor, model, range(3, 4))[0]
    drawn: list[tuple[str, list[int], list[float]]] = []
    original = Axes.plot

    def plot(self: Axes, x: Any, y: Any, **options: Any) -> Any:
        drawn.append((options["label"], list(x), list(y)))
        return original(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", plot)
    monitor.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
    expected = []
    for field in ("perplexity", "usage", "dead", "replaced"):
        for name, codes in (("vq", 8), ("stack.layers.0", 16), ("stack.layers.1", 16)):
            scale = {"perplexity": 1.0, "usage": 100.0}.get(field, 100.0 / codes)
            values = [scale * getattr(entry[name], field) for entry in found]
            expected.append((name, [0, 1, 2, 3], values))
    assert drawn == expected


def test_an_empty_file_cannot_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(ValueError, match="to hold records, but got none"):
        plot_json_lines(tmp_path / "run.jsonl", tmp_path / "run.png")


def test_neither_matplotlib_nor_tensorboard_is_needed_until_asked_for(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
sys.modules["tensorboard"] = None
import torch
from torchvq import Monitor, VectorQuantize
vq = VectorQuantize(4, 4)
vq(torch.randn(1, 9, 4))
monitor = Monitor(vq, json_lines={str(tmp_path / "run.jsonl")!r})
monitor.step()
try:
    monitor.plot("run.png")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "expected matplotlib to be installed" in done.stdout, done.stderr


# Collapse ------------------------------------------------------------------------------------------------------------


def watch(records: list[CodebookStats], **limits: Any) -> list[tuple[int, str]]:
    level = LevelWatch("a.b", CollapseLimits(window=10, **limits))
    return [(s, text) for s, record in enumerate(records) for text in level.add(record, 64, s)]


def test_healthy_codebooks_are_left_in_peace() -> None:
    low = HEALTHY._replace(perplexity=27.0, dead=32, replaced=6)
    assert watch([HEALTHY] * 20 + [low] * 50) == []


@pytest.mark.parametrize(
    ("bad", "fragment", "switch"),
    [
        (
            {"perplexity": 5.0},
            "perplexity has fallen to 24.4 from 50.0",
            {"perplexity_fall": 0.0},
        ),
        ({"dead": 60}, "53% of 64 codes are dead", {"dead": 1.0}),
        ({"replaced": 10}, "10% of 64 codes are replaced in each step", {"churn": 1.0}),
    ],
    ids=["falling", "dead", "churn"],
)
def test_each_cause_is_told_once(bad: Any, fragment: str, switch: dict[str, float]) -> None:
    # After n bad records the mean is bad + (good - bad) * 0.9 ** n, so the limits are passed after 8, 8 and 10 of them.
    records = [HEALTHY] * 20 + [HEALTHY._replace(**bad)] * 80
    ((step, message),) = watch(records)
    assert message.startswith(f"Monitor: a.b, step {step}: ") and fragment in message
    assert 20 <= step < 30
    assert watch(records, **switch) == []


def test_nothing_is_told_before_the_window_is_full() -> None:
    dead = HEALTHY._replace(dead=64)
    assert [step for step, _ in watch([dead] * 20)] == [9]


def test_levels_without_tokens_say_nothing() -> None:
    nothing = CodebookStats(0.0, 0.0, 64, 0, 0.0, 0)
    assert watch([HEALTHY, nothing, nothing, nothing] * 30) == []


def test_a_codebook_that_collapses_is_told_in_training(tmp_path: Path) -> None:
    """All tokens become one point, so one code takes them all, and the monitor warns during training."""
    support.seed_everything()
    vq = VectorQuantize(DIM, 32)
    monitor = Monitor(vq, limits=CollapseLimits(window=5), json_lines=tmp_path / "run.jsonl")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(60):
            x = torch.randn(1, 200, DIM, generator=torch.Generator().manual_seed(step))
            vq(x if step < 15 else torch.full_like(x, 5))
            monitor.step(step)
    texts = [str(w.message) for w in caught if w.category is CollapseWarning]
    assert len(texts) == 2
    assert "quantizer, step 1" in texts[0] and "perplexity has fallen" in texts[0]
    assert "codes are dead" in texts[1]
    assert caught[0].filename == __file__
    json.dumps(read_json_lines(tmp_path / "run.jsonl"))


def test_limits_of_none_never_warn() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 32)
    monitor = Monitor(vq, limits=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            vq(torch.zeros(1, 5, DIM))
            monitor.step()


def test_codes_that_were_assigned_in_another_number_are_those_that_are_told(tmp_path: Path) -> None:
    vq, like = (VectorQuantize(8, size, threshold_ema_dead_code=2) for size in (16, 256))
    monitor = Monitor(vq, json_lines=tmp_path / "run.jsonl", limits=CollapseLimits(window=2))
    for name in ("embed", "embed_avg", "cluster_size"):
        setattr(vq._codebook, name, getattr(like._codebook, name).clone())
    vq(torch.randn(1, 64, 8))
    monitor.step()
    with pytest.warns(CollapseWarning, match=r"9\d% of 256 codes are dead"):
        monitor.step()
    monitor.close()
    assert {record["codes"] for record in read_json_lines(tmp_path / "run.jsonl")} == {256}
