"""What this transport knows about its errors, and about the machine that it runs on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from cachefw.catalog import Cause, Check, Diagnosis, Diagnostics, Entry, Health, rule_entries

from .rules import RULES
from .status import cma_advice

__all__ = ["DIAGNOSTICS"]

_TRANSPORT = "host"
_SECONDS = 20
_WORD = b"cachefw reads the memory of another process"

# Read by a process that is no parent of the one it reads, as a peer is none.
_READER = """
import ctypes, sys
pid, address, length = map(int, sys.argv[1:])
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
into = ctypes.create_string_buffer(length)
here = Vector(ctypes.cast(into, ctypes.c_void_p), length)
there = Vector(ctypes.c_void_p(address), length)
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
got = libc.process_vm_readv(
    pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)
)
print(ctypes.get_errno() if got < 0 else 0, into.raw[:max(got, 0)].hex())
"""


def _cma() -> Iterable[Diagnosis]:
    """Let a child read this process's memory, as a peer would."""
    word = ctypes.create_string_buffer(_WORD, len(_WORD))
    command = [sys.executable, "-I", "-c", _READER, str(os.getpid()), str(ctypes.addressof(word)), str(len(_WORD))]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        yield Diagnosis("", Health.NOT_CHECKED, f"the reading process failed: {tail[0]}")
        return
    number, _, read = done.stdout.strip().partition(" ")
    if number == "0" and bytes.fromhex(read) == _WORD:
        yield Diagnosis("", Health.OK, "another process of this user read this one's memory (process_vm_readv)")
        return
    status = int(number)
    text = f"another process cannot read this one's memory: {os.strerror(status)}" if status else "it read other bytes"
    meaning = "the path cma is closed; memory of CacheManager.allocate is mapped (shm) and not concerned"
    yield Diagnosis("", Health.WARNING, text, meaning, cma_advice(os.getppid()), {"errno": status})


def _describe(transport: Any) -> Mapping[str, str]:
    return {"pid namespace": str(os.stat("/proc/self/ns/pid").st_ino), "user": str(os.geteuid())}


_APART = Cause(
    "the peer runs in another pid namespace (another container)", "share it: docker run --pid=host", "container"
)

DIAGNOSTICS = Diagnostics(
    entries=(
        Entry(
            "cma.denied",
            "code",
            "the kernel does not let this process reach into the peer's memory",
            _TRANSPORT,
            causes=(
                Cause("Yama, or a missing capability, forbids it", "sysctl kernel.yama.ptrace_scope=0", "host.cma"),
                Cause("the two run as different users", "run both as one user"),
                Cause("a filter of system calls is on", "--cap-add=SYS_PTRACE", "security.seccomp"),
            ),
            source="process_vm_readv(2), ptrace(2)",
        ),
        Entry(
            "shm.unreachable",
            "code",
            "the peer's shared memory cannot be fetched",
            _TRANSPORT,
            causes=(
                Cause("the peer's process is gone", "look at its log, start it, link again"),
                Cause("the two are in different network namespaces, where names of sockets part", "--network=host"),
            ),
        ),
        Entry(
            "shm.refused",
            "code",
            "the peer did not hand over its shared memory",
            _TRANSPORT,
            causes=(
                Cause("the allocation was closed there", "keep it open while it is registered"),
                Cause("the peer was started again", "link again"),
            ),
        ),
        Entry(
            "stream.unreachable",
            "code",
            "the peer's data port cannot be reached",
            _TRANSPORT,
            causes=(
                Cause(
                    "a firewall lets the control port pass and not the data port",
                    'open it; settings={"host": {"listen": "HOST:PORT"}} fixes its number',
                ),
                Cause(
                    "the peer listens on an address that only its own host has",
                    "have its node listen on one that this host reaches",
                ),
            ),
        ),
        Entry(
            "stream.silent",
            "code",
            "the other end of a data stream did not introduce itself in time",
            _TRANSPORT,
            causes=(
                Cause("something else listens at that port", "look who does"),
                Cause("the peer hangs, or is stopped", "look at its process"),
            ),
        ),
        Entry(
            "stream.missing",
            "code",
            "a transfer needs data streams, and the peer, which has to open them, has not",
            _TRANSPORT,
            causes=(Cause("it cannot reach this end's data port", "see `stream.unreachable`, from there"),),
        ),
        Entry(
            "stream.refused",
            "code",
            "the other end of a link did not take a data stream",
            _TRANSPORT,
            causes=(Cause("the link ended there meanwhile", "link again"),),
        ),
        Entry(
            "stream.thread",
            "code",
            "the thread that lets data streams in cannot be started",
            _TRANSPORT,
            causes=(
                Cause(
                    "the process, or its container, may have no more threads", "raise the limit (ulimit -u, pids.max)"
                ),
            ),
        ),
        Entry(
            "auth.stream",
            "code",
            "the other end of a data stream did not show that it holds the link's key",
            _TRANSPORT,
            causes=(
                Cause("something between the two hosts answers in the peer's place", "look who listens at that port"),
                Cause("the peer was started again", "link again"),
            ),
        ),
        Entry(
            "listen.failed",
            "code",
            "the data port cannot be opened",
            _TRANSPORT,
            causes=(
                Cause("another process has that port", "give another, or port 0 for any"),
                Cause("the address is not this host's", 'give one that is, in settings={"host": {"listen": ...}}'),
            ),
        ),
        Entry(
            "tls.missing",
            "code",
            "the link is one with TLS, and OpenSSL 3 is not here to encrypt its data streams",
            _TRANSPORT,
            causes=(Cause("libssl.so.3 is not installed", "apt install libssl3"),),
        ),
        Entry(
            "memory.withdrawn",
            "code",
            "the peer does not serve memory there over streams, or no longer",
            _TRANSPORT,
            causes=(Cause("it was given back there", "have the peer register it again"),),
        ),
        Entry(
            "memory.rights",
            "code",
            "the peer does not allow that of its memory over streams",
            _TRANSPORT,
            causes=(
                Cause("the region was registered with fewer rights", "register it with the access that is needed"),
            ),
        ),
        Entry(
            "peer.silent",
            "code",
            "the peer, or the network to it, said nothing for too long",
            _TRANSPORT,
            causes=(
                Cause(
                    "a cable or a host is down",
                    'look whether the peer is reachable; settings={"host": {"tcp_timeout": SECONDS}} waits longer',
                ),
                Cause("the peer is stopped, or its host overloaded", "look at its process"),
            ),
        ),
        Entry(
            "peer.gone",
            "code",
            "the peer closed a data stream",
            _TRANSPORT,
            causes=(Cause("its process ended, or closed the link", "look at its log, start it, link again"),),
        ),
        Entry(
            "stream.protocol",
            "code",
            "the peer sent what makes no sense on a data stream",
            _TRANSPORT,
            causes=(
                Cause("the two run different versions of cachefw", "install the same on both"),
                Cause("something else answers at that port", "look who listens there"),
            ),
        ),
        *rule_entries(
            RULES,
            _TRANSPORT,
            {
                "host.kind": (Cause("device memory was given to a transport for host memory", "open another, too"),),
                "host.mapped": (
                    Cause("the tensor was freed, and its address kept", "keep its owner alive while it is registered"),
                    Cause("the shape is larger than the tensor", "compare the cache_desc with the tensor"),
                    Cause("the file behind it is mapped for reading only", "map it readable and writable"),
                ),
            },
        ),
        Entry("ESRCH", "errno", os.strerror(3), "Linux", causes=(_APART,)),
    ),
    checks=(Check("host.cma", "reading another process's memory", _cma),),
    describe=_describe,
)
