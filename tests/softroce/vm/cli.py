"""The command line of `run`."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vm import kernel, needs
from vm.machine import Machine, Result, Run

__all__ = ["main"]

#: Exit statuses of this program's own; every other one is the command's.
UNMET, LATE, FAILED = 3, 124, 125

#: UCX 1.13 drops every datagram that comes to an IPv4 GID, and soft-RoCE takes 7 retries, UCX's default, for endless.
UCX = {"UCX_UD_VERBS_ETH_DGID_CHECK": "n", "UCX_RC_VERBS_RETRY_COUNT": "6"}

DESCRIPTION = f"""\
Runs COMMAND as root in a small virtual machine that has a soft-RoCE device, and exits with its status.

COMMAND sees this machine's file system; what it changes is gone afterwards, except below --write. It starts in the
current folder, with the caller's environment, an empty standard input, no network, and:

  SOFTROCE_DEVICE     rxe0:1, the device and its port, as UCX spells it; set in no other place
  SOFTROCE_ETHERNET   the Ethernet device below it
  SOFTROCE_GID_INDEX  the index of its IPv4 GID; index 0 is the IPv6 one
  SOFTROCE_ADDRESS    its IPv4 address, and SOFTROCE_PEER that of the other machine (of itself without --node)
  SOFTROCE_NODE       1 or 2 with --node, else 0

What UCX needs to know of soft-RoCE, unless it is set already (README.md says why):

  {" ".join(f"{name}={value}" for name, value in UCX.items())}
"""
EPILOG = f"""\
Exit status: COMMAND's; {LATE} when COMMAND ran past --timeout; {FAILED} when there was no running it, with the reason
on standard error; {UNMET} from --check and --install when something is missing; 128+N when signal N ended COMMAND or
this program.
"""


class _Ended(BaseException):
    """A signal asks to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the result is its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    _check(parser, options)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _stop)
    try:
        return _main(options)
    except _Ended as ended:
        return 128 + ended.signum
    except BrokenPipeError:
        return 128 + signal.SIGPIPE  # nobody reads the output any more
    except (needs.NeedError, OSError, subprocess.CalledProcessError) as error:
        _say(str(error))
        return FAILED if options.command else UNMET


def _stop(signum: int, frame: FrameType | None) -> None:
    # Once is enough: the second one must not interrupt the tidying up after the first.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise _Ended(signum)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="softroce/run",
        usage="%(prog)s [OPTIONS] -- COMMAND [ARGUMENT...]\n       %(prog)s --check | --install [OPTIONS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--check", action="store_true", help="say what is missing, and run nothing")
    add("--install", action="store_true", help="first install with apt what is missing")
    add("--needs", metavar="PACKAGE", action="append", default=[], help="a Debian package COMMAND needs; repeatable")
    add("--timeout", metavar="S", type=_count, default=900, help="seconds COMMAND may take (%(default)s)")
    add("--boot-timeout", metavar="S", type=_count, default=180, help="seconds the start may take (%(default)s)")
    add("--write", metavar="DIR", type=Path, action="append", default=[], help="DIR keeps changes; repeatable")
    add("--memory", metavar="MIB", type=_count, help="memory of the machine (2048, but at most half of what is free)")
    add("--processors", metavar="N", type=_count, default=os.cpu_count() or 1, help="its processors (%(default)s)")
    add("--mtu", metavar="N", type=_count, default=4200, help="of its Ethernet device (%(default)s: 4096 for RDMA)")
    add("--node", metavar="N", type=int, choices=(1, 2), default=0, help="1 or 2: one of two joined machines")
    add("--link", metavar="DIR", type=Path, help="where two joined machines meet: the same folder for both")
    add("--console", metavar="FILE", type=argparse.FileType("wb"), help="write the kernel's log to FILE")
    add("--verbose", action="store_true", help="say how long it took")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "positive number"  # how argparse names it in its message


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.check and options.command:
        parser.error("--check runs no command")
    if not (options.check or options.install or options.command):
        parser.error("no command")
    if bool(options.node) != bool(options.link):
        parser.error("--node and --link belong together")
    for name in (*options.write, *([options.link] if options.link else [])):
        if not name.is_dir():
            parser.error(f"{name} is not a folder")


def _main(options: argparse.Namespace) -> int:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "cachefw-softroce"
    if options.install:
        with kernel.locked(cache):
            needs.install(cache, options.needs)
    missing = needs.missing(cache, options.needs)
    if missing:
        _say("cannot run here:\n" + "\n".join(f"  - {line}" for line in missing))
        if not options.install:
            _say("as root on Debian, `run --install` gets what can be installed")
        return FAILED if options.command else UNMET
    if not options.command:
        print("softroce/run: everything is there")
        return 0
    begin = time.monotonic()
    machine = Machine(
        kernel=kernel.Kernel(cache),
        memory=options.memory or min(2048, needs.available_memory() // 2**21),
        processors=options.processors,
        mtu=options.mtu,
        node=options.node,
        link=options.link and options.link.resolve(),
        writable=tuple(path.resolve() for path in options.write),
    )
    run = Run(machine, _script(options.command, machine), options.timeout, options.boot_timeout, options.console)
    with options.console or contextlib.nullcontext():
        result = run.run()
    if options.verbose:
        _say(f"took {time.monotonic() - begin:.1f} s")
    return _conclude(result, options)


def _script(command: Sequence[str], machine: Machine) -> str:
    """What bash runs in the machine: the command, with this process' environment, folder and limits."""
    environment = {**UCX, **os.environ}
    environment.update(
        SOFTROCE_DEVICE="rxe0:1",
        SOFTROCE_ADDRESS=machine.address,
        SOFTROCE_PEER=machine.peer,
        SOFTROCE_NODE=str(machine.node),
    )
    mask = os.umask(0)
    os.umask(mask)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lines = [
        f"ulimit -Hn {hard}; ulimit -Sn {soft}; umask {mask:o}",
        f"cd -- {shlex.quote(os.getcwd())} || exit {FAILED}",
        "known=(SOFTROCE_GID_INDEX=$SOFTROCE_GID_INDEX SOFTROCE_ETHERNET=$SOFTROCE_ETHERNET)",
    ]
    assignments = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    lines.append(f'exec env -i {assignments} "${{known[@]}}" {shlex.join(command)}')
    return "\n".join(lines) + "\n"


def _conclude(result: Result, options: argparse.Namespace) -> int:
    if result.status is not None:
        if result.status == LATE:
            _say(f"the command was not done after {options.timeout} s, or ended with {LATE} itself")
        return result.status
    for line in result.log.decode(errors="replace").replace("\r", "").splitlines():
        print(f"  vm: {line}", file=sys.stderr)
    if result.failure:
        _say(f"the virtual machine could not be set up: {result.failure}")
    elif result.late and result.started:
        _say(f"the virtual machine did not stop after {options.timeout} s")
        return LATE
    elif result.late:
        _say(f"the virtual machine had not started after {options.boot_timeout} s")
    else:
        _say(f"the virtual machine stopped {'before the command had ended' if result.started else 'while starting'}")
    return FAILED


def _say(text: str) -> None:
    print(f"softroce/run: {text}", file=sys.stderr, flush=True)
