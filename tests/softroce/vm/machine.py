"""One run of the virtual machine: what it is made of, starting it, passing its output on, and ending it.

Nothing of a run lies in the file system, except the socket of a machine that has a peer: the initramfs is in anonymous
memory, and everything the machine says comes through pipes. So nothing is left behind, however the run ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from vm.initramfs import archive
from vm.kernel import Kernel

__all__ = ["GRACE", "Machine", "Result", "Run"]

GUEST = Path(__file__).resolve().parents[1] / "guest"
NETWORK = "10.77.0."
#: Seconds that a machine has to stop after it has ended the command at its time limit.
GRACE = 30.0
#: How much of the kernel's log is kept, to be shown when the machine fails.
TAIL = 4000
#: Anything that stumbles in the kernel ends the machine, and what is only slow in emulation is left out.
KERNEL_LINE = (
    "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off nokaslr nowatchdog audit=0 apparmor=0 net.ifnames=0 "
    "rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on cryptomgr.notests"
)


@dataclass(frozen=True)
class Machine:
    """What a machine is made of.

    Attributes:
        kernel: From the cache.
        memory: MiB.
        processors: As many as the host's, usually.
        mtu: Of its Ethernet device.
        node: 1 or 2 for one of two joined machines, else 0.
        link: The folder with the sockets of joined machines.
        writable: Folders of the host that it may change.
    """

    kernel: Kernel
    memory: int
    processors: int
    mtu: int
    node: int = 0
    link: Path | None = None
    writable: tuple[Path, ...] = ()

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"{NETWORK}{self.node or 1}"

    @property
    def peer(self) -> str:
        """The address of the machine it is joined to, or its own."""
        return f"{NETWORK}{3 - self.node}" if self.node else self.address

    def socket(self, node: int) -> Path:
        """Where one end of the cable is."""
        assert self.link is not None
        return self.link / f"softroce-{node}.sock"

    def initramfs(self, command: str, timeout: int, one_stream: bool) -> bytes:
        """Everything it starts from; `command` is a script for bash."""
        settings = {
            "node": self.node,
            "address": self.address,
            "mtu": self.mtu,
            "timeout": timeout,
            # What one of two machines writes to a shared folder has to reach the other.
            "cache": "mmap" if self.node else "loose",
            "hostname": socket.gethostname(),
            "one_stream": int(one_stream),
        }
        shares = [f"share{number}\t{path}\n" for number, path in enumerate(self.writable)]
        modules = self.kernel.modules
        busybox = next(path for path in (Path("/bin/busybox"), Path("/usr/bin/busybox")) if path.exists())
        return archive(
            {
                "init": (GUEST / "init").read_bytes(),
                "bin/busybox": busybox.read_bytes(),
                "modules/order": "".join(f"{path.name}\n" for path in modules).encode(),
                **{f"modules/{path.name}": path.read_bytes() for path in modules},
                "softroce/setup": (GUEST / "setup").read_bytes(),
                "softroce/settings": "".join(f"{k}={shlex.quote(str(v))}\n" for k, v in settings.items()).encode(),
                "softroce/shares": "".join(shares).encode(),
                "softroce/command": command.encode(),
            }
        )

    def arguments(self, initramfs: str, ports: dict[str, str]) -> list[str]:
        """The command line of qemu.

        Args:
            initramfs: A path.
            ports: A path for each of the machine's outputs: ``console``, and one for each serial port by its name.
        """
        command = ["qemu-system-x86_64", "-name", "softroce", "-machine", "pc", *_processor()]
        command += ["-smp", str(self.processors), "-m", str(self.memory)]
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-kernel", str(self.kernel.image), "-initrd", initramfs, "-append", KERNEL_LINE]
        command += ["-device", "virtio-serial-pci"]
        for name, path in ports.items():
            command += [
                "-chardev",
                f"file,id={name},path={path},append=on",
            ]  # without `append` it truncates, and a pipe cannot
            device = f"virtserialport,chardev={name},name={name}"
            command += ["-serial", "chardev:console"] if name == "console" else ["-device", device]
        command += ["-virtfs", "local,mount_tag=host,security_model=none,readonly=on,multidevs=remap,path=/"]
        for number, path in enumerate(self.writable):
            share = f"local,mount_tag=share{number},security_model=passthrough,multidevs=remap"
            command += ["-virtfs", f"{share},path={_value(path)}"]
        return command + self._network()

    def _network(self) -> list[str]:
        if not self.node:
            return ["-nic", "none"]
        here, there = _value(self.socket(self.node)), _value(self.socket(3 - self.node))
        cable = f"dgram,id=net,local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        card = f"virtio-net-pci,netdev=net,mac=52:54:00:77:00:0{self.node},host_mtu={self.mtu},romfile="
        return ["-netdev", cable, "-device", card]


def _processor() -> list[str]:
    """KVM where the processor has it, else emulation. /dev/kvm alone says nothing: some open it and cannot use it."""
    flags = Path("/proc/cpuinfo").read_text().split()
    if os.access("/dev/kvm", os.W_OK) and ("vmx" in flags or "svm" in flags):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]


def _value(path: Path) -> str:
    """A path as part of one of qemu's arguments."""
    return str(path).replace(",", ",,")


