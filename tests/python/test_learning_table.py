"""The learning table: its rows, their pairing, its conclusions, and a quick run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import torchvq

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "python"
sys.path.insert(0, str(BENCHMARKS))

pytest.importorskip("vector_quantize_pytorch")

import documents  # noqa: E402
import learning_charts  # noqa: E402
import learning_documents  # noqa: E402
import learning_report as report  # noqa: E402
import learning_rows  # noqa: E402
import learning_table  # noqa: E402
import learning_tasks_drift as drift  # noqa: E402
import learning_tasks_stream as stream  # noqa: E402
from learning_rows import OURS, REFERENCE, YARDSTICK, Row  # noqa: E402

ROWS = learning_table.rows()


def table(*options: object) -> subprocess.CompletedProcess[str]:
    package = str(Path(torchvq.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "learning_table.py"), *map(str, options)],
        env=os.environ | {"PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def row_of(task: str, name: str) -> Row:
    return next(row for row in ROWS if (row.task, row.name) == (task, name))


def test_rows_have_names_of_their_own_and_families_one_recommendation() -> None:
    assert len({(row.task, row.name) for row in ROWS}) == len(ROWS)
    best = [(row.task, row.family) for row in ROWS if row.recommended]
    assert len(set(best)) == len(best)
    names = {(row.task, row.name) for row in ROWS if row.reference is not None}
    assert all((row.task, row.against) in names for row in ROWS if row.against)


def test_streams_cover_every_pair_of_settings() -> None:
    found = []
    for row in ROWS:
        # Recommended settings depend on the tokens of a step, not on the lists of settings.
        if row.task == "stream" and not row.recommended:
            options, setting = row.options(OURS), row.setting
            threshold = (
                options.get("threshold_ema_dead_code"),
                options.get("dead_code_threshold_fraction"),
            )
            ratio = setting["batch"] / setting["codes"]
            if ratio == stream.FEWEST:
                continue  # rows of their own, beside the square
            found.append(
                (setting["data"], ratio, threshold, options["decay"], options["kmeans_init"])
            )
    for i, j in combinations(range(5), 2):
        wanted = len({line[i] for line in found}) * len({line[j] for line in found})
        assert len({(line[i], line[j]) for line in found}) == wanted


def test_reference_takes_the_fraction_as_a_number() -> None:
    ours, theirs = learning_rows.both(dict(decay=0.9, dead_code_threshold_fraction=0.1), 1024, 512)
    assert ours == dict(decay=0.9, dead_code_threshold_fraction=0.1)
    assert theirs == dict(decay=0.9, threshold_ema_dead_code=pytest.approx(0.2))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("VectorQuantize: defaults", "_codebook.embed"),
        ("VectorQuantize: learnable", "_codebook.embed"),
        ("ResidualVQ: defaults", "layers.3._codebook.embed"),
        ("LFQ: defaults", "project_in.weight"),
    ],
)
def test_both_libraries_start_alike(name: str, key: str) -> None:
    row = row_of("autoencoder", name)
    first, second = (learning_rows.make(row, who, 3).state_dict()[key] for who in (OURS, REFERENCE))
    assert torch.equal(first, second)
    other = learning_rows.make(row, OURS, 4).state_dict()[key]
    assert not torch.equal(first, other)


@pytest.mark.parametrize("who", [OURS, REFERENCE])
def test_overwritten_codes_are_noise_that_the_next_step_keeps(who: str) -> None:
    row = row_of("disturbance", "patches, 512 codes: k-means")
    quantizer = learning_rows.make(row, who, 0).train()
    tokens = torch.rand(1, 2048, 49)
    quantizer(tokens)
    drift.overwrite(quantizer)
    noise = quantizer.codebook[:51].detach().clone()
    assert noise.std() > 0.9
    quantizer(tokens)
    assert quantizer.codebook[:51].std() > 0.9
    assert torch.allclose(quantizer.codebook[:51], noise, atol=1e-2)


def test_a_turn_keeps_distances() -> None:
    tokens = torch.rand(8, 49)
    moved = drift.turned(tokens, 100)
    assert torch.allclose(torch.cdist(moved, moved), torch.cdist(tokens, tokens), atol=1e-4)
    assert not torch.allclose(moved, tokens, atol=1e-2)


def runs_of(name: str, who: str, values: list[float], **more: Any) -> list[dict[str, Any]]:
    return [
        dict(task="autoencoder", row=name, who=who, seed=seed, finite=True, psnr=value, use=1.0)
        | more
        for seed, value in enumerate(values)
    ]


def line_of(ours: list[float], reference: list[float]) -> report.Line:
    name = "VectorQuantize: defaults"
    runs = runs_of(name, OURS, ours) + runs_of(name, REFERENCE, reference)
    return report.lines(runs, [row_of("autoencoder", name)], [])[0]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([18.0, 19.0, 20.0], "alike"),
        ([17.98, 18.98, 19.97], "worse (2 s.e.)"),
        ([17.0, 19.5, 20.0], "worse (0.1 dB)"),
        ([17.0, 18.1, 19.0], "worse (2 s.e. and 0.1 dB)"),
        ([18.2, 19.2, 20.3], "better"),
        ([18.5, 18.9, 20.0], "alike"),
        # A difference of the size of rounding is no evidence, however small its standard error.
        ([17.9995, 18.9995, 19.9995], "alike"),
    ],
)
def test_verdict_is_that_of_paired_differences(ours: list[float], verdict: str) -> None:
    assert line_of(ours, [18.0, 19.0, 20.0]).verdict == verdict


def test_pairs_are_seeds_that_both_have() -> None:
    line = line_of([18.0, 19.0, 30.0], [18.5, 19.5])
    found = line.difference
    assert found is not None
    assert (found.mean, found.seeds) == (-0.5, 2)
    assert (line.mean(OURS), line.mean(REFERENCE)) == (18.5, 19.0)


def test_errors_compare_as_ratios() -> None:
    metric = report.metric_of("stream")
    found = report.difference({0: {"error": 1.02}}, {0: {"error": 1.0}}, metric)
    assert found is not None
    assert found.mean == pytest.approx(2)
    assert found.worse == ["1 %"]
    assert math.isnan(found.error)


@pytest.mark.parametrize(
    ("bound", "freedom", "chance"),
    # Critical values from printed tables of Student's distribution.
    [
        (6.314, 1, 0.05),
        (2.353, 3, 0.05),
        (2.132, 4, 0.05),
        (3.747, 4, 0.01),
        (1.833, 9, 0.05),
        (0.0, 3, 0.5),
    ],
)
def test_chance_is_that_of_the_tables(bound: float, freedom: int, chance: float) -> None:
    assert report.beyond(bound, freedom) == pytest.approx(chance, rel=1e-3)


def test_rows_worse_by_chance_are_counted_among_those_not_better() -> None:
    names = [row.name for row in ROWS if row.task == "autoencoder" and row.reference][:3]
    runs = []
    for name, ours in zip(
        names, ([17.9, 18.9, 19.9], [17.8, 19.1, 20.1], [18.5, 19.5, 20.5]), strict=True
    ):
        runs += runs_of(name, OURS, ours) + runs_of(name, REFERENCE, [18.0, 19.0, 20.0])
    said = report.chance(report.lines(runs, [row_of("autoencoder", name) for name in names], []))
    # Worse, alike and better, with three pairs each: twice 0.0918.
    assert said.startswith("Of the 2 rows that are not better, 1 are worse")
    assert said.endswith("would put 0.2 there.")


def test_baseline_lends_what_is_not_ours() -> None:
    name = "VectorQuantize: defaults"
    old = runs_of(name, OURS, [1.0]) + runs_of(name, REFERENCE, [18.0])
    line = report.lines(runs_of(name, OURS, [19.0]), [row_of("autoencoder", name)], old)[0]
    assert (line.mean(OURS), line.mean(REFERENCE)) == (19.0, 18.0)


def test_failed_runs_are_told_and_not_averaged() -> None:
    name = "VectorQuantize: defaults"
    runs = runs_of(name, OURS, [19.0]) + runs_of(name, REFERENCE, [18.0])
    runs.append(
        dict(task="autoencoder", row=name, who=OURS, seed=1, finite=False, failed="Error: no")
    )
    line = report.lines(runs, [row_of("autoencoder", name)], [])[0]
    assert line.verdict == "ours, seed 1: Error: no"
    assert line.mean(OURS) == 19.0


def test_families_name_the_best_other_row() -> None:
    names = ("VectorQuantize: recommended", "VectorQuantize: defaults")
    runs = runs_of(names[0], OURS, [18.0, 18.1]) + runs_of(names[1], OURS, [18.5, 18.7])
    rows = [row_of("autoencoder", name) for name in names]
    (family,) = report.families(report.lines(runs, rows, []))
    assert (family.best, family.verdict) == ("VectorQuantize: defaults, ours", "behind")
    runs += runs_of(names[1], OURS, [17.5, 17.7])
    (family,) = report.families(report.lines(runs, rows, []))
    assert family.verdict == "the best"


def test_adopted_runs_take_the_place_of_others_and_say_where_they_were_made() -> None:
    name = "VectorQuantize: defaults"
    here = dict(cpu="new", cores=2, level="AVX2", commit="b", date="2026-01-02")
    old = {"machine": dict(here, cpu="old"), "runs": runs_of(name, OURS, [18.0, 18.1])}
    old["runs"] += runs_of(name, REFERENCE, [18.5])
    found = learning_table.adopted(old, {"machine": here, "runs": runs_of(name, OURS, [19.0])})
    assert found["machine"]["cpu"] == "old"
    line = report.lines(found["runs"], [row_of("autoencoder", name)], [])[0]
    assert [line.ours[seed]["psnr"] for seed in (0, 1)] == [19.0, 18.1]
    assert line.difference is not None and line.difference.mean == 0.5
    said = documents._machines_of_runs(found["runs"])
    assert said == "\n1 of the runs (ours): new, 2 cores (AVX2), commit b, 2026-01-02.\n"


PICTURES = ("learning_differences", "learning_use", "learning_recommended")


def runs_of_all_rows() -> list[dict[str, Any]]:
    """Two seeds of every row that both libraries have, and faiss's error."""
    runs = []
    for row in ROWS:
        for who in (OURS, REFERENCE):
            for seed in range(2 * row.has(who)):
                run = dict(task=row.task, row=row.name, who=who, seed=seed, finite=True, use=0.5)
                run |= dict(psnr=19.0 + seed, error=0.1 + seed, recovery=3.0, yardstick=row.task)
                runs.append(run)
        if row.setting:
            yardstick = dict(task=row.task, row=row.name, who=YARDSTICK, seed=0, finite=True)
            runs.append(yardstick | dict(error=0.1, yardstick=row.task))
    return runs


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    runs = runs_of_all_rows()
    learning_charts.draw(runs, ROWS, tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == set(PICTURES)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in tmp_path.iterdir())
    first = {file.stem: file.read_bytes() for file in tmp_path.iterdir()}
    learning_charts.draw(runs, ROWS, tmp_path)
    assert first == {file.stem: file.read_bytes() for file in tmp_path.iterdir()}


