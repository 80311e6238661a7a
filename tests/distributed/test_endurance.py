"""A short run of benchmarks/python/endurance.py: unequal, masked and empty batches, and one process's state."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "python" / "endurance.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_three_ranks_end_as_one_process():
    done = run("--steps", "60", "--ranks", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 steps: memory flat" in done.stdout


def test_it_says_who_left_the_state_of_one_process(tmp_path):
    spoiled = tmp_path / "spoiled.py"
    text = PROGRAM.read_text(encoding="utf-8")
    # In the run, rank 1 gets other tokens than in the single process with which it is compared.
    changed = text.replace(
        "step * 1009 + rank", "step * 1009 + rank + 7 * dist.is_initialized() * rank"
    )
    assert changed != text
    spoiled.write_text(changed, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(spoiled), "--steps", "20"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "rank 0 left the state of one process before report 1" in done.stdout, (
        done.stdout + done.stderr
    )
