"""Trains a VQ autoencoder on real pictures and writes a page about it.

python examples/python/demo/demo.py                    Fashion-MNIST, or MNIST
python examples/python/demo/demo.py --data ~/Pictures  your own
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import webbrowser
from pathlib import Path

from errors import DemoError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description="Train a small VQ autoencoder on pictures and write a page about it.",
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of your own pictures")
    add("--output", type=Path, metavar="DIR", default=Path("demo-output"), help="(demo-output)")
    add("--steps", type=at_least(1), default=1200, help="training steps (1200)")
    add("--batch", type=at_least(1), help="pictures per step (64 of 28 x 28, or as many pixels)")
    add("--codebook-size", type=at_least(1), default=512, help="number of codes (512)")
    add("--size", type=at_least(16), default=64, help="side of your pictures, in pixels (64)")
    add("--seed", type=int, default=0, help="of everything random (0)")
    add("--threads", type=at_least(1), help="(all cores)")
    add("--decoder", type=Path, metavar="FILE", help="the C++ example decode_tokens, if elsewhere")
    add("--show", action="store_true", help="open the page, where there is a browser for it")
    add("--smoke", action="store_true", help="a few seconds' worth, to see whether all works")
    return parser.parse_args()


def at_least(least: int):  # type: ignore[no-untyped-def]
    """An argparse type: an integer from `least` on."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, but got {value}")
        return value

    return integer


def run(args: argparse.Namespace) -> None:
    try:
        import torch
        from data import load_pictures
        from model import DOWNSCALE, VQAutoencoder
        from report import make_result, write_report
        from roundtrip import decode_in_cpp, find_decoder
        from train import judge, train
    except ModuleNotFoundError as error:
        raise DemoError(
            f"needs the Python package {error.name}; pip install -r requirements/demo.txt brings it, and "
            "`make demo` does it all"
        ) from None

    make_folder(args.output)
    decoder = find_decoder(args.decoder)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    pictures = load_pictures(args.data, args.size // DOWNSCALE * DOWNSCALE)
    if args.smoke:
        args.steps = min(args.steps, 12)
        pictures.train, pictures.test = pictures.train[:512], pictures.test[:64]
    batch = args.batch or max(64 * 28**2 // pictures.size**2, 4)
    print(
        f"{pictures.name} ({pictures.source}): {len(pictures.train)} pictures to learn from, "
        f"{len(pictures.test)} to judge by, {pictures.size} x {pictures.size}, "
        f"{'grey' if pictures.channels == 1 else 'colour'}",
        flush=True,
    )

    model = VQAutoencoder(pictures.channels, codebook_size=args.codebook_size)
    started = time.monotonic()
    history = train(model, pictures, args.steps, batch, args.seed)
    seconds = time.monotonic() - started
    quality = judge(model, pictures.test)

    settings = [
        ("pictures", f"{pictures.name} ({pictures.source})"),
        ("training", f"{args.steps} steps of {batch} pictures, {seconds:.0f} seconds"),
        ("seed and threads", f"{args.seed}, {torch.get_num_threads()}"),
        ("codebook", f"{args.codebook_size} codes of {model.quantizer.dim} features"),
        ("versions", f"torch {torch.__version__}"),
    ]
    result = make_result(pictures, model, history, quality, seconds, settings)
    if decoder is not None:
        result.cpp = decode_in_cpp(decoder, model, result.tokens, args.output / "cpp")
    page = write_report(result, args.output)

    print()
    for value, name in (
        (f"{quality.psnr:.2f} dB", "PSNR on unseen pictures"),
        (f"{quality.used:.1%}", f"of {args.codebook_size} codes used"),
        (f"{quality.perplexity:.1f}", "perplexity"),
        (
            f"{result.bits:.0f} bits",
            f"per picture ({result.coded_bits:.0f} entropy-coded), {result.raw_bits} as pixels",
        ),
    ):
        print(f"  {value:>10}  {name}")
    if result.cpp is None:
        print("  C++ decoder not built; `make demo` builds it, and the page will show its pictures")
    else:
        print(
            f"  {result.cpp.pictures_difference:>10.3g}  largest difference between C++ and Python pixels "
            f"(code vectors: {result.cpp.codes_difference:.3g})"
        )
    print(f"\nThe page: {page.resolve().as_uri()}")
    if args.show and sys.stdout.isatty() and has_display():
        webbrowser.open(page.resolve().as_uri())


def has_display() -> bool:
    """Without one, `webbrowser` would open a text browser in the terminal that the demo runs in."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def make_folder(folder: Path) -> None:
    """Before the training rather than after it: is there a place for the results?"""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DemoError(f"cannot write to {folder}: {error.strerror}") from None


def main() -> int:
    args = arguments()
    try:
        run(args)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
