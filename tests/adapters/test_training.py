"""Training whole tokenizers: an adapted model makes the steps of the original, alone and on two ranks."""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_models
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from torchvq import adapters

STEPS = 4


def encodec(rank: int = 0) -> tuple[nn.Module, list[Tensor], Callable[[Any, Tensor], Tensor]]:
    """Moving averages, k-means before the first step, expiry after."""
    from encodec import EncodecModel
    from encodec.modules import SEANetDecoder, SEANetEncoder
    from encodec.quantization import ResidualVectorQuantizer

    torch.manual_seed(0)
    shape: Any = dict(dimension=16, n_filters=4, ratios=[4, 2], lstm=1)
    quantizer = ResidualVectorQuantizer(
        16, 4, 32, kmeans_init=True, kmeans_iters=5, threshold_ema_dead_code=2
    )
    model: Any = EncodecModel(
        SEANetEncoder(**shape), SEANetDecoder(**shape), quantizer, [60.0], 24_000, 1
    )
    torch.manual_seed(1 + rank)
    sounds = [torch.randn(4, 1, 400) for _ in range(STEPS)]

    def loss(model: Any, sound: Tensor) -> Tensor:
        latents = model.encoder(sound)
        found = model.quantizer(latents, model.frame_rate, 60.0)
        made = model.decoder(found.quantized)
        return (made - sound).square().mean() + found.penalty.mean()

    return model, sounds, loss


def dac(rank: int = 0) -> tuple[nn.Module, list[Tensor], Callable[[Any, Tensor], Tensor]]:
    """Codes of few features by gradient, with dropout of levels."""
    model, _, _ = test_models.dac_package()
    model.quantizer.quantizer_dropout = 0.5
    sounds = [torch.randn(2, 1, 1600) for _ in range(STEPS)]

    def loss(model: Any, sound: Tensor) -> Tensor:
        found = model(sound, 44100)
        target = (found["audio"] - sound[..., : found["audio"].shape[-1]]).square().mean()
        return target + found["vq/commitment_loss"] + found["vq/codebook_loss"]

    return model, sounds, loss


def dac_of_transformers(
    rank: int = 0,
) -> tuple[nn.Module, list[Tensor], Callable[[Any, Tensor], Tensor]]:
    model, _, _ = test_models.dac()
    sounds = [torch.randn(2, 1, 1600) for _ in range(STEPS)]

    def loss(model: Any, sound: Tensor) -> Tensor:
        found = model(sound)
        made = found.audio_values.squeeze()
        return (made - sound.squeeze(1)[..., : made.shape[-1]]).square().mean() + found.loss.mean()

    return model, sounds, loss


def train(
    model: Any,
    sounds: list[Tensor],
    loss: Callable[[Any, Tensor], Tensor],
    around: Callable[[Any], Any] | None = None,
) -> list[float]:
    """Losses of a few steps; the model's random draws are the same each time."""
    torch.manual_seed(5)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for sound in sounds:
        optimizer.zero_grad()
        found = loss(model, sound)
        found.backward()
        for parameter in model.parameters() if around else ():
            if parameter.grad is not None:
                around(parameter.grad)
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


def check_same(
    model: Any,
    sounds: list[Tensor],
    loss: Callable[[Any, Tensor], Tensor],
    around: Callable[[Any], Any] | None = None,
) -> Any:
    adapted = adapters.adapt(copy.deepcopy(model))
    start = copy.deepcopy(model.state_dict())
    original, ours = (
        train(model, sounds, loss, around),
        train(adapted, sounds, loss, around),
    )
    assert original == ours and len(set(original)) == STEPS
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, adapted.state_dict()[name]), name
    moved = [n for n, t in model.state_dict().items() if not torch.equal(t, start[n])]
    assert any("codebook" in name for name in moved)
    return adapted


@pytest.mark.parametrize("make", [encodec, dac, dac_of_transformers], ids=lambda f: f.__name__)
def test_training_makes_the_steps_of_the_original(make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    with (
        torch.no_grad()
    ):  # with a gradient, weights computed from norms at construction could not be copied
        model, sounds, loss = make()
    adapted = check_same(model, sounds, loss)
    # Evaluation after training, by both.
    with torch.no_grad():
        original, ours = (loss(m.double().eval(), sounds[0].double()) for m in (model, adapted))
    assert torch.allclose(original, ours, rtol=1e-9)


def _rank(rank: int, folder: str) -> None:
    import conftest  # noqa: F401  (encodec imports torchaudio, of which this process needs the name)

    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
        )
        with torch.no_grad():
            model, sounds, loss = encodec(rank)
        mean = lambda grad: (dist.all_reduce(grad), grad.div_(2))  # noqa: E731
        adapted = check_same(model, sounds, loss, mean)
        books = torch.stack([layer._codebook.embed for layer in adapted.quantizer.vq.layers])
        torch.save(books, Path(folder) / f"books{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        (Path(folder) / f"error{rank}").write_text(traceback.format_exc())
        os._exit(1)


def test_two_ranks_make_the_steps_of_the_original(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [p.exitcode for p in ranks] == [0, 0], [f.read_text() for f in tmp_path.glob("error*")]
    first, second = (torch.load(tmp_path / f"books{rank}.pt") for rank in range(2))
    # The package broadcasts codes only after k-means and expiry; moving averages are local to each rank.
    assert first.isfinite().all() and second.isfinite().all()
