"""What the core's tests share: distributions written for one test, managers, and linked nodes. None leaves a trace."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import numpy as np
import pytest

from cachefw import CacheDesc, CacheManager, DataType, Node, Placement, RegistrationError
from cachefw.plugins import catalogue
from cachefw.testing._usage import Usage

# Helpers of these tests; with importlib mode their folder is on no path.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(config, items):
    """Leave out what takes long, unless `-m` speaks of it."""
    if "long" in config.option.markexpr.replace("(", " ").replace(")", " ").split():
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def long_seconds(request):
    """How long a test marked `long` goes on: `CACHEFW_LONG`, or ten minutes."""
    seconds = float(os.environ.get("CACHEFW_LONG", "600"))
    limit = float(request.config.getini("faulthandler_timeout") or 0)
    if 0 < limit < seconds + 60:
        pytest.fail(
            f"it goes on for {seconds:g} s, and pytest is to end a test after {limit:g} s: "
            f"add -o faulthandler_timeout={seconds + 300:g}"
        )
    return seconds


MEMORY_PLUGIN = """
    from cachefw.hookspecs import hookimpl
    from cachefw.memory import MemoryKind
    from cachefw.testing import MemoryTransport
    from cachefw.transport import Capability

    @hookimpl
    def cachefw_transports():
        yield MemoryTransport.info_named({name!r}, kinds={kinds})
    """


class Site:
    """A directory of hand-written distributions that stands before all others on the path."""

    def __init__(self, path):
        self.path = path

    def install(self, distribution, name, source, *, module=None, entry_points=None):
        """Write a distribution whose plugin `name` is a module with this source."""
        module = module or distribution.replace("-", "_")
        self.path.joinpath(f"{module}.py").write_text(textwrap.dedent(source))
        info = self.path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        text = f"[cachefw.plugins]\n{name} = {module}\n" if entry_points is None else entry_points
        info.joinpath("entry_points.txt").write_text(text)
        importlib.invalidate_caches()
        catalogue.forget()

    def install_memory(self, name="memory", kinds="MemoryKind"):
        """Write a distribution that brings a transport within this process, for all kinds of memory."""
        source = MEMORY_PLUGIN.format(name=name, kinds=kinds)
        self.install(f"cachefw-{name}", name, source, module=f"plugin_{name}")

    def run(self, code, **environment):
        """Run code in a new interpreter that sees these distributions."""
        path = os.pathsep.join([str(self.path), *sys.path])
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    catalogue.forget()


@pytest.fixture(scope="session")
def _warm():
    """What the process takes once and keeps is no leak of the test that happens to be the first."""
    node = Node(1, "127.0.0.1:0", transports=["host"])
    other = Node(2, transports=["host"])
    with node, other:
        other.link(node.address)


@pytest.fixture
def leaves_nothing(_warm):
    """The process holds as many descriptors, threads and mappings as before."""
    before = Usage.now()
    yield
    leaked = before.leaked()
    assert not leaked, f"left behind: {'; '.join(leaked)}"


@pytest.fixture
def make_manager(site, leaves_nothing):
    """Makes managers on the transport ``memory``, and closes them."""
    site.install_memory()
    with contextlib.ExitStack() as stack:
        yield lambda transports=("memory",), **options: stack.enter_context(CacheManager(transports, **options))


@pytest.fixture
def manager(make_manager):
    return make_manager()


@pytest.fixture(params=["memory", "host"])
def transport(request):
    return request.param


@pytest.fixture
def nodes(site, leaves_nothing, transport):
    """Two nodes of one process, clusters 1 and 2, the first linked to the second."""
    site.install_memory()
    with Node(1, transports=[transport]) as one, Node(2, "127.0.0.1:0", transports=[transport]) as two:
        one.link(two.address)
        yield one, two


class Tensors:
    """Arrays of one cache, and the arguments that register them."""

    def __init__(self, desc, arrays):
        self.desc = desc
        self.arrays = arrays

    @property
    def addrs(self):
        return [array.ctypes.data for array in self.arrays]

    def bytes(self):
        return [array.tobytes() for array in self.arrays]


@pytest.fixture
def tensors():
    """Makes the host tensors of a cache, filled with bytes that differ everywhere: (count, rows, bytes of a row)."""

    def make(count, rows, stride, seed=0):
        random = np.random.default_rng(seed)
        arrays = [random.integers(0, 256, (rows, stride), np.uint8) for _ in range(count)]
        return Tensors(CacheDesc(count, (rows, stride), DataType.DT_UINT8, Placement.HOST), arrays)

    return make


@attrs.frozen
class Refusal:
    """The error of a register call, and what was planned for the same arguments."""

    error: RegistrationError

    @property
    def findings(self):
        return [finding for finding in self.error.findings if finding.outcome.value == "refused"]

    @property
    def rules(self):
        return [finding.rule for finding in self.findings]

    def one(self, rule):
        """The only finding of a rule."""
        (found,) = [finding for finding in self.findings if finding.rule == rule]
        return found


@pytest.fixture
def refused():
    """Registers what must be refused, and checks what holds for every refusal.

    The plan says the same, the error is of both families and shows each finding with what to do, and nothing changed.
    """

    def check(manager, desc, addrs, keys=None, remote_accessible=None, *, blocks=False):
        if keys is None and not blocks:
            keys = ()
        before = snapshot(manager)
        plan = manager.plan(desc, addrs, keys, remote_accessible, blocks=blocks)
        call = manager.register_blocks_cache if blocks else manager.register_cache
        with pytest.raises(RegistrationError) as caught:
            call(desc, addrs, keys, remote_accessible)
        error = caught.value
        assert error.findings == plan.findings
        assert not plan.ok
        assert error.operation == plan.operation == call.__name__
        for finding in plan.refused:
            assert isinstance(error, finding.builtin)
            assert finding.message in error.message
            assert finding.fix
            assert finding.fix in error.message
        assert f"{len(plan.refused)}. {plan.refused[-1].rule}" in error.message
        assert plan.table(120)
        assert snapshot(manager) == before
        return Refusal(error)

    return check


def snapshot(manager):
    """What is registered, in the core and in the transports that tell."""
    memories = [(memory.memory_id, memory.region, memory.users, memory.state) for memory in manager.memories]
    native = [len(getattr(manager.transport(name), "_registered", ())) for name in manager.transports]
    return list(manager.caches), memories, native, manager.registry.counts()


@pytest.fixture(name="snapshot")
def snapshot_fixture():
    return snapshot
