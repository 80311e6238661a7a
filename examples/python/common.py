"""What the examples share: their options, the loop of a training, and a record of the run.

Pictures, their loader and the two halves of an autoencoder are those of the demo.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES / "demo"))

from data import Pictures, load_pictures  # noqa: E402
from errors import DemoError  # noqa: E402
from train import Progress, pace, to_unit  # noqa: E402

SMOKE_STEPS = 12


def options(description: str, steps: int, data: str) -> argparse.Namespace:
    """The options of every example; threads and seed are set as they say."""
    parser = argparse.ArgumentParser(description=description)
    name = Path(sys.argv[0]).stem
    folder = Path("examples-output") / name
    parser.add_argument("--data", type=Path, metavar="DIR", help=data)
    parser.add_argument("--output", type=Path, metavar="DIR", default=folder, help=f"({folder})")
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps ({steps})")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    parser.add_argument("--threads", type=int, help="(all cores)")
    parser.add_argument("--smoke", action="store_true", help="a few seconds' worth of it")
    found = parser.parse_args()
    if found.steps < 0 or (found.threads is not None and found.threads < 1):
        parser.error("expected --steps to be at least 0, and --threads to be at least 1")
    if found.smoke:
        found.steps = min(found.steps, SMOKE_STEPS)
    if found.threads:
        torch.set_num_threads(found.threads)
    torch.manual_seed(found.seed)
    try:
        found.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"cannot write to {found.output}: {error.strerror}") from None
    return found


def pictures(found: argparse.Namespace, size: int = 64) -> Pictures:
    """The demo's pictures: Fashion-MNIST or MNIST, or those of the folder named with --data, scaled to a size."""
    loaded = load_pictures(found.data, size)
    if found.smoke:
        loaded.train, loaded.test = loaded.train[:512], loaded.test[:64]
        loaded.classes = None if loaded.classes is None else loaded.classes[:512]
    print(f"{loaded.name} ({loaded.source}): {len(loaded.train)} pictures to learn from")
    return loaded


def batch(images: Tensor, size: int) -> Tensor:
    """So many of the pictures, drawn at random, with values in [0, 1]."""
    return to_unit(images[torch.randint(len(images), (size,))])


def descend(
    modules: Iterable[nn.Module], step: Callable[[], tuple[Tensor, str]], steps: int, rate: float
) -> list[float]:
    """Trains by Adam with a warm-up and a cosine decay. `step` gives a loss and what to say; the losses come back."""
    parameters = [value for module in modules for value in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda now: pace(now, steps))
    losses = []
    with Progress(steps) as progress:
        for now in range(1, steps + 1):
            loss, said = step()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress.say(now, said)
            progress.advance()
    return losses


def write_record(folder: Path, name: str, **figures: Any) -> None:
    """NAME.json: the figures of a run, and where and how they came about."""
    run = {
        "commit": commit(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        # Not those of the clock, which another program on the same machine makes more of.
        "processor_seconds": round(time.process_time()),
    }
    (folder / f"{name}.json").write_text(json.dumps({"run": run, **figures}, indent=1) + "\n")


def commit() -> str:
    command = ["git", "-C", str(EXAMPLES), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(run: Callable[[], None]) -> None:
    """Runs an example; what stops it is said in one line."""
    try:
        run()
    except DemoError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
