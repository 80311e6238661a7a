"""When benchmarks measure, what they keep, and when a ratio has fallen, on made-up numbers. Nothing is timed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchvq

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "python"))

import benchmark_documents
import check_ratios
import checks
import every_class
import growth
import harness
import run
import state
from harness import Case, Settings

MACHINE = dict(
    cpu="a cpu",
    cores=2,
    level="AVX2",
    torch="2",
    faiss="1",
    commit="abc",
    date="2026-01-01",
    load=0.0,
    others=0.0,
)


def ratio(median: float, low: float, high: float, rounds: int = 9) -> dict[str, float]:
    return dict(
        seconds=1.0,
        fastest=1.0,
        ratio=median,
        ratio_low=low,
        ratio_high=high,
        rounds=rounds,
    )


def document(name: str, rounds: int = 9, **machine: Any) -> dict[str, Any]:
    times = dict(torchvq=ratio(1, 1, 1, rounds), reference=ratio(3, 2.9, 3.1, rounds))
    case = dict(
        name="a case", parameters=dict(N=1, threads=1), times=times, checks={}, targets=[]
    )  # fmt: skip
    return dict(
        name=name,
        quick=False,
        clock="wall clock",
        machine=MACHINE | machine,
        rounds=[rounds, rounds],
        cases=[case],
    )


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in place of ours."""

    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *command], check=True)

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text("int a;\n")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "fsq.json").write_text("{}\n")
    git("init", "--quiet")
    git("add", "src", "benchmarks")
    git("commit", "--quiet", "--message", "first")
    monkeypatch.setattr(state, "ROOT", tmp_path)
    return tmp_path


def options(**more: Any) -> Any:
    given = dict(quick=False, dirty=False, busy=True, cpu_clock=False, wait=0.0) | more
    return type("Options", (), given)


def test_a_changed_tree_is_refused_and_results_are_no_change(repository: Path) -> None:
    assert run.refusal(options()) == ""
    assert len(state.commit()) == 10
    (repository / "benchmarks" / "results" / "fsq.json").write_text('{"cases": []}\n')
    assert run.refusal(options()) == ""
    (repository / "src" / "a.cpp").write_text("int b;\n")
    (repository / "src" / "new.cpp").write_text("int c;\n")
    assert "src/a.cpp, src/new.cpp" in run.refusal(options())
    assert state.commit().endswith("-dirty")
    assert run.refusal(options(dirty=True)) == ""
    assert run.refusal(options(quick=True)) == ""


def test_a_busy_machine_is_waited_for_and_then_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, now, said = iter([1.5, 0.9, 0.02]), iter([0.0, 1.0, 2.0]), []
    assert state.wait_for_idle(10, said.append, lambda: next(seen), lambda: next(now))
    assert said == ["others use 1.50 cores: waiting up to 10 s for them to end"]
    seen, now = iter([1.5, 0.9, 0.5]), iter([0.0, 1.0, 11.0, 12.0])
    assert not state.wait_for_idle(10, said.append, lambda: next(seen), lambda: next(now))
    monkeypatch.setattr(state, "wait_for_idle", lambda seconds, say: False)
    assert "others used the machine" in run.refusal(options(busy=False))
    assert run.refusal(options(busy=True)) == ""