@dataclass
class Result:
    """How a run ended.

    Attributes:
        status: The command's exit status; None when the machine did not tell.
        started: Whether the command was started.
        late: Whether the machine had to be ended at a time limit.
        failure: What the machine could not set up.
        log: The end of the kernel's log, and what qemu said.
    """

    status: int | None = None
    started: bool = False
    late: bool = False
    failure: str = ""
    log: bytearray = field(default_factory=bytearray)


class Run:
    """Starts a machine, passes its output on until it stops, and leaves nothing behind.

    Args:
        machine: What to start.
        command: A script for bash.
        timeout: Seconds that the command may take; the machine itself sees to it.
        boot_timeout: Seconds until the command must have been started.
        console: Gets all of the kernel's log.
    """

    def __init__(
        self, machine: Machine, command: str, timeout: int, boot_timeout: int, console: BinaryIO | None = None
    ) -> None:
        self.machine = machine
        self.command = command
        self.timeout = timeout
        self.boot_timeout = boot_timeout
        self.console = console
        self.result = Result()
        self._control = bytearray()

    def run(self) -> Result:
        """Do it.

        Raises:
            OSError: qemu cannot be started.
            KeyboardInterrupt: And whatever else a signal handler raises; the machine is gone then.
        """
        outputs = {name: os.pipe() for name in ("out", "err", "control", "console", "qemu")}
        inside = {name: ends[1] for name, ends in outputs.items()}
        try:
            with self._started(inside) as process:
                for end in inside.values():
                    os.close(end)
                inside.clear()
                self._pass_on({ends[0]: name for name, ends in outputs.items()}, process)
        finally:
            for end in (*inside.values(), *(ends[0] for ends in outputs.values())):
                os.close(end)
        return self.result

    @contextlib.contextmanager
    def _started(self, ends: dict[str, int]) -> Iterator[subprocess.Popen[bytes]]:
        one_stream = os.path.sameopenfile(1, 2)
        memory = os.memfd_create("initramfs")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(self.machine.initramfs(self.command, self.timeout, one_stream))
            ports = {}
            sets = []
            for number, name in enumerate(("out", "err", "control", "console")):
                sets += ["-add-fd", f"fd={ends[name]},set={number}"]
                ports[name] = f"/dev/fdset/{number}"
            arguments = self.machine.arguments(f"/proc/self/fd/{memory}", ports) + sets
            if self.machine.node:
                self.machine.socket(self.machine.node).unlink(missing_ok=True)
            process = subprocess.Popen(
                # Should this program be killed outright, the machine goes with it.
                ["setpriv", "--pdeathsig", "KILL", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=ends["qemu"],
                stderr=ends["qemu"],
                pass_fds=[memory, *ends.values()],
                # Ctrl-C is for this program, which ends the machine itself.
                start_new_session=True,
            )
        finally:
            os.close(memory)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            if self.machine.node:
                self.machine.socket(self.machine.node).unlink(missing_ok=True)

    def _pass_on(self, pipes: dict[int, str], process: subprocess.Popen[bytes]) -> None:
        """Read what the machine says until it has stopped and all pipes are empty."""
        deadline = time.monotonic() + self.boot_timeout
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                was_started = self.result.started
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(key.fd, 65536)
                    if data:
                        self._take(pipes[key.fd], data)
                    else:
                        selector.unregister(key.fd)
                if self.result.started and not was_started:
                    deadline = time.monotonic() + self.timeout + GRACE
                if time.monotonic() >= deadline and not self.result.late:
                    self.result.late = True
                    process.send_signal(signal.SIGKILL)
                    deadline += GRACE

    def _take(self, name: str, data: bytes) -> None:
        if name in ("out", "err"):
            _write(1 if name == "out" else 2, data)
        elif name == "control":
            self._control += data
            while b"\n" in self._control:
                line, _, self._control = self._control.partition(b"\n")
                self._told(line.decode(errors="replace").strip())
        else:
            if name == "console" and self.console is not None:
                self.console.write(data)
            self.result.log += data
            del self.result.log[:-TAIL]

    def _told(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started":
            self.result.started = True
        elif word == "exit":
            self.result.status = int(rest)
        elif word.startswith("failed"):
            self.result.failure = rest


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
