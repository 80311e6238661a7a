"""`Cable`: joins two network namespaces, with a delay for each packet and a limited bandwidth.

Kernels without netem still have TUN devices: a process reads the packets of one end and writes them to the other when
they are due. `python slow_cable.py DELAY BITS SPACE DEVICE SPACE DEVICE` is that process.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

# From linux/if_tun.h and sched.h.
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
# As large as possible, because the cost of a relay in Python is per packet.
PACKET = 65000


def shell(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Cable:
    """Two namespaces and the connection between them, while the context lasts; needs root."""

    def __init__(self, delay_ms: float, gigabits: float) -> None:
        tag = os.getpid() % 100000
        self.spaces = [f"tvqo{end}-{tag}" for end in range(2)]
        self.devices = [f"tvqw{end}-{tag}" for end in range(2)]
        self.addresses = [f"10.198.{tag % 250}.{end + 1}" for end in range(2)]
        self.quality = [str(delay_ms / 1e3), str(gigabits * 1e9)]
        self.relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> Cable:
        try:
            self._lay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lay(self) -> None:
        for space in self.spaces:
            shell("ip", "netns", "add", space)
        ends = [name for end in zip(self.spaces, self.devices, strict=True) for name in end]
        command = [sys.executable, __file__, *self.quality, *ends]
        self.relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout is not None
        if self.relay.stdout.readline() != "ready\n":
            raise RuntimeError("expected the relay to take up both ends of the cable, but it ended")
        for space, device, address in zip(self.spaces, self.devices, self.addresses, strict=True):
            shell("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
            for link in (["dev", device, "mtu", str(PACKET)], ["dev", "lo"]):
                shell("ip", "-n", space, "link", "set", *link, "up")

    def __exit__(self, *_: object) -> None:
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


# The relay --------------------------------------------------------------------------------------------------


def take_up(space: str, device: str) -> int:
    """Opens one end: a TUN device in a namespace, as a file of packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{space}") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"no way into the namespace {space}")
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    return end


def carry(source: int, target: int, delay: float, bits: float) -> None:
    """One direction: a reader that computes when each packet is due, and a writer that waits for that."""
    on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            when, packet = on_the_way.get()
            time.sleep(max(0.0, when - time.perf_counter()))
            with suppress(OSError):  # lost if the other end is not up yet
                os.write(target, packet)

    threading.Thread(target=deliver, daemon=True).start()
    free = 0.0
    while True:
        packet = os.read(source, PACKET + 100)
        free = max(free, time.perf_counter()) + 8 * len(packet) / bits
        on_the_way.put((free + delay, packet))


def main() -> None:
    delay, bits = float(sys.argv[1]), float(sys.argv[2])
    ends = [take_up(*sys.argv[at : at + 2]) for at in (3, 5)]
    print("ready", flush=True)
    threading.Thread(target=carry, args=(ends[1], ends[0], delay, bits), daemon=True).start()
    carry(*ends, delay, bits)


if __name__ == "__main__":
    main()