def test_what_others_use_is_what_the_machine_used_less_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, busy, own = iter([0.0, 10.0]), iter([100.0, 125.0]), iter([5.0, 15.0])
    monkeypatch.setattr(state.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(state, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(state, "own_seconds", lambda: next(own))
    assert state.Started().others() == pytest.approx(1.5)


def test_what_runs_beside_and_is_ours_is_not_of_others() -> None:
    before = state.own_seconds()
    # A child that has worked and still runs, and a grandchild; both would end by themselves.
    work = (
        "import os, time; os.fork(); end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "print('done', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["done\n"] * 2
        assert state.own_seconds() - before > 0.8
    finally:
        for number in [*state._descendants(child.pid), child.pid]:
            os.kill(number, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, True),
        ({"commit": "other"}, False),
        ({"level": "AVX512"}, False),
        ({"rounds": [3, 31]}, False),
        ({"quick": True}, False),
        ({"clock": "processor time"}, False),
    ],
)
def test_a_suite_is_kept_that_was_measured_so(
    changed: dict[str, Any], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "machine", lambda: MACHINE)
    stored = document("fsq")
    for key, value in changed.items():
        (stored["machine"] if key in MACHINE else stored)[key] = value
    assert not run.is_measured("fsq", Settings(output=tmp_path))
    (tmp_path / "fsq.json").write_text(json.dumps(stored))
    assert run.is_measured("fsq", Settings(output=tmp_path)) is kept


def test_a_tree_with_changes_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MACHINE | {"commit": "abc-dirty"}
    monkeypatch.setattr(run, "machine", lambda: machine)
    (tmp_path / "fsq.json").write_text(json.dumps(document("fsq", commit="abc-dirty")))
    assert not run.is_measured("fsq", Settings(output=tmp_path))


def test_nine_rounds_are_taken_whatever_they_take() -> None:
    settings = Settings(output=Path(), threads=(1,))
    assert settings.rounds[0] == harness.LEAST_ROUNDS == 9
    settings = type("Hurried", (Settings,), {"seconds": 0.0})()
    calls = [harness.Contender(name, lambda: None) for name in ("torchvq", "other")]
    times = harness.compare(calls, settings)
    assert {time["rounds"] for time in times.values()} == {9}


def test_medians_and_quartiles_are_of_ratios_within_rounds() -> None:
    seconds = [2.0, 6.0, 12.0, 4.0, 10.0, 8.0, 16.0, 14.0, 18.0]
    found = harness.summary(seconds, [2.0] * 9)
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (5.0, 3.0, 7.0)
    assert (found["seconds"], found["fastest"], found["rounds"]) == (10.0, 2.0, 9)


@pytest.mark.parametrize(
    ("baseline", "now", "fell"),
    [
        # Narrow quartiles separate 3 from 2.
        (ratio(3, 2.97, 3.03), ratio(2, 1.98, 2.02), True),
        (ratio(3, 2.97, 3.03), ratio(3, 2.97, 3.03), False),
        # An improvement is not reported.
        (ratio(2, 1.98, 2.02), ratio(3, 2.97, 3.03), False),
        # The same medians with wide quartiles may be chance.
        (ratio(3, 2.4, 3.6), ratio(2, 1.6, 2.4), False),
        # Wide in the baseline, narrow now.
        (ratio(3, 2.0, 4.5), ratio(2.5, 2.49, 2.51), False),
        # The quartiles do not overlap, but the medians differ by less than the quartiles' width.
        (ratio(3, 2.8, 3.2), ratio(2.6, 2.45, 2.75), False),
        # 3 percent is within what two processes differ by, which the rounds of one process do not show.
        (ratio(3, 3, 3), ratio(2.91, 2.91, 2.91), False),
        (ratio(3, 3, 3), ratio(2.82, 2.82, 2.82), True),
    ],
)
def test_a_ratio_falls_by_more_than_its_spread(
    baseline: dict[str, float], now: dict[str, float], fell: bool
) -> None:
    assert check_ratios.has_fallen(baseline, now) is fell
    # The verdict does not depend on the unit.
    wider = [{k: v * 10 if "ratio" in k else v for k, v in t.items()} for t in (baseline, now)]
    assert check_ratios.has_fallen(*wider) is fell


@pytest.mark.parametrize(
    ("measured", "found"),
    [([2.0, 2.0, 2.0], 1), ([2.0, 3.0], 0), ([2.0, 2.0, 3.0], 0), ([3.0], 0)],
)
def test_what_has_fallen_is_measured_three_times(measured: list[float], found: int) -> None:
    left = list(measured)

    def measure(_suite: Any, _settings: Settings) -> Case:
        value = left.pop(0)
        times = dict(torchvq=ratio(1, 1, 1), faiss=ratio(value, value, value))
        return Case("a case", {}, times)

    chosen = check_ratios.Chosen("harness", "a case", measure)
    baseline = dict(torchvq=ratio(1, 1, 1), faiss=ratio(3, 3, 3), reference=ratio(9, 9, 9))
    lines = check_ratios.check(chosen, baseline, Settings())
    assert len(lines) == found
    assert left == []
    assert all("faiss takes 2 (2 to 2) times as long; it was 3 (3 to 3)" in line for line in lines)


def test_ratios_have_something_to_be_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check_ratios.py", "--quick", "--only", "fsq", "--baseline", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    assert check_ratios.main() == 2
    assert "nothing to compare with" in capsys.readouterr().err
    stored = document("fsq")
    stored["cases"][0]["name"] = "FSQ training step threads=1"
    (tmp_path / "fsq.json").write_text(json.dumps(stored))
    assert check_ratios.main() == 2
    assert "the baseline is of a cpu" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*command, "--elsewhere"])
    # Baselines of 1e-6, which any machine reaches, and 1e9, which none does.
    times = stored["cases"][0]["times"]
    for low, code in ((1e-6, 0), (1e9, 1)):
        times["reference"] = ratio(low, low, low)
        (tmp_path / "fsq.json").write_text(json.dumps(stored))
        assert check_ratios.main() == code


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_every_chosen_case_is_found_under_its_name() -> None:
    for chosen in check_ratios.SUBSET:
        # Fails if a suite has renamed the case.
        assert check_ratios.check(chosen, {}, Settings(quick=True, threads=(1,))) == []


