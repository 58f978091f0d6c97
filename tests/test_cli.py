"""The command line, as people and scripts use it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import cachefw
from cachefw.cli import main, reports
from cachefw.cli.children import Child, DemoError
from cachefw.cli.demo import hand_over
from cachefw.cli.models import MODELS
from cachefw.cli.options import TransportCommand
from cachefw.cli.pattern import Pattern, Places
from cachefw.cli.pool import kind_for, pitch
from cachefw.config import DEFAULT_TRANSPORT
from cachefw.memory import MemoryKind
from cachefw.plugins import catalogue
from cachefw.transport import Capability, Option, Reach, Transport, TransportInfo

MODEL = "llama-3.1-8b"
SECONDS = 60
# `python -m` imports from the folder it starts in: that of the package under test.
HOME = Path(cachefw.__file__).resolve().parents[1]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def spawn(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cachefw", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HOME,
        env={**os.environ, **environment},
    )


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    with spawn(*arguments, **environment) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def task(timeout: float = SECONDS, tokens: int = 256) -> reports.Task:
    return reports.Task(MODEL, tokens, seed=0, transport=DEFAULT_TRANSPORT, path=None, timeout=timeout)


# ---------------------------------------------------------------------- the group


def test_help_loads_no_subcommand() -> None:
    code = "import sys, cachefw.cli as c; c.main(['--help'], standalone_mode=False); "
    code += "sys.exit(' '.join(m for m in ('numpy', 'rich', 'cachefw.plugins') if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo" in done.stdout
    assert "transports" in done.stdout


def test_python_m_is_the_same_program() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == call("--version").output
    assert done.stdout.startswith("cachefw ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dmeo"], "did you mean demo?"),
        (["dotcor"], "did you mean doctor?"),
        (["zzz"], "; there are config, demo, "),
        (["demo", "--model", "llama"], "did you mean llama-3.1-8b?"),
        (["demo", "--model", "zzz"], "there are llama-3.1-8b, qwen2.5-7b, deepseek-v3"),
        (["demo", "--tokens", "15"], "15 is less than one block of llama-3.1-8b, which holds 16 tokens"),
        (["demo", "--tokens", "-1"], "less than one block"),
        (["demo", "--path", "tcp"], "'shm', 'cma'"),
        (["demo", "--timeout", "0"], "--timeout"),
        (["demo", "--decode-setting", "device"], "'device' is not NAME=VALUE"),
        (["demo", "--decode-setting", "=1"], "'=1' is not NAME=VALUE"),
        (["demo", "--prefill-setting", "name=abc"], "'abc' is not JSON"),
        (["demo", "--prefill-setting", "a=1", "--prefill-setting", "a=2"], "a is given twice"),
    ],
)
def test_usage_errors_exit_2(arguments: list[str], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_refusals_exit_1_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("demo", "--transport", "zzz")
    assert result.exit_code == 1
    assert result.output.startswith("error: transport 'zzz' is not installed")
    assert "Traceback" not in result.output
    assert "cachefw explain transport.not_installed has likely causes" in result.output
    monkeypatch.setenv("CACHEFW_DEBUG", "1")
    assert "TransportUnavailable" in repr(call("demo", "--transport", "zzz").exception)


def test_too_little_memory_is_said_before_anything_starts() -> None:
    result = call("demo", "--tokens", str(10**9))
    assert result.exit_code == 1
    assert "GB are available; give fewer --tokens" in result.output


# ---------------------------------------------------------------------- transports


def test_transports() -> None:
    (host,) = (entry for entry in json.loads(call("transports", "--json").output) if entry["name"] == DEFAULT_TRANSPORT)
    assert host["state"] == "available"
    assert host["kinds"] == ["host memory"]
    assert host["reach"] == "network"
    assert "allocate" in host["capabilities"]
    assert host["reason"] == ""
    assert host["remark"] == ""
    assert all(host[key] for key in ("distribution", "version", "summary", "target"))
    assert "available" in call("transports").output


def test_a_simulated_runtime_is_said_to_be_one(site) -> None:
    source = """
        from cachefw.hookspecs import hookimpl
        from cachefw.testing import MemoryTransport

        class Simulated(MemoryTransport):
            remark = "SIMULATED"

        @hookimpl
        def cachefw_transports():
            yield Simulated.info_named("it")
        """
    site.install("cachefw-it", "it", source)
    found = {entry["name"]: entry["remark"] for entry in json.loads(call("transports", "--json").output)}
    assert (found["it"], found[DEFAULT_TRANSPORT]) == ("SIMULATED", "")
    assert "SIMULATED" in call("transports").output


@pytest.fixture
def broken(tmp_path: Path) -> str:
    info = tmp_path / "site_broken-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-broken\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[cachefw.plugins]\nbroken = site_broken\n")
    (tmp_path / "site_broken.py").write_text("raise RuntimeError('the driver is too old')\n")
    return str(tmp_path)


def test_a_broken_plugin_is_shown_and_harms_nobody(broken: str) -> None:
    done = run("transports", "--json", PYTHONPATH=broken)
    assert (done.returncode, done.stderr) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert found["broken"]["state"] == "broken"
    assert found["broken"]["distribution"] == "site-broken"
    assert found["broken"]["version"] == "1.2"
    assert "the driver is too old" in found["broken"]["reason"]
    assert found[DEFAULT_TRANSPORT]["state"] == "available"
    table = run("transports", PYTHONPATH=broken, COLUMNS="80")
    assert table.returncode == 0
    assert "broken" in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80
    asked = run("demo", "--transport", "broken", PYTHONPATH=broken)
    assert asked.returncode == 1
    assert "the driver is too old" in asked.stderr


# ---------------------------------------------------------------------- what the demo is made of


def test_blocks_of_the_pattern_differ_and_can_be_made_alone() -> None:
    whole = {(t, b): Pattern(7, 4096).block(t, b).tobytes() for t in range(3) for b in range(3)}
    pattern = Pattern(7, 4096)
    assert all(pattern.block(*place).tobytes() == content for place, content in reversed(whole.items()))
    assert len(set(whole.values())) == 9
    assert Pattern(8, 4096).block(0, 0).tobytes() != whole[0, 0]


def test_the_pattern_is_splitmix64() -> None:
    # The first values of the reference implementation for seed 1234567.
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert Pattern(1234567, 40).block(0, 0).view(np.uint64).tolist() == wanted


@pytest.mark.parametrize("model", MODELS.values(), ids=str)
def test_places_are_scattered_and_the_same_for_everyone(model) -> None:
    places, again = Places.of(model, 4096, 3), Places.of(model, 4096, 3)
    assert places.prefill.tolist() == again.prefill.tolist()
    assert places.decode.tolist() == again.decode.tolist()
    assert places.blocks * model.block_tokens == 4096
    for numbers, desc in ((places.prefill, places.prefill_desc), (places.decode, places.decode_desc)):
        assert len(set(numbers.tolist())) == places.blocks < desc.batch_size
        assert 0 <= min(numbers) <= max(numbers) < desc.batch_size
    assert places.prefill.tolist() != places.decode.tolist()


def test_real_models_have_their_real_sizes() -> None:
    per_token = {name: model.desc(1).stride * model.tensors // model.block_tokens for name, model in MODELS.items()}
    assert per_token == {"llama-3.1-8b": 131072, "qwen2.5-7b": 57344, "deepseek-v3": 70272}


# ---------------------------------------------------------------------- the demo


@pytest.mark.parametrize("path", ["shm", "cma"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
def test_demo_json(path: str, model: str) -> None:
    done = run("demo", "--tokens", "256", "--path", path, "--model", model, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["verified"] is True
    assert facts["path"] == path
    assert facts["transport"] == DEFAULT_TRANSPORT
    assert facts["memory"] == "host memory"
    assert facts["remark"] == ""
    assert facts["prefill_settings"] == facts["decode_settings"] == {}
    assert facts["model"] == model
    assert facts["tokens"] == 256
    assert facts["blocks"] == MODELS[model].blocks_for(256)
    assert facts["tensors"] == MODELS[model].tensors
    assert facts["bytes"] == facts["blocks"] * facts["tensors"] * MODELS[model].desc(1).stride
    assert facts["checked_blocks"] == 2 * facts["blocks"] * facts["tensors"]
    assert facts["gb_per_s"] == pytest.approx(facts["bytes"] / facts["seconds"] / 1e9)
    assert facts["cold_gb_per_s"] == pytest.approx(facts["bytes"] / facts["cold_seconds"] / 1e9)
    assert facts["share_of_memcpy"] == pytest.approx(facts["gb_per_s"] / facts["memcpy_gb_per_s"])


@pytest.mark.parametrize("columns", ["80", "120"])
def test_demo_table_fits(columns: str) -> None:
    done = run("demo", "--tokens", "16", COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    for word in (DEFAULT_TRANSPORT, "shm", "2,097,152 bytes", "64 tensors", "cold", "warm", "memcpy", "yes"):
        assert word in done.stdout


def test_settings_are_the_transports_to_judge() -> None:
    done = run("demo", "--tokens", "16", "--decode-setting", "no_such=1")
    assert done.returncode == 1
    assert "decode (process " in done.stderr
    assert "no_such" in done.stderr


# ---------------------------------------------------------------------- options that transports bring


@pytest.fixture
def with_options(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls a command that prints the settings it got, with a transport that brings options."""

    @click.command(cls=TransportCommand)
    @click.option("--transport")
    @click.option("--own")
    def command(transport: str | None, own: str | None, transport_settings: dict[str, str]) -> None:
        click.echo(json.dumps([transport, own, transport_settings]))

    def call(options: list[Option], *arguments: str) -> Result:
        capabilities = Capability.READ
        info = TransportInfo("some", Transport, {MemoryKind.HOST}, Reach.HOST, capabilities, options=tuple(options))
        plain = attrs.evolve(info, options=())
        plugins = {
            name: attrs.make_class("Plugin", ["info"])(info if name == "some" else plain) for name in ("some", "other")
        }
        monkeypatch.setattr(catalogue, "get", plugins.__getitem__)
        monkeypatch.setenv("CACHEFW_TRANSPORTS", "other")
        return CliRunner().invoke(command, list(arguments))

    return call


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["--transport", "some", "--net", "a", "--own", "b"], ["some", "b", {"device": "a"}]),
        (["--net=a", "--transport=some", "--fast-path", "x=y"], ["some", None, {"device": "a", "tls": "x=y"}]),
        (["--net", "a", "--net", "b", "--transport", "some"], ["some", None, {"device": "b"}]),
        (["--transport", "some"], ["some", None, {}]),
        (["--own", "--net"], [None, "--net", {}]),
        ([], [None, None, {}]),
    ],
)
def test_options_of_a_transport_become_its_settings(with_options, arguments, got) -> None:
    options = [Option("--net", "device", "NAME", "a card"), Option("--fast-path", "tls")]
    result = with_options(options, *arguments)
    assert (result.exit_code, json.loads(result.output)) == (0, got)


