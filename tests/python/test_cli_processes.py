"""`torchrun --no-python torchvq fit`: several processes give the bits of one.

Most tests start the processes themselves, with the environment that torchrun sets, because torchrun takes longer than
the processes.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import Array, cli_path, clusters, run, run_json, snapshot
from safetensors.numpy import save_file
from torch.distributed import TCPStore

OUT = "out.safetensors"


def torchrun(
    processes: int, *arguments: str, cwd: Path, program: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [
        *[sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)],
        *["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--no-python"],
    ]
    return subprocess.run(
        [*command, program or cli_path(), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def save_parts(folder: Path, x: Array, sizes: list[int]) -> None:
    np.save(folder / "x.npy", x)
    ends = np.cumsum(sizes)
    assert ends[-1] == len(x)
    for rank, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        np.save(folder / f"part-{rank}.npy", x[end - size : end])


OPTIONS = {
    "one codebook": ["-k", "100", "--iterations", "5"],
    "cosine": ["-k", "50", "--metric", "cosine", "--iterations", "5"],
    "levels": ["-k", "32", "--levels", "3", "--beam", "4", "--iterations", "5"],
    "groups": ["-k", "16", "--levels", "2", "--groups", "2", "--iterations", "5"],
    "fsq": ["--method", "fsq", "--quantizer-levels", "8,5,5", "--groups", "2"],
    "lfq": ["--method", "lfq", "-k", "64"],
}


TWO = pytest.param([2000, 1000], marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sizes", [TWO, [17, 0, 2983]], ids=["two", "three"])
def test_processes_give_the_bits_of_one(tmp_path: Path, sizes: list[int], name: str) -> None:
    save_parts(tmp_path, clusters(3000, 8), sizes)
    options = OPTIONS[name]
    one = run_json("fit", "x.npy", *options, "-o", "one.safetensors", cwd=tmp_path)
    fit = ["fit", "part-{rank}.npy", *options, "-o", OUT, "--json"]
    if name == "one codebook":
        launched = torchrun(len(sizes), *fit, cwd=tmp_path)
        results = [(launched.returncode, launched.stdout, launched.stderr)]
    else:
        results = together(len(sizes), *fit, cwd=tmp_path)
    assert all(code == 0 for code, _, _ in results), results
    many = json.loads("".join(out for _, out, _ in results))
    assert (tmp_path / OUT).read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert many.pop("processes") == len(sizes)
    ours = ["input", "output", "seconds", "processes"]
    assert {k: v for k, v in many.items() if k not in ours} == {
        k: v for k, v in one.items() if k not in ours
    }


def test_one_file_is_cut_into_slices(tmp_path: Path) -> None:
    # More codes than clusters of equal vectors, so codes without vectors are moved in every pass.
    x = np.repeat(clusters(40, 6), 25, axis=0)
    np.save(tmp_path / "x.npy", x)
    options = ["-k", "60", "--iterations", "6", "--memory", "1M"]
    run_json("fit", "x.npy", *options, "-o", "one.safetensors", cwd=tmp_path)
    result = torchrun(3, "fit", "x.npy", *options, "-o", OUT, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / OUT).read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert result.stdout.count("wrote") == 1


def test_world_size_alone_names_one_file(tmp_path: Path) -> None:
    """Each process takes its slice, instead of all vectors."""
    np.save(tmp_path / "x-2.npy", clusters(300, 6))
    options = ["-k", "16", "--iterations", "3"]
    run_json("fit", "x-2.npy", *options, "-o", "one.safetensors", cwd=tmp_path)
    results = together(2, "fit", "x-{world_size}.npy", *options, "-o", OUT, cwd=tmp_path)
    assert [code for code, _, _ in results] == [0, 0], results
    assert (tmp_path / OUT).read_bytes() == (tmp_path / "one.safetensors").read_bytes()


def test_the_input_of_another_rank_is_not_overwritten(tmp_path: Path) -> None:
    for rank in range(2):
        save_file({"x": clusters(100, 4)}, tmp_path / f"part-{rank}.safetensors")
    before = snapshot(tmp_path)
    fit = ["fit", "part-{rank}.safetensors", "-k", "8", "-o", "part-1.safetensors"]
    expect_one_line(together(2, *fit, cwd=tmp_path), "expected another file than the input")
    assert snapshot(tmp_path) == before


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start(
    rank: int, size: int, port: int, *arguments: str, cwd: Path, **more: str
) -> subprocess.Popen[str]:
    """One process with the environment that torchrun sets; rank 0 hosts the store."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }
    return subprocess.Popen(
        [cli_path(), *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def together(size: int, *arguments: str, cwd: Path) -> list[tuple[int, str, str]]:
    """Runs all ranks; {r} in an argument is already replaced by the rank."""
    port = free_port()
    processes = [
        start(rank, size, port, *(a.replace("{r}", str(rank)) for a in arguments), cwd=cwd)
        for rank in range(size)
    ]
    results = []
    for process in processes:
        out, errors = process.communicate(timeout=120)
        results.append((process.returncode, out, errors))
    return results


def expect_one_line(results: list[tuple[int, str, str]], fragment: str) -> None:
    assert [code for code, _, _ in results] == [2] * len(results), results
    lines = "".join(errors for _, _, errors in results)
    assert lines.count("\n") == 1 and fragment in lines, results
    assert all(out == "" for _, out, _ in results)


FIT = ["fit", "part-{rank}.npy", "-k", "8", "-o", OUT]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    save_parts(tmp_path, clusters(300, 4), [200, 60, 40])
    return tmp_path


@pytest.mark.parametrize(
    ("fragment", "spoil"),
    [
        ("part-1.npy: cannot open", lambda f: (f / "part-1.npy").unlink()),
        (
            "one dimension on all processes, but got 4 on rank 0 and 5 on rank 2",
            lambda f: np.save(f / "part-2.npy", clusters(40, 5)),
        ),
        ("row 7 holds NaN", lambda f: np.save(f / "part-1.npy", with_nan(60, 7))),
    ],
    ids=["absent", "dims", "nan"],
)
def test_an_error_of_one_rank_is_one_line(parts: Path, fragment: str, spoil: Any) -> None:
    spoil(parts)
    before = snapshot(parts)
    results = together(3, *FIT, "--timeout", "30", cwd=parts)
    expect_one_line(results, fragment)
    assert snapshot(parts) == before


def with_nan(rows: int, row: int) -> Array:
    x = clusters(rows, 4)
    x[row, 1] = np.nan
    return x


def test_errors_of_all_ranks_are_one_line(parts: Path) -> None:
    expect_one_line(together(3, *FIT[:3], "301", *FIT[4:], cwd=parts), "it holds 300")
    expect_one_line(together(2, "fit", "absent.npy", *FIT[2:], cwd=parts), "cannot open")
    expect_one_line(together(2, *FIT[:4], "-o", "no/where.safetensors", cwd=parts), "cannot write")


def test_other_options_on_another_rank(parts: Path) -> None:
    results = together(2, *FIT, "--seed", "{r}", cwd=parts)
    expect_one_line(results, "--seed 0 on rank 0 and")


def test_other_files_on_another_rank(parts: Path) -> None:
    results = together(2, "fit", "part-{rank}.npy", "-k", "8", "-o", "{r}.safetensors", cwd=parts)
    expect_one_line(results, "but got part-{rank}.npy -o 0.safetensors --codebook-size 8")


SEVERAL = """
for fit in absent a b c; do
  {cli} fit $fit-{{rank}}.npy -k 8 --iterations 3 --timeout 30 --quiet -o $fit.safetensors
  echo "$fit on rank $RANK: $?"
  [ $RANK = 0 ] && sleep 1.5
done
true
"""


def test_several_fits_in_one_job(tmp_path: Path) -> None:
    """Each meets its partners only, also after one that failed, and while rank 0 does something else."""
    for seed, name in enumerate("abc"):
        x = clusters(300, 4, seed)
        np.save(tmp_path / f"{name}.npy", x)
        np.save(tmp_path / f"{name}-0.npy", x[:100])
        np.save(tmp_path / f"{name}-1.npy", x[100:])
    result = torchrun(2, "-c", SEVERAL.format(cli=cli_path()), cwd=tmp_path, program="bash")
    assert result.returncode == 0, result.stderr
    codes = {f"{name} on rank {rank}: 0" for name in "abc" for rank in range(2)}
    failed = {f"absent on rank {rank}: 2" for rank in range(2)}
    assert set(result.stdout.splitlines()) == codes | failed, (result.stdout, result.stderr)
    for name in "abc":
        fit = ["fit", f"{name}.npy", "-k", "8", "--iterations", "3", "-o", "one.safetensors"]
        run_json(*fit, cwd=tmp_path)
        one = (tmp_path / "one.safetensors").read_bytes()
        assert (tmp_path / f"{name}.safetensors").read_bytes() == one


@pytest.fixture
def job() -> Iterator[tuple[int, dict[str, str]]]:
    """The store of a job, as torchrun's agent holds it: its port, and what processes find in their environment."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port, {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    del store


def test_a_rank_that_skips_a_fit_mixes_no_others(
    parts: Path, job: tuple[int, dict[str, str]]
) -> None:
    port, environment = job
    for seed in range(2):
        np.save(parts / f"other-{seed}.npy", clusters(100, 4, seed))
    other = ["fit", "other-{rank}.npy", *FIT[2:]]
    before = snapshot(parts)
    for commands in [(FIT, other), (other, FIT)]:
        processes = [
            start(rank, 2, port, *command, "--timeout", "30", cwd=parts, **environment)
            for rank, command in enumerate(commands)
        ]
        outputs = [process.communicate(timeout=60) for process in processes]
        results = [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]
        expect_one_line(results, "expected the same command on all processes")
    assert snapshot(parts) == before


def test_a_fit_that_one_rank_gave_up_leaves_the_ranks_in_step(
    parts: Path, job: tuple[int, dict[str, str]]
) -> None:
    port, environment = job
    for rank in (0, 1):
        process = start(rank, 2, port, *FIT, "--timeout", "2", cwd=parts, **environment)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "") and "did not meet" in errors, errors
        assert "s, with --timeout 2: " in errors
    processes = [start(rank, 2, port, *FIT, cwd=parts, **environment) for rank in (1, 0)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs


def test_a_rank_that_never_comes(parts: Path) -> None:
    begin = time.monotonic()
    process = start(1, 2, free_port(), *FIT, "--timeout", "3", cwd=parts)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "") and time.monotonic() - begin < 45
    assert errors.count("\n") == 1 and "did not meet" in errors, errors


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_dies(tmp_path: Path, leaves: int) -> None:
    save_parts(tmp_path, clusters(60000, 32), [30000, 30000])
    port = free_port()
    # 64 levels take a minute, so that the kill meets the work on the fastest machine, too.
    arguments = ["fit", "part-{rank}.npy", "-k", "1024", "--levels", "64", "-o", OUT]
    processes = [start(rank, 2, port, *arguments, cwd=tmp_path) for rank in range(2)]
    before = set(os.listdir(tmp_path))
    deadline = time.monotonic() + 60
    while set(os.listdir(tmp_path)) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    processes[leaves].kill()
    out, errors = processes[1 - leaves].communicate(timeout=120)
    processes[leaves].communicate()
    assert (processes[1 - leaves].returncode, out) == (2, ""), errors
    assert (
        errors.splitlines()[-1].startswith("torchvq: ")
        and "expected all processes to answer" in errors
    )
    assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize(
    ("fragment", "changes"),
    [
        ("expected RANK to be a number in [0, 1], but got 2", {"RANK": "2"}),
        ("expected RANK to be a number", {"RANK": "one"}),
        ("expected WORLD_SIZE to be a number", {"WORLD_SIZE": "0"}),
        ("expected MASTER_PORT to be a number", {"MASTER_PORT": "x"}),
    ],
)
def test_an_environment_that_contradicts_itself(
    parts: Path, fragment: str, changes: dict[str, str]
) -> None:
    process = start(0, 2, 1, *FIT, cwd=parts, **changes)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "") and errors.count("\n") == 1
    assert fragment in errors


@pytest.mark.parametrize("absent", ["RANK", "WORLD_SIZE"])
def test_half_an_environment_is_an_error(parts: Path, absent: str) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "1"}
    del environment[absent]
    result = run(*FIT, cwd=parts, env=os.environ | environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and f"expected {absent} beside" in result.stderr
    alone = run(*FIT, cwd=parts, env=os.environ | environment | {"TORCHVQ_SYNC": "0"})
    assert alone.returncode == 0, alone.stderr


def wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        assert time.monotonic() < deadline, "rank 0 never listened"
        time.sleep(0.05)


def test_rank_0_listens_on_the_address_that_was_named(parts: Path) -> None:
    port = free_port()
    process = start(0, 2, port, *FIT, cwd=parts)
    try:
        wait_until_listening(port)
        # All of 127.0.0.0/8 is this machine, so a listener on every address would accept here, too.
        assert socket.socket().connect_ex(("127.0.0.5", port)) == errno.ECONNREFUSED
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("interfaces", ["lo", "lo,lo", ""])
def test_interfaces_are_named_as_for_torch(
    parts: Path, interfaces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch shares the traffic among several, and chooses one where the list is empty."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interfaces)
    results = together(2, *FIT, "--quiet", "--timeout", "20", cwd=parts)
    assert results == [(0, "", "")] * 2


def test_a_port_that_is_taken(parts: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        process = start(0, 2, other.getsockname()[1], *FIT, "--timeout", "5", cwd=parts)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert errors.count("\n") == 1 and "Address already in use" in errors, errors


def test_only_who_knows_the_secret_joins(parts: Path) -> None:
    same = [{"TORCHVQ_SECRET": "a long word"}] * 2
    for secrets, fits in [(same, True), ([same[0], {}], False), ([{}, same[0]], False)]:
        port = free_port()
        processes = [
            start(rank, 2, port, *FIT, "--timeout", "20", cwd=parts, **more)
            for rank, more in enumerate(secrets)
        ]
        results = [(*process.communicate(timeout=60), process.returncode) for process in processes]
        assert (parts / OUT).exists() == fits
        assert [code for *_, code in results] == [0 if fits else 2] * 2, results
        if fits:
            (parts / OUT).unlink()
        else:
            assert any("the same TORCHVQ_SECRET" in errors for _, errors, _ in results), results


def test_a_secret_is_not_empty(parts: Path) -> None:
    process = start(0, 2, free_port(), *FIT, "--timeout", "5", cwd=parts, TORCHVQ_SECRET="")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and not (parts / OUT).exists()
    assert errors.count("\n") == 1 and "expected TORCHVQ_SECRET to be a word" in errors, errors


def test_one_process_needs_nobody(parts: Path) -> None:
    for changes in [{"WORLD_SIZE": "1"}, {"TORCHVQ_SYNC": "0"}]:
        process = start(0, 2, 1, *FIT, cwd=parts, **changes)
        assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    assert run(*FIT, cwd=parts).returncode == 0