def test_the_page_says_what_makes_its_numbers_doubtful() -> None:
    remark = benchmark_documents.remark
    assert remark(dict(a=document("a"), b=document("b"))) == ""
    for changed, said in (
        (dict(commit="def"), "The tables are of 2 commits."),
        (dict(others=0.8), "The machine had other work in b."),
        (dict(level="AVX512"), "They were taken on several processors."),
        (dict(rounds=3), "Fewer than 9 rounds were taken in b."),
    ):
        text = remark(dict(a=document("a"), b=document("b", **changed)))
        assert text.startswith("**Stale**: ")
        assert said in text
    dirty = remark(dict(a=document("a", commit="abc-dirty")))
    assert "Some are of trees with changes" in dirty


def test_the_first_lines_are_those_of_the_results() -> None:
    lines = benchmark_documents.headline(dict(a=document("a"), b=document("b")), _table)
    assert "all 2 cases, geometric mean|1|3||" in lines
    assert "In none of 2 comparisons is torchvq the slower one." in lines
    slow = document("c")
    slow["cases"][0]["times"]["reference"] = ratio(1 / 3, 0.3, 0.4)
    lines = benchmark_documents.headline(dict(a=document("a"), c=slow), _table)
    # The geometric mean of three times as fast and three times as slow is 1.
    assert "all 2 cases, geometric mean|1|1||" in lines
    assert "the slower one in 1 of 2 comparisons, the most beside reference" in lines


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("|".join(row) for row in [header, *rows])


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponents_are_those_of_powers(power: float) -> None:
    values = [2, 8, 32, 100]
    seconds = [3e-6 * value**power for value in values]
    assert growth.exponent(values, seconds) == pytest.approx(power, abs=1e-9)


@pytest.mark.parametrize(
    ("factor", "error"),
    [(1.0, None), (1.01, "differ by"), (-1.0, "differ by"), (math.nan, "differ by")],
)
def test_gradients_are_checked_not_their_sum_alone(
    factor: float, error: str | None, generator: torch.Generator
) -> None:
    expected = torch.randn(16, 4, generator=generator)
    if error is None:
        assert checks.gradients("ours", expected * factor, expected) == 0
        return
    with pytest.raises(AssertionError, match=error):
        checks.gradients("ours", expected * factor, expected)
    with pytest.raises(AssertionError, match="are 0"):
        checks.gradients("ours", expected, torch.zeros(16, 4))
    with pytest.raises(AssertionError, match="shape"):
        checks.gradients("ours", expected[:1], expected)


def test_every_class_takes_small_steps() -> None:
    made = {
        name
        for name in dir(torchvq)
        if isinstance(getattr(torchvq, name), type)
        and issubclass(getattr(torchvq, name), nn.Module)
    }
    assert {entry.name for entry in every_class.ENTRIES} == made


ROWS = [
    entry
    if entry.name in ("VectorQuantize", "FSQ")
    else pytest.param(entry, marks=pytest.mark.exhaustive)
    for entry in every_class.ENTRIES
]


@pytest.mark.parametrize("entry", ROWS, ids=lambda entry: entry.name)
def test_classes_written_plainly_find_the_same_tokens_in_one_graph(
    entry: every_class.Entry,
) -> None:
    x = every_class.tokens(entry, 64)
    modules = every_class.modules(entry)
    # No generated code; fullgraph raises at a graph break.
    compiled = torch.compile(modules["plain torch"], backend="aot_eager", fullgraph=True)
    found = every_class.step_of(entry, compiled, [x])()[0].flatten()
    ours = every_class.step_of(entry, modules["torchvq"], [x])()[0].flatten()
    if entry.draws:
        return
    assert len(found) == len(ours)
    # Finer scales quantize the residual of codes that the two implementations move differently.
    first = slice(len(ours) if entry.length == 1 else 1)
    assert torch.equal(found[first], ours[first])
