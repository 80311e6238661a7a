"""New pictures from a small transformer that has learnt to write the tokens of the demo's autoencoder.

python examples/python/generate.py --output generated

trains the demo's tokenizer (49 tokens of 512 codes per picture), then the transformer on the tokens of all pictures,
one token after the other and told what the picture shows. It writes `generate.png` (a row of new pictures for each
class), `generate.json` and a safetensors file for each of the two models.
"""

import math

import torch
import torch.nn.functional as F
from common import DemoError, descend, main, options, pictures, to_unit, write_record
from figures import rows_of_pictures
from model import VQAutoencoder
from safetensors.torch import save_file
from torch import Tensor, nn
from train import judge, train

CLOTHES = [
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
]
CODES, BATCH, TOKENIZER_STEPS = 512, 64, 600


class Block(nn.Module):
    """Attention to what came before, and a small network; both added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_of_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.attend(self.norm(x)).unflatten(-1, (3, self.heads, -1)).movedim(2, 0)
        )
        heads = (part.transpose(1, 2) for part in (query, key, value))
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).flatten(2))
        return x + self.network(self.norm_of_network(x))


class Writer(nn.Module):
    """The next token of a picture, from its class and the tokens before."""

    def __init__(self, classes: int, length: int, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.length = length
        self.of_class, self.of_token = nn.Embedding(classes, width), nn.Embedding(CODES, width)
        self.of_place = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*[Block(width, heads=4) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CODES))

    def forward(self, classes: Tensor, tokens: Tensor) -> Tensor:
        """Logits (B, N + 1, CODES) of the tokens at 0 ... N, from classes (B,) and the first N tokens (B, N)."""
        x = torch.cat([self.of_class(classes).unsqueeze(1), self.of_token(tokens)], 1)
        return self.head(self.blocks(x + self.of_place[: x.shape[1]]))

    @torch.no_grad()
    def write(self, classes: Tensor, temperature: float = 1.0) -> Tensor:
        """Tokens (B, length) of new pictures."""
        tokens = classes.new_empty(len(classes), 0)
        for _ in range(self.length):
            chances = (self(classes, tokens)[:, -1] / temperature).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], 1)
        return tokens


def train_writer(writer: Writer, tokens: Tensor, classes: Tensor, steps: int) -> list[float]:
    def step() -> tuple[Tensor, str]:
        chosen = torch.randint(len(tokens), (BATCH,))
        logits = writer(classes[chosen], tokens[chosen, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[chosen].flatten())
        return loss, f"{loss.item() / math.log(2):.2f} bits per token"

    return descend([writer.train()], step, steps, rate=2e-3)


@torch.no_grad()
def bits_per_token(writer: Writer, tokens: Tensor, classes: Tensor) -> float:
    """What an entropy coder would need for pictures that the writer has not seen."""
    total = 0.0
    for part, kinds in zip(tokens.split(250), classes.split(250), strict=True):
        logits = writer.eval()(kinds, part[:, :-1])
        total += F.cross_entropy(logits.flatten(0, 1), part.flatten(), reduction="sum").item()
    return total / tokens.numel() / math.log(2)


def bits_alone(tokens: Tensor, unseen: Tensor) -> float:
    """The same for one who knows nothing but how frequent each token is."""
    counts = torch.bincount(tokens.flatten(), minlength=CODES) + 1
    return -(counts / counts.sum()).log2()[unseen].mean().item()


def run() -> None:
    said = options(__doc__.split("\n")[0], 1000, "folder of pictures (Fashion-MNIST, or MNIST)")
    images = pictures(said)
    if len(images.train) < 2:
        raise DemoError(
            "expected two pictures or more, one of which is kept for judging, but got 1"
        )
    tokenizer = VQAutoencoder(images.channels, codebook_size=CODES)
    train(tokenizer, images, min(said.steps, TOKENIZER_STEPS), BATCH, said.seed)
    quality = judge(tokenizer, images.test)
    with torch.no_grad():
        tokens = torch.cat([tokenizer.encode(to_unit(part)) for part in images.train.split(500)])
    shape = tokens.shape[1:]
    classes = images.classes
    if classes is None:
        classes = torch.zeros(len(tokens), dtype=torch.long)
    print(f"tokenizer: {quality.psnr:.2f} dB; now {len(tokens)} pictures as tokens", flush=True)

    kinds = torch.arange(int(classes.max()) + 1)
    writer = Writer(len(kinds), shape.numel())
    known = len(tokens) * 19 // 20
    seen, unseen = tokens.flatten(1).tensor_split([known])
    losses = train_writer(writer, seen, classes[:known], said.steps)
    bits = bits_per_token(writer, unseen, classes[known:])
    print(f"{bits:.2f} bits per token of pictures not seen", flush=True)
    written = writer.write(kinds.repeat_interleave(12)).unflatten(1, shape)
    with torch.no_grad():
        new = tokenizer.decode(written).unflatten(0, (-1, 12))
    names = CLOTHES if images.name == "Fashion-MNIST" else [str(kind) for kind in kinds.tolist()]
    rows_of_pictures(list(zip(names, new, strict=True)), said.output / "generate.png")
    save_file(tokenizer.state_dict(), said.output / "tokenizer.safetensors")
    save_file(writer.state_dict(), said.output / "writer.safetensors")
    figures = {"psnr": quality.psnr, "bits": bits, "bits_alone": bits_alone(seen, unseen)}
    shown = losses[:: max(said.steps // 50, 1)]
    write_record(said.output, "generate", source=images.name, **figures, losses=shown)


if __name__ == "__main__":
    main(run)