def test_tables_of_one_library_or_none_draw_what_they_can(tmp_path: Path) -> None:
    learning_charts.draw([], ROWS, tmp_path)
    assert not any(tmp_path.iterdir())
    runs = [run for run in runs_of_all_rows() if run["who"] != REFERENCE]
    learning_charts.draw(runs, ROWS, tmp_path)
    assert (tmp_path / "learning_use.png").exists()


def test_rows_of_the_pictures_exist() -> None:
    names = {row.name for row in ROWS if row.reference is not None}
    assert names >= set(learning_charts.UNSET)
    page = (ROOT / "docs" / "learning.md").read_text()
    for picture in PICTURES:
        assert f"../benchmarks/results/{picture}.png" in page


def test_errors_are_told_over_the_yardstick_of_their_machine() -> None:
    name = "embeddings: recommended"
    other = dict(cpu="new", cores=2, level="AVX2", commit="b", date="2026-01-02")
    start = dict(task="residual stream", seed=0, finite=True, yardstick="embeddings")
    old = dict(start, who=YARDSTICK, row=name, error=0.1)
    new = dict(start, who=YARDSTICK, row=name, seed=1, error=0.2, machine=other)
    run = dict(start, who=OURS, row=name, error=0.22)
    rows = [row_of("residual stream", name)]
    for yardsticks in ([old, new], [new, old]):
        (line,) = report.lines([*yardsticks, run], rows, [])
        assert line.over_yardstick(OURS) == pytest.approx(2.2)
        (line,) = report.lines([*yardsticks, dict(run, machine=other)], rows, [])
        assert line.over_yardstick(OURS) == pytest.approx(1.1)
    # Without a yardstick of its own machine, a run is compared with the one there is.
    (line,) = report.lines([new, run], rows, [])
    assert line.over_yardstick(OURS) == pytest.approx(1.1)


