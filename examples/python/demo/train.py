"""Training and judging, and what is said while it goes on."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from data import Pictures
from model import VQAutoencoder
from torch import Tensor
from tqdm import tqdm

WINDOW = 50  # steps that the figures in the progress bar look back on


@dataclass
class Quality:
    """How well pictures come back, and how many of the codes it took."""

    psnr: float  # dB, of the mean squared error over all pixels
    used: float  # share of the codes that occur
    perplexity: float  # as many codes as, used equally often, would tell as much
    counts: Tensor  # (K,), tokens per code


@dataclass
class History:
    """The course of a training, one entry per report."""

    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    psnr: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    test_step: list[int] = field(default_factory=list)
    test_psnr: list[float] = field(default_factory=list)


def to_unit(pictures: Tensor) -> Tensor:
    return pictures.float() / 255


def psnr(mean_squared_error: float) -> float:
    return -10 * math.log10(max(mean_squared_error, 1e-10))


def usage(counts: Tensor) -> tuple[float, float]:
    """Share of the codes that occur, and the perplexity of their distribution."""
    share = counts.double() / counts.sum().clamp_min(1)
    entropy = -torch.xlogy(share, share).sum()
    return (counts > 0).double().mean().item(), entropy.exp().item()


@torch.no_grad()
def judge(model: VQAutoencoder, pictures: Tensor, batch: int = 250) -> Quality:
    model.eval()
    codes = model.quantizer.codebook_size
    squares, counts = 0.0, torch.zeros(codes, dtype=torch.long)
    for part in pictures.split(batch):
        x = to_unit(part)
        tokens = model.encode(x)
        squares += (model.decode(tokens) - x).square().sum().item()
        counts += torch.bincount(tokens.flatten(), minlength=codes)
    return Quality(psnr(squares / pictures.numel()), *usage(counts), counts)


class Window:
    """Errors and tokens of the last steps."""

    def __init__(self, codes: int) -> None:
        self.errors: deque[float] = deque(maxlen=WINDOW)
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.counts: deque[Tensor] = deque(maxlen=WINDOW)
        self.codes = codes

    def add(self, error: float, loss: float, tokens: Tensor) -> None:
        self.errors.append(error)
        self.losses.append(loss)
        self.counts.append(torch.bincount(tokens.flatten(), minlength=self.codes))

    def report(self, history: History, step: int) -> str:
        used, perplexity = usage(torch.stack(list(self.counts)).sum(0))
        history.step.append(step)
        history.loss.append(sum(self.losses) / len(self.losses))
        history.psnr.append(psnr(sum(self.errors) / len(self.errors)))
        history.used.append(used)
        history.perplexity.append(perplexity)
        return (
            f"PSNR {history.psnr[-1]:5.2f} dB, codes used {used:4.0%}, perplexity {perplexity:5.1f}"
        )


def train(
    model: VQAutoencoder, pictures: Pictures, steps: int, batch: int, seed: int, rate: float = 4e-3
) -> History:
    """Adam with a warm-up and a cosine decay; one entry of history in ten steps, a test in every twentieth part."""
    model.to(memory_format=torch.channels_last)  # in which convolutions take less time
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
    history, window = History(), Window(model.quantizer.codebook_size)
    variance, sample = pictures.variance, pictures.test[:500]
    with Progress(steps) as progress:
        for step in range(1, steps + 1):
            model.train()
            chosen = torch.randint(len(pictures.train), (batch,), generator=generator)
            x = to_unit(pictures.train[chosen])
            output = model(x)
            error = F.mse_loss(output.pictures, x)
            # In units of the data's variance, so that one learning rate suits dark and bright pictures.
            loss = error / variance + output.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            window.add(error.item(), loss.item(), output.tokens)
            if step % 10 == 0 or step == steps:
                progress.say(step, window.report(history, step))
            if step % max(steps // 20, 1) == 0 or step == steps:
                history.test_step.append(step)
                history.test_psnr.append(judge(model, sample).psnr)
            progress.advance()
    model.to(memory_format=torch.contiguous_format)
    return history


def pace(step: int, steps: int) -> float:
    """Share of the learning rate at a step."""
    warm_up = max(min(100, steps // 10), 1)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1)))


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = steps
        self.clock = clock
        self.bar: tqdm[None] | None = None
        self.spoke = self.started = clock()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, unit="step", dynamic_ncols=True, leave=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def say(self, step: int, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            return
        now = self.clock()
        if step == self.steps or now - self.spoke >= self.SECONDS_BETWEEN_LINES:
            self.spoke = now
            left = (now - self.started) / step * (self.steps - step)
            print(f"step {step:5d} of {self.steps}: {text}, {left:.0f} s left", flush=True)

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.update()