def test_options_of_a_transport_need_its_name(with_options) -> None:
    options = [Option("--net", "device", "NAME", "a card")]
    assert "a card" in with_options(options, "--transport", "some", "--help").output
    assert "a card" not in with_options(options, "--help").output
    result = with_options(options, "--net", "a")
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert "name that with --transport" in result.output
    assert "name that" not in with_options(options, "--transport", "other", "--net", "a").output


@pytest.mark.parametrize(
    "options",
    [[Option("--own", "device")], [Option("--net", "device"), Option("--nic", "device")]],
)
def test_an_option_that_exists_already_is_the_plugins_fault(with_options, options) -> None:
    result = with_options(options, "--transport", "some")
    assert isinstance(result.exception, cachefw.PluginError)
    assert options[-1].flag in str(result.exception)


@pytest.mark.parametrize("flag", ["net", "-n", "--", "--Net", "--a b", None])
def test_an_option_has_a_flag(flag) -> None:
    with pytest.raises(ValueError, match="must look like --some-name"):
        Option(flag, "device")


@pytest.mark.parametrize(
    ("kinds", "capabilities", "used"),
    [
        ({MemoryKind.HOST}, Capability.READ, MemoryKind.HOST),
        ({MemoryKind.HOST, MemoryKind.DEVICE}, ~Capability.NONE, MemoryKind.HOST),
        ({MemoryKind.DEVICE}, Capability.READ | Capability.ALLOCATE | Capability.COPY, MemoryKind.DEVICE),
        ({MemoryKind.DEVICE}, Capability.READ | Capability.COPY, None),
        ({MemoryKind.DEVICE}, Capability.READ | Capability.ALLOCATE, None),
        ({MemoryKind.PINNED}, ~Capability.NONE, None),
        ({MemoryKind.HOST}, ~Capability.READ, None),
    ],
)
def test_the_memory_follows_from_what_the_transport_says(kinds, capabilities, used) -> None:
    assert kind_for(TransportInfo("some", Transport, kinds, Reach.HOST, capabilities)) is used


