"""The doctor: every check on this machine and on made-up ones, what it says, cleans and sends."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cachefw
from cachefw.catalog import Check, Diagnosis, Health, Leftover
from cachefw.cli import main
from cachefw.diagnostics import everything
from cachefw.doctor import Host, examine, exit_code, guards, host_checks, leftovers, machine, network, software
from cachefw.doctor.bundle import Mask
from cachefw.doctor.host import counted, headline, size
from cachefw.errors import RequestError
from cachefw.plugins import PluginState, catalogue

SECONDS = 60
# `python -m` imports from the folder it starts in: that of the package under test.
HOME = Path(cachefw.__file__).resolve().parents[1]


def doctor(*arguments: str, **environ: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", **environ}).invoke(main, ["doctor", *arguments])


def made(tmp_path: Path, files: dict[str, str], **environ: str) -> Host:
    """A machine of these files alone."""
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(tmp_path, environ)


def only(found) -> Diagnosis:
    (told,) = found
    return told


# ---------------------------------------------------------------------- this machine


def test_every_check_says_something_of_this_machine() -> None:
    checks = host_checks()
    assert len({check.name for check in checks}) == len(checks)
    begun = []
    found = examine(checks, lambda check, place, count: begun.append((check.name, place, count)))
    assert begun == [(check.name, place, len(checks)) for place, check in enumerate(checks, 1)]
    assert {told.check for told in found} == {check.name for check in checks}
    for told in found:
        assert told.found
        assert told.fix or told.health in (Health.OK, Health.NOTE, Health.NOT_CHECKED), told
        json.dumps(dict(told.facts))


def test_the_exit_code_is_that_of_the_worst() -> None:
    told = [Diagnosis("a", health, "x") for health in (Health.OK, Health.NOTE, Health.NOT_CHECKED)]
    assert exit_code(told) == 0
    assert exit_code([*told, Diagnosis("a", Health.WARNING, "x")]) == 1
    assert exit_code([Diagnosis("a", Health.BROKEN, "x"), Diagnosis("a", Health.WARNING, "x")]) == 2


def test_it_fits_a_narrow_terminal_without_colour() -> None:
    result = doctor()
    assert result.exit_code in (0, 1)
    # A path may be longer; it has to stay whole to be copied.
    assert all(len(line) <= 80 or " " not in line.strip() for line in result.output.splitlines())
    assert "\x1b" not in result.output
    assert re.search(r"^(healthy|it works, with warnings): ", result.output, re.MULTILINE)
    assert len(doctor("-v").output) > len(result.output)


def test_json_holds_every_finding() -> None:
    result = doctor("--json")
    report = json.loads(result.output)
    assert result.exit_code == {"healthy": 0, "warnings": 1, "broken": 2}[report["verdict"]]
    assert sum(report["counts"].values()) == len(report["findings"])
    assert {"check", "health", "found", "meaning", "fix", "facts"} <= set(report["findings"][0])


def test_a_terminal_sees_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    import pty

    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "cachefw", "doctor"],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
        cwd=HOME,
    ) as process:
        os.close(slave)
        seen = b""
        try:
            while chunk := os.read(master, 4096):
                seen += chunk
        except OSError:
            # The terminal's other end is closed.
            process.wait(SECONDS)
        finally:
            os.close(master)
        process.wait(SECONDS)
    assert b"looking" in seen or b" of " in seen
    done = subprocess.run(
        [sys.executable, "-m", "cachefw", "doctor"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=HOME,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["127.0.0.1:1", "--port", "5"], "--port and --clean are for this host"),
        (["127.0.0.1:1", "--clean"], "--port and --clean are for this host"),
        (["--transport", "host"], "--transport and --layout are for a node"),
        (["--port", "70000"], "70000"),
        (["--clena"], "--clean"),
    ],
)
def test_usage_errors_exit_2(arguments: list[str], said: str) -> None:
    result = doctor(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


# ---------------------------------------------------------------------- made-up machines


def test_memory_of_the_container_is_the_tightest_group(tmp_path: Path) -> None:
    base = "/sys/fs/cgroup"
    host = made(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/pod/box\n",
            f"{base}/pod/box/memory.max": "max\n",
            f"{base}/pod/memory.max": f"{2**30}\n",
            f"{base}/pod/memory.current": f"{2**30 - 5}\n",
        },
    )
    told = only(machine.cgroup(host))
    assert told.health is Health.WARNING
    assert told.facts == {"limit": 2**30, "used": 2**30 - 5, "file": f"{base}/pod/memory.max"}


def test_control_groups_of_version_1_are_read_too(tmp_path: Path) -> None:
    base = "/sys/fs/cgroup/memory"
    files = {
        "/proc/self/cgroup": "5:cpu:/x\n9:memory:/x\n",
        f"{base}/x/memory.limit_in_bytes": f"{2**33}\n",
        f"{base}/x/memory.usage_in_bytes": f"{2**20}\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
    }
    told = only(machine.cgroup(made(tmp_path, files)))
    assert (told.health, told.facts["limit"]) == (Health.NOTE, 2**33)
    assert only(machine.cgroup(made(tmp_path / "none", {}))).health is Health.OK


def test_mappings_that_run_out_are_a_warning(tmp_path: Path) -> None:
    line = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n"
    files = {"/proc/sys/vm/max_map_count": "100", "/proc/self/maps": line * 90}
    told = only(machine.maps(made(tmp_path, files)))
    assert told.health is Health.WARNING
    assert "90 of 100 mappings" in told.found
    assert "max_map_count" in told.fix
    assert only(machine.maps(made(tmp_path / "none", {}))).health is Health.NOT_CHECKED


@pytest.mark.parametrize(
    ("scope", "capabilities", "health"),
    [("0", 0, Health.OK), ("1", 0, Health.WARNING), ("1", 1 << 19, Health.OK), ("3", 1 << 19, Health.WARNING)],
)
def test_ptrace_scope(tmp_path: Path, scope: str, capabilities: int, health: Health) -> None:
    files = {"/proc/sys/kernel/yama/ptrace_scope": scope, "/proc/self/status": f"CapEff:\t{capabilities:016x}\n"}
    told = only(guards.ptrace(made(tmp_path, files)))
    assert told.health is health
    assert f"ptrace_scope is {scope}" in told.found


def test_a_kernel_without_yama_lets_processes_read_each_other(tmp_path: Path) -> None:
    assert only(guards.ptrace(made(tmp_path, {}))).health is Health.OK


def test_seccomp(tmp_path: Path) -> None:
    assert only(guards.seccomp(made(tmp_path, {"/proc/self/status": "Seccomp:\t2\n"}))).health is Health.NOTE
    assert only(guards.seccomp(made(tmp_path, {"/proc/self/status": "Seccomp:\t0\n"}))).health is Health.OK
    assert only(guards.seccomp(made(tmp_path, {"/proc/self/status": "Name:\tx\n"}))).health is Health.NOT_CHECKED


@pytest.mark.parametrize("name", ["PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_pointed_out(tmp_path: Path, name: str) -> None:
    text = "max_split_size_mb:128,expandable_segments:True"
    told = only(guards.allocator(made(tmp_path, {}, **{name: text})))
    assert told.health is Health.WARNING
    assert told.found == f"{name}={text}"
    assert only(guards.allocator(made(tmp_path, {}, **{name: "expandable_segments:False"}))).health is Health.OK
    assert only(guards.allocator(made(tmp_path, {}))).health is Health.OK


def test_signs_of_a_container(tmp_path: Path) -> None:
    told = only(guards.container(made(tmp_path, {"/.dockerenv": "", "/proc/self/cgroup": "0::/kubepods/x"})))
    assert told.health is Health.NOTE
    assert told.facts["signs"] == ["/.dockerenv", "cgroup of kubepods"]
    told = only(guards.container(made(tmp_path / "host", {"/proc/1/comm": "systemd\n"})))
    assert told.health is Health.OK
    assert "process 1 is systemd" in told.found


def test_huge_pages_and_memory(tmp_path: Path) -> None:
    base = "/sys/kernel/mm/transparent_hugepage"
    files = {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 10 kB\n"
        "HugePages_Total: 4\nHugePages_Free: 1\nHugepagesize: 2048 kB\n",
        f"{base}/enabled": "always [madvise] never\n",
        f"{base}/shmem_enabled": "always within_size advise [never] deny force\n",
        "/proc/sys/vm/overcommit_memory": "0\n",
    }
    host = made(tmp_path, files)
    told = only(machine.huge_pages(host))
    assert (told.facts["free"], told.facts["enabled"], told.facts["shmem_enabled"]) == (1, "madvise", "never")
    assert told.health is Health.OK
    assert only(machine.free(host)).health is Health.WARNING
    assert only(machine.free(made(tmp_path, {"/proc/sys/vm/overcommit_memory": "2\n"}))).health is Health.NOTE


def test_two_copies_of_a_library_are_a_warning(tmp_path: Path) -> None:
    row = "7f00-7f01 r-xp 00000000 00:00 1                          {}\n"
    files = ["/usr/lib/libucp.so.0.0.0", "/venv/libucx.libs/libucp-ab12.so.0", "/usr/lib/libc.so.6"]
    told = only(software.libraries(made(tmp_path, {"/proc/self/maps": "".join(row.format(file) for file in files)})))
    assert told.health is Health.WARNING
    assert "libucp is loaded from" in told.found
    told = only(software.libraries(made(tmp_path, {"/proc/self/maps": row.format(files[0])})))
    assert told.facts["loaded"] == ["libucp"]


def test_interfaces_of_different_mtu_are_said(tmp_path: Path) -> None:
    base = "/sys/class/net"
    files = {f"{base}/eth0/mtu": "1500", f"{base}/eth0/operstate": "up", f"{base}/lo/mtu": "65536"}
    files |= {f"{base}/eth1/mtu": "9000", f"{base}/eth1/operstate": "up", f"{base}/eth2/mtu": "900"}
    told = only(network.network(made(tmp_path, files)))
    assert told.found == "up: eth0 (MTU 1500), eth1 (MTU 9000), lo (MTU 65536)"
    assert told.health is Health.NOTE


# ---------------------------------------------------------------------- settings and plugins


def test_settings_without_sense_and_variables_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_TIMEOUT", "soon")
    monkeypatch.setenv("CACHEFW_TIMEOT", "3")
    told = {each.health: each for each in software.settings(Host())}
    assert "CACHEFW_TIMEOUT='soon'" in told[Health.BROKEN].found
    assert "CACHEFW_TIMEOT is set, and nothing reads it" in told[Health.WARNING].found
    assert "did you mean CACHEFW_TIMEOUT?" in told[Health.WARNING].fix


def test_a_wanted_transport_that_is_missing_or_broken_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = catalogue.plugins()["host"]
    bad = copy.copy(plugin)
    bad.name, bad.distribution, bad.version = "bad", "bad-dist", "1.2"
    bad.quarantine("it raised ImportError")
    left = copy.copy(plugin)
    left.name, left.state, left.reason = "left", PluginState.DISABLED, "CACHEFW_DISABLE_PLUGINS names it"
    noisy = copy.copy(plugin)
    noisy.name, noisy.changes = "noisy", ("it installed a handler of SIGHUP",)
    found = {"host": plugin, "bad": bad, "left": left, "noisy": noisy}
    monkeypatch.setattr(type(catalogue), "plugins", lambda self: found)
    host = Host(environ={"CACHEFW_TRANSPORTS": "host,nowhere"})
    told = [each for each in software.plugins(host) if each.health is Health.BROKEN]
    assert [each.facts["plugin"] for each in told] == ["bad", "nowhere"]
    assert "bad of bad-dist 1.2 is broken: it raised ImportError" in told[0].found
    said = {each.facts["plugin"]: each for each in software.plugins(host) if each.health is not Health.OK}
    assert said["left"].health is Health.NOTE
    assert "is left out: CACHEFW_DISABLE_PLUGINS names it" in said["left"].found
    assert said["noisy"].health is Health.NOTE
    assert "changed this process: it installed a handler of SIGHUP" in said["noisy"].found


def test_a_setting_that_names_no_plugin_breaks_the_plugins_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self):
        raise RequestError("CACHEFW_PLUGINS names 'hots', which is not installed")

    monkeypatch.setattr(type(catalogue), "plugins", refuse)
    told = only(software.plugins(Host()))
    assert told.health is Health.BROKEN
    assert "'hots'" in told.found
    assert doctor().exit_code == 2


def test_distributions_are_of_one_version_and_share_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dist:
        def __init__(self, name: str, version: str, files: list[str]) -> None:
            self.metadata, self.version = {"Name": name}, version
            self.files = [Path(file) for file in files]

    dists = [
        Dist("cachefw", "1", ["cachefw/a.py"]),
        Dist("cachefw_hccs", "2", ["cachefw/a.py"]),
        Dist("other", "3", []),
    ]
    monkeypatch.setattr(software.metadata, "distributions", lambda: dists)
    warned, fault = software.packages(Host())
    assert (warned.health, fault.health) == (Health.WARNING, Health.BROKEN)
    assert "cachefw 1, cachefw-hccs 2" in warned.found
    assert "cachefw/a.py to cachefw and cachefw-hccs" in fault.found


# ---------------------------------------------------------------------- ports


def test_a_taken_port_names_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = only(network.ports(Host(ports=(port,))))
        assert told.health is Health.BROKEN
        assert f"port {port} is taken by process {os.getpid()} (" in told.found
        assert doctor("--port", str(port)).exit_code == 2
    assert only(network.ports(Host(ports=(port,)))).health is Health.OK
    assert only(network.ports(Host())).health is Health.OK


# ---------------------------------------------------------------------- leftovers


@pytest.fixture
def left(tmp_path: Path) -> Path:
    path = tmp_path / "seg.1"
    path.write_bytes(bytes(8192))
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    return path


def test_leftovers_are_found_and_cleaned(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = (Leftover(f"{left.parent}/seg.*", "the test"),)
    # Making a file sets its time of change, which nothing sets back.
    monkeypatch.setattr(leftovers, "_AGE", -1)
    told = only(leftovers.leftovers(Host(), known))
    assert told.health is Health.WARNING
    assert told.facts == {"files": [str(left)], "bytes": 8192}
    assert "--clean" in told.fix
    with left.open("rb"):
        assert only(leftovers.leftovers(Host(), known)).health is Health.OK
        assert "nothing had to be removed" in only(leftovers.clean(Host(), known)).found
    assert left.exists()
    told = only(leftovers.clean(Host(), known))
    assert not left.exists()
    assert told.found == f"removed {left}, 8 KiB of the test"


def test_what_is_mapped_or_young_or_a_link_is_left_alone(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    known = (Leftover(f"{left.parent}/seg.*", "the test"),)
    assert only(leftovers.leftovers(Host(), known)).health is Health.OK, "it was made a moment ago"
    monkeypatch.setattr(leftovers, "_AGE", -1)
    with left.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    with mapped:
        assert leftovers.orphans(Host(), known)[0] == []
    other = left.with_name("seg.2")
    other.symlink_to(left)
    assert [orphan.path for orphan in leftovers.orphans(Host(), known)[0]] == [left]


def test_nothing_is_cleaned_while_in_doubt(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_AGE", -1)
    monkeypatch.setattr(leftovers, "_used", lambda host: (set(), set(), [str(os.getpid())]))
    told = only(leftovers.clean(Host(), (Leftover(f"{left.parent}/seg.*", "the test"),)))
    assert told.health is Health.NOT_CHECKED
    assert str(os.getpid()) in told.found
    assert left.exists()


def test_clean_is_a_command() -> None:
    assert "leftovers.clean" in doctor("--clean").output


# ---------------------------------------------------------------------- the bundle


def test_the_bundle_has_no_secrets_names_and_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2-hunter2"
    monkeypatch.setenv("CACHEFW_SECRET", secret)
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", f"expandable_segments:True,note:{secret}")
    path = tmp_path / "bundle.json"
    result = doctor("--bundle", str(path))
    assert result.exit_code in (0, 1)
    assert "look through it before you send it" in " ".join(result.output.split())
    text = path.read_text()
    assert json.loads(text)["findings"]
    assert secret not in text
    assert "<secret>" in text
    # Names of one or two letters stand in too many words that are none.
    assert len(socket.gethostname()) < 3 or not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["bundle.json"]


def test_masking() -> None:
    mask = Mask({"API_KEY": "abcdef", "HF_TOKEN": "hf_1", "MONKEY": "banana", "SHORT_SECRET": "on"})
    said = mask.text(
        "10.1.2.3:80 to 10.1.2.4, back to 10.1.2.3; [fe80::1%eth0]:5; 127.0.0.1:9 stays; abcdef hf_1 banana"
    )
    assert said == "<ip 1>:80 to <ip 2>, back to <ip 1>; [<ip 3>]:5; 127.0.0.1:9 stays; <secret> <secret> banana"
    assert mask.text("address 0x7f0012345678 and 0x2000") == "address <address 1> and 0x2000"
    assert mask.text("52:54:00:12:34:56 password=x2 secret: y") == "<mac 1> password=<secret> secret: <secret>"
    assert mask.text("version 1.2.3, time 12:30:45, 300.1.1.1") == "version 1.2.3, time 12:30:45, 300.1.1.1"
    assert mask.value({"auth_token": "abc", "list": ["10.0.0.9", 3, None, True]}) == {
        "auth_token": "<secret>",
        "list": ["<ip 4>", 3, None, True],
    }


def test_a_bundle_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    result = doctor("--bundle", str(tmp_path / "none" / "bundle.json"))
    assert result.exit_code == 1
    assert "cannot write" in result.output
    assert "No such file" in result.output


# ---------------------------------------------------------------------- small things


def test_words() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 5 * 2**30, 2**41)] == [
        "0 bytes", "1,023 bytes", "1 KiB", "1.5 KiB", "5 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert (counted(1, "file"), counted(1200, "file")) == ("1 file", "1,200 files")
    assert headline("nothing found. Tried, in order:\n a\n b") == "nothing found"
    assert headline("plain\nmore") == "plain"


def test_plugins_bring_their_checks() -> None:
    known = everything()
    assert "host.cma" in known.checks
    told = known.checks["host.cma"].diagnose()
    assert told[0].check == "host.cma"
    assert told[0].health in (Health.OK, Health.WARNING)
    assert isinstance(known.checks["host.cma"], Check)
