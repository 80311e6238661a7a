"""The benchmarks run, check what they measure, and their tables reach the docs. No test asserts a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchvq

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "python"
SUITES = {
    "nearest_code",
    "inputs",
    "small_steps",
    "several_ranks",
    "growth",
    "vector_quantize",
    "residual",
    "features_first",
    "fsq",
    "lookup_free",
    "compiled",
    "kmeans",
    "memory",
    "scalar_modules",
    "small_calls",
    "threads",
}
sys.path.insert(0, str(BENCHMARKS))

import checks  # noqa: E402
import documents  # noqa: E402
import gpu_documents  # noqa: E402
import learning_measures  # noqa: E402
from harness import Target  # noqa: E402


def script(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark script on one thread, with the same torchvq as these tests."""
    package = str(Path(torchvq.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *map(str, options)],
        env=os.environ | {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder with results of a quick run of some suites."""
    folder = tmp_path_factory.mktemp("results")
    done = script("run.py", "--quick", "--only", ",".join(request.param), "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "targets met" in done.stdout
    return folder


marks = [pytest.mark.exhaustive, pytest.mark.timeout(900)]
all_suites = pytest.param(sorted(SUITES), marks=marks, id="all")


@pytest.mark.parametrize("results", [["nearest_code"], all_suites], indirect=True, scope="module")
def test_run_writes_json_and_a_chart_for_every_suite(results: Path) -> None:
    names = {path.stem for path in results.glob("*.json")}
    assert names in ({"nearest_code"}, SUITES)
    for name in names:
        document = json.loads((results / f"{name}.json").read_text())
        assert document["quick"] is True
        wanted = {"cpu", "cores", "torch", "commit", "level", "others", "seconds"}
        assert wanted <= document["machine"].keys()
        assert document["rounds"] or name == "memory"
        assert document["cases"]
        assert (results / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("results", [all_suites], indirect=True, scope="module")
def test_write_docs_fills_the_tables_and_repeats_itself(results: Path, tmp_path: Path) -> None:
    for name in ("benchmarks.md", "learning.md", "choosing.md"):
        shutil.copyfile(ROOT / "docs" / name, tmp_path / name)
    options = ("--write-docs", "--output", results, "--docs", tmp_path)
    assert script("run.py", *options).returncode == 0
    once = (tmp_path / "benchmarks.md").read_text()
    assert "the numbers are noise" in once
    assert "N=512 K=256 D=64" in once
    assert script("run.py", *options).returncode == 0
    assert (tmp_path / "benchmarks.md").read_text() == once


@pytest.mark.parametrize(
    "rows", ["^(FSQ|ResidualVQ)$", pytest.param("", marks=pytest.mark.exhaustive)]
)
def test_the_quantizers_reach_their_page(rows: str, tmp_path: Path) -> None:
    done = script("quantizers.py", "--quick", "--only", rows, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("benchmarks.md", "which.md"):
        shutil.copyfile(ROOT / "docs" / name, tmp_path / name)
    documents.write(tmp_path, tmp_path, ())
    page = (tmp_path / "which.md").read_text()
    assert "| FSQ | 9.97 | " in page
    assert "| ResidualVQ | 32 | " in page
    assert "the numbers are noise" in page


def test_run_names_the_suites_when_one_is_unknown() -> None:
    done = script("run.py", "--only", "nearest_code,fastest_code")
    assert done.returncode == 2
    assert "no suite fastest_code; there are nearest_code" in done.stderr


@pytest.mark.exhaustive
def test_residual_learning_is_the_same_on_two_ranks(tmp_path: Path) -> None:
    done = script("learning_residual.py", "--quick", "--only", "patches", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "learning_residual.json").read_text())["runs"]
    assert [entry["two_ranks_alike"] for entry in runs if entry["who"] == "ours"] == [True] * 5
    assert all(0.5 < entry["error_over_faiss"] < 20 for entry in runs)


@pytest.mark.exhaustive
def test_refined_stacks_are_measured(tmp_path: Path) -> None:
    options = ("--quick", "--only", "patches", "--output", tmp_path)
    done = script("learning_refine.py", *options)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "learning_refine.json").read_text())["runs"]
    assert [run["name"] for run in runs][:2] == ["trained", "refined"]
    refined = [run for run in runs if "train_error" in run]
    assert len(refined) == 5
    assert all(run["train_error"] <= run["train_error_before"] for run in refined)


@pytest.mark.exhaustive
def test_lfq_learning_runs(tmp_path: Path) -> None:
    done = script("learning_lfq.py", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "learning_lfq.json").read_text())
    runs, (ours, reference) = document["runs"], document["small"]
    assert [run["who"] for run in runs] == ["ours", "reference", "ours"]
    assert runs[0]["gradient"] > 0
    # For small latents, the reference's gradient is only the rounding error of a constant.
    assert ours["first_gradient"] > 1e3 * reference["first_gradient"]


@pytest.mark.exhaustive
def test_weights_of_lfq_are_measured_and_resume(tmp_path: Path) -> None:
    options = ("--quick", "--bits", 9, "--resume", "--output", tmp_path)
    file = tmp_path / "learning_lfq_weights.json"
    done = script("learning_lfq_weights.py", *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert len(document["runs"]) == 18
    assert all(0 <= run["entropy_bits"] <= 9 for run in document["runs"])
    document["runs"][0]["psnr"] = 12.5
    file.write_text(json.dumps(document))
    done = script("learning_lfq_weights.py", *options)
    assert done.returncode == 0, done.stderr
    # Nothing was left to measure, so the edited run is kept.
    assert json.loads(file.read_text())["runs"] == document["runs"]
    lines = documents._weights(document).splitlines()
    assert len(lines) == 2 + 6
    assert sum(line.startswith("| **9** | **0.005** | **0.1** | 3 | ") for line in lines) == 1


def test_the_report_of_a_gpu_is_written_without_one(tmp_path: Path) -> None:
    """All sections, tiny and on the CPU; its numbers do not become a page."""
    done = subprocess.run(
        [str(ROOT / "tools" / "gpu.sh")],
        env=os.environ
        | dict(
            PYTHON=sys.executable,
            OUT=str(tmp_path),
            TORCHVQ_LIBRARY=torchvq_library(),
            OMP_NUM_THREADS="1",
        ),
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["missing"] == []
    assert set(document["commands"].values()) == {0}
    assert document["sections"]["ranks"]["ranks"] == {"ranks": [1, 2, 3], "failed": ""}
    if document["on_a_card"]:
        return
    assert "no card: what follows shows that it runs, its numbers mean nothing" in done.stdout
    page = tmp_path / "gpu.md"
    shutil.copyfile(ROOT / "docs" / "gpu.md", page)
    assert script("gpu.py", "docs", "--output", tmp_path, "--docs", tmp_path).returncode == 1
    assert page.read_text() == (ROOT / "docs" / "gpu.md").read_text()


def test_the_sections_of_the_gpu_need_no_faiss() -> None:
    """A machine with a card may lack it."""
    code = (
        "import sys; sys.modules['faiss'] = None; sys.path.insert(0, sys.argv[1]); "
        "import gpu, gpu_cases, gpu_profile, gpu_ranks"
    )
    folder = ROOT / "benchmarks" / "python"
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def torchvq_library() -> str:
    """The library that these tests run."""
    return str(torchvq._library._library_path())


def test_a_report_fills_the_page_of_the_gpu(tmp_path: Path) -> None:
    """With made-up numbers."""
    contenders = dict(torchvq=dict(milliseconds=1.0, peak_bytes=2**20))
    target = dict(wanted=8.0, against="cdist float32", measured=9.0, met=True)
    case = dict(
        name="nearest_code 8 x 8 x 8",
        contenders=contenders,
        flops=1e9,
        bytes=1e6,
        left_out={},
        target=target,
    )
    rates = dict(bfloat16_tflops=800.0, float32_tflops=50.0, copy_gigabytes=3000.0)
    document = dict(
        card=dict(name="a card", torch="2.11.0", date="2026-01-01", clocks="1 MHz", driver="1"),
        on_a_card=True,
        left_out={},
        missing=["steps"],
        commands=dict(memcheck=0, racecheck=1),
        sections=dict(
            checks=dict(
                found={"sound": "", "broken": "AssertionError: no"}, kernels=["nearest_code"]
            ),
            search=dict(rates=rates, cases=[case]),
            host=dict(
                host=dict(
                    VectorQuantize=dict(
                        microseconds=250.0, wanted=200.0, met=False, others=dict(reference=900.0)
                    )
                )
            ),
            profile=dict(
                profiles=[
                    dict(
                        name="a step",
                        kernels=[
                            dict(
                                kernel="void torchvq::kernels::cuda::scan_float<16>(torchvq",
                                launches=2.0,
                                microseconds=30.0,
                            ),
                            dict(kernel="at::native::fill", launches=1.0, microseconds=1.0),
                        ],
                    )
                ]
            ),
            ranks=dict(ranks=dict(ranks=[1, 2], failed="3 ranks: refused", commit="abc")),
        ),
    )
    page = tmp_path / "gpu.md"
    shutil.copyfile(ROOT / "docs" / "gpu.md", page)
    assert gpu_documents.write(document, page) == 0
    text = page.read_text()
    assert "never run" not in text.lower()
    assert "1 passed, 1 failed: broken" in text
    assert "| nearest_code 8 x 8 x 8: 8 times as fast as cdist float32 | met: 9 times |" in text
    assert "at most 200 us | MISSED: 250 us, reference 900 |" in text
    assert "| a step | 31 | 3 | `scan_float` 30 | 1 |" in text
    ranks = "- NCCL, 1, 2 ranks on the card: learn what one process learns"
    assert f"{ranks}; failed: 3 ranks: refused (in a run at abc)." in text
    assert "- Passed: memcheck." in text and "- Failed: racecheck." in text


def test_check_rejects_a_code_that_is_not_the_nearest(generator: torch.Generator) -> None:
    x = torch.randn(32, 4, generator=generator)
    codes = torch.randn(8, 4, generator=generator)
    distances = (x[:, None].double() - codes.double()).square().sum(-1)
    right = distances.argmin(-1)
    assert checks.nearest({"ours": right}, x, codes, "ours") == {"ours": 0}
    wrong = right.clone()
    wrong[3] = distances[3].argmax()
    with pytest.raises(AssertionError, match="ours chose codes that are not the nearest"):
        checks.nearest({"ours": wrong}, x, codes, "ours")


def test_usage_counts_codes_and_perplexity() -> None:
    measured = learning_measures.usage(torch.tensor([0, 0, 1, 1, 3, 3]), 4)
    assert measured["use"] == 0.75
    assert measured["perplexity"] == pytest.approx(3)


def test_replaced_share_sees_replacements_only(generator: torch.Generator) -> None:
    tokens = torch.randn(16, 4, generator=generator)
    before = torch.randn(10, 4, generator=generator)
    after = before.lerp(tokens[:10], 0.2)
    assert learning_measures.replaced_share(before, after, tokens) == 0
    after[2] = tokens[5]
    assert learning_measures.replaced_share(before, after, tokens) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("measured", "at_most", "met"),
    [
        (2.0, False, True),
        (1.0, False, True),
        (0.5, False, False),
        (0.5, True, True),
        (2.0, True, False),
    ],
)
def test_target_is_met_on_its_side(measured: float, at_most: bool, met: bool) -> None:
    target = Target("text", 1.0, measured, "case", at_most)
    assert target.met is met
    assert ("MISSED" in str(target)) is not met


def test_fill_replaces_between_markers_only(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- begin a -->\nold \\1\n<!-- end a -->\nafter\n")
    documents.fill(file, {"a": "new \\1\n"})
    assert file.read_text() == "before\n<!-- begin a -->\nnew \\1\n<!-- end a -->\nafter\n"
    with pytest.raises(ValueError, match="begin b"):
        documents.fill(file, {"b": "new"})