@pytest.mark.parametrize("model", MODELS.values(), ids=str)
def test_tensors_of_device_memory_begin_at_huge_pages(model) -> None:
    for desc in Places.descs(model, 300):
        step = pitch(desc, MemoryKind.DEVICE)
        assert step % (2 * 2**20) == 0
        assert desc.size <= step < desc.size + 2 * 2**20
        assert pitch(desc, MemoryKind.HOST) == desc.size


def test_demo_runs_with_the_package_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "cachefw").mkdir()
    (tmp_path / "cachefw" / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    code = "from cachefw.cli import main; main(['demo', '--tokens', '16', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.pop(0); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_flipped_bit_is_found_and_named() -> None:
    done = run("demo", "--tokens", "256", "--corrupt", "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["verified"] is False
    assert facts["wrong_blocks"] == 2
    places = Places.of(MODELS[MODEL], 256, 0)
    here, there = places.decode[8], places.prefill[8]
    block = f"tensor 32 (keys of layer 16), block {here} (block {there} of the prefill side): crc32 0x"
    assert f"cold pull, {block}" in done.stderr
    assert f"warm pull, {block}" in done.stderr
    assert done.stderr.startswith("error: 2 of ")


# ---------------------------------------------------------------------- how the demo ends when it ends badly


def at_step(name: str, step: str, act: Callable[[Child], None]) -> tuple[Callable[[Child, reports.Report], None], set]:
    """A listener that does something to a child when it begins a step, and the children it has heard of."""
    seen: set[Child] = set()

    def listen(child: Child, report: reports.Report) -> None:
        seen.add(child)
        if child.name == name and report == reports.Step(step):
            act(child)

    return listen, seen


@pytest.mark.parametrize(
    ("name", "step"),
    [("prefill", "open the node"), ("prefill", "serve"), ("decode", "link"), ("decode", "cold pull")],
)
def test_a_killed_child_is_named_and_none_is_left(name: str, step: str) -> None:
    listen, seen = at_step(name, step, lambda child: child.process.kill())
    with pytest.raises(DemoError) as caught:
        hand_over(task(tokens=2048), listen)
    assert f"{name} (process " in str(caught.value)
    assert "was ended by SIGKILL at step" in str(caught.value)
    assert seen
    for child in seen:
        assert child.process.returncode is not None
        with pytest.raises(ProcessLookupError):
            os.kill(child.process.pid, 0)


@pytest.mark.parametrize(("name", "step"), [("prefill", "fill the blocks"), ("decode", "link")])
def test_a_child_that_hangs_is_ended_in_time(name: str, step: str) -> None:
    listen, seen = at_step(name, step, lambda child: child.process.send_signal(signal.SIGSTOP))
    with pytest.raises(DemoError, match=rf"{name} \(process \d+\) was not done within 6 s: it was at step '{step}'"):
        hand_over(task(timeout=6, tokens=2048), listen)
    assert {child.process.returncode for child in seen} == {-signal.SIGKILL}


def test_the_last_words_of_a_child_are_shown(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'cachefw.cli.decode' in sys.orig_argv:\n"
        "    os.write(2, b'no such device\\n')\n"
        "    os._exit(3)\n"
    )
    done = run("demo", "--tokens", "16", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "decode (process " in done.stderr
    assert "ended with exit code 3 at step 'start'; the last lines of its stderr:\n  no such device\n" in done.stderr


def started(process: subprocess.Popen[str]) -> dict[str, int]:
    """Process ids of the children of a demo with CACHEFW_DEBUG=1, once both have begun."""
    assert process.stderr is not None
    pids: dict[str, int] = {}
    while len(pids) < 2:
        line = process.stderr.readline()
        assert line, "the demo ended"
        name, _, rest = line.partition(" (process ")
        pids[name] = int(rest.partition(")")[0])
    return pids


def wait_for_the_end(fd: int) -> None:
    readable, _, _ = select.select([fd], [], [], SECONDS)
    os.close(fd)
    assert readable, "a child is left behind"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_end_from_outside_leaves_no_child(signum: signal.Signals, code: int) -> None:
    with spawn("demo", "--tokens", "4096", CACHEFW_DEBUG="1") as process:
        fds = [os.pidfd_open(pid) for pid in started(process).values()]
        process.send_signal(signum)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert "Traceback" not in err
    for fd in fds:
        wait_for_the_end(fd)