@pytest.mark.exhaustive
def test_quick_table_resumes_and_reaches_the_docs(tmp_path: Path) -> None:
    options = ("--quick", "--seeds", 1, "--jobs", 1, "--output", tmp_path)
    options += ("--tasks", "stream", "--rows", "^patches, 256 codes.*recommended")
    done = table(*options)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "learning_table.json"
    document = json.loads(file.read_text())
    assert {run["who"] for run in document["runs"]} == {OURS, REFERENCE, YARDSTICK}
    assert all(run["finite"] for run in document["runs"])
    assert {"cpu", "commit"} <= document["machine"].keys()
    lost = document["runs"].pop()
    document["runs"][0]["use"] = 0.123
    file.write_text(json.dumps(document))
    done = table(*options, "--resume")
    assert done.returncode == 0, done.stderr
    runs = json.loads(file.read_text())["runs"]
    assert runs[0]["use"] == 0.123
    assert runs[-1] | {"seconds": 0} == lost | {"seconds": 0}
    learning, choosing = learning_documents.tables(runs, ROWS, "", documents._table)
    assert "patches, 256 codes" in learning["learning_table_stream"]
    for name, parts in (("learning.md", learning), ("choosing.md", choosing)):
        page = tmp_path / name
        page.write_text((ROOT / "docs" / name).read_text())
        documents.fill(page, parts)
    assert "recommended | ours" in (tmp_path / "choosing.md").read_text()


@pytest.mark.exhaustive
def test_quick_table_runs_every_row(tmp_path: Path) -> None:
    done = table("--quick", "--seeds", 1, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "learning_table.json").read_text())["runs"]
    assert [run for run in runs if not run["finite"]] == []
    wanted = sum(row.has(who) for row in ROWS for who in (OURS, REFERENCE))
    assert sum(run["who"] != YARDSTICK for run in runs) == wanted
