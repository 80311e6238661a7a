"""Two hosts: network namespaces joined by a virtual cable, each with its own torchrun and nothing else in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hosts_program import STEPS
from test_modules import states_of

PROGRAM = Path(__file__).with_name("hosts_program.py")
PORT = 29717


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def reason_against() -> str | None:
    """The reason why namespaces cannot be created here, or None."""
    if shutil.which("ip") is None:
        return "the program ip (iproute2) is missing"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(
        ["ip", "netns", "add", f"tvqp{os.getpid()}"], capture_output=True, text=True
    )
    if probe.returncode != 0:
        return f"root may not make network namespaces here: {probe.stderr.strip()}"
    ip("netns", "delete", f"tvqp{os.getpid()}")
    return None


class Host:
    """A namespace with one end of the cable."""

    def __init__(self, number: int) -> None:
        tag = os.getpid() % 100000
        self.namespace = f"tvq{number}-{tag}"
        self.device = f"tvqv{number}-{tag}"
        # Different for parallel test processes, although their networks are separate anyway.
        self.address = f"10.197.{tag % 250}.{number + 1}"

    def make(self) -> None:
        ip("netns", "add", self.namespace)

    def plug_in(self) -> None:
        ip("link", "set", self.device, "netns", self.namespace)
        for command in (
            ("addr", "add", f"{self.address}/24", "dev", self.device),
            ("link", "set", self.device, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.namespace, *command)

    def remove(self) -> None:
        # Deleting the namespace also deletes the cable.
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True)

    def start(self, rank: int, master: Host, *arguments: str) -> subprocess.Popen[str]:
        """One process of torchrun on this host."""
        command = ["ip", "netns", "exec", self.namespace, sys.executable]
        command += ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        command += [f"--node-rank={rank}", "--rdzv-backend=static"]
        command += [f"--master-addr={master.address}", f"--master-port={PORT}"]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "GLOO_SOCKET_IFNAME": self.device,
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [*command, str(PROGRAM), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if (reason := reason_against()) is not None:
        # A warning, because pytest -q does not show the reason of a skip.
        warnings.warn(f"the test with two hosts does not run: {reason}", stacklevel=1)
        pytest.skip(reason)
    first, second = Host(0), Host(1)
    try:
        first.make()
        second.make()
        ip("link", "add", first.device, "type", "veth", "peer", "name", second.device)
        first.plug_in()
        second.plug_in()
        yield first, second
    finally:
        first.remove()
        second.remove()


def test_two_hosts_learn_what_one_process_learns(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    running = [host.start(rank, hosts[0], str(tmp_path)) for rank, host in enumerate(hosts)]
    outputs = []
    try:
        outputs = [process.communicate(timeout=180)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(outputs)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    states, _ = states_of(None, 2, "residual_dropout", STEPS, {"sync_codebook": False})
    for host, result in zip(hosts, results, strict=True):
        # The process ran in its namespace: alone on a machine with one cable.
        assert result["interfaces"] == ["lo", host.device]
        assert result["local_world_size"] == 1
        assert result["traffic"][3] > 0
        for name, value in states[-1].items():
            assert torch.equal(result["state"][name], value), name


def wait_for(files: list[Path], running: list[subprocess.Popen[str]], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        assert time.monotonic() < limit, f"missing: {[f.name for f in files if not f.exists()]}"
        assert all(process.poll() is None for process in running) or all(f.exists() for f in files)
        time.sleep(0.1)


def test_a_pulled_cable_is_an_error_on_both_hosts(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    running = [host.start(rank, hosts[0], str(tmp_path), "pull") for rank, host in enumerate(hosts)]
    try:
        wait_for([tmp_path / f"{rank}.ready" for rank in range(2)], running, 120)
        ip("-n", hosts[1].namespace, "link", "set", hosts[1].device, "down")
        (tmp_path / "pulled").touch()
        wait_for([tmp_path / f"{rank}.pt" for rank in range(2)], running, 60)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    for rank in range(2):
        message, seconds, intact = torch.load(tmp_path / f"{rank}.pt")["attempt"]
        # One of the steps had only padding, which does not advance the step number.
        assert message.startswith(
            f"DistBackendError: ResidualVQ(dim=6, codebook_size=24), step {STEPS - 1}: rank {rank} of 2"
        ), message
        assert "failed while sharing the statistics of the codes" in message
        assert seconds < 20 and intact
