"""Plugins that hang, end the interpreter or change the process; nine distributions, good and bad, in every order.

Tried with the pluggy that is installed; tox has an environment for each of the versions that differ.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import sys
import threading

import pytest

from cachefw import CacheManager, PluginError, RequestError, TransportUnavailable
from cachefw.discovery import PluginState
from cachefw.loading import adopt
from cachefw.plugins import catalogue

HEAD = "from cachefw.hookspecs import hookimpl\nfrom cachefw.testing import MemoryTransport\nimport attrs\n"
OFFER = HEAD + "@hookimpl\ndef cachefw_transports():\n    yield MemoryTransport.info_named({name!r})\n"

# Distribution -> the plugin's name, its source, and the reason for which it is out.
NINE = {
    "cachefw-good": ("good", OFFER.format(name="good"), ""),
    "cachefw-import": ("import", "import no_such_module_here", "importing it raised ModuleNotFoundError"),
    "cachefw-exit": ("exit", "raise SystemExit(3)", "importing it raised SystemExit: 3"),
    "cachefw-library": ("library", "import ctypes; ctypes.CDLL('libnosuch.so.9')", "raised OSError: libnosuch.so.9"),
    "cachefw-twin": ("twin", OFFER.format(name="twin"), "both bring a plugin of this name"),
    "another-twin": ("twin", OFFER.format(name="twin"), "both bring a plugin of this name"),
    "cachefw-misspelt": (
        "misspelt",
        OFFER.format(name="misspelt") + "@hookimpl\ndef cachefw_regster_memory(region): ...",
        "unknown hook 'cachefw_regster_memory'; did you mean 'cachefw_register_memory'?",
    ),
    "cachefw-argument": (
        "argument",
        OFFER.format(name="argument") + "@hookimpl\ndef cachefw_validate_memory(request, extra): ...",
        "extra",
    ),
    "cachefw-version": (
        "version",
        HEAD + "@hookimpl\ndef cachefw_transports():\n"
        "    yield attrs.evolve(MemoryTransport.info_named('version'), contract=99)",
        "version 99 of the plugin contract",
    ),
}


def orders():
    """Every ordered pair of the nine as the first two, the others after them in an order drawn with a fixed seed.

    All 362 880 orders would take hours, and what can go wrong between plugins goes wrong between two of them.
    """
    draw = random.Random(23)
    for first, second in itertools.permutations(NINE, 2):
        rest = [name for name in NINE if name not in (first, second)]
        draw.shuffle(rest)
        yield [first, second, *rest]


@pytest.fixture
def nine(tmp_path, monkeypatch):
    """Each of the nine in a directory of its own; returns a function that puts them on the path in an order."""
    folders = {}
    for distribution, (name, source, _) in NINE.items():
        folder = folders[distribution] = tmp_path / distribution
        module = distribution.replace("-", "_")
        info = folder / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[cachefw.plugins]\n{name} = {module}\n")
    others = list(sys.path)

    def install(order):
        for distribution in NINE:
            sys.modules.pop(distribution.replace("-", "_"), None)
        monkeypatch.setattr(sys, "path", [*(str(folders[name]) for name in order), *others])
        catalogue.forget()
        return folders

    yield install
    for distribution in NINE:
        sys.modules.pop(distribution.replace("-", "_"), None)
    catalogue.forget()


def test_nine_distributions_in_every_pairwise_order(nine):
    tried = 0
    for order in orders():
        folders = nine(order)
        for distribution in order:
            name, _, reason = NINE[distribution]
            if not reason:
                assert catalogue.get(name).state is PluginState.LOADED
                continue
            said = set()
            for _ in range(2):
                with pytest.raises(PluginError) as caught:
                    catalogue.get(name)
                said.add(str(caught.value))
            (text,) = said
            assert reason in text
            assert f"{distribution} 1.2" in text
            assert str(folders[distribution]) in text
        with CacheManager(["good"]) as manager:
            names = {name for name, _ in manager.hooks._manager.list_name_plugin()}
            assert names == {"the core", "good"}
        tried += 1
    assert tried == 72


def test_a_refused_plugin_is_nowhere_half_registered(make_manager):
    """Pluggy 1.5 and 1.6 keep the name of a plugin that they refuse, and the hooks read before the bad one."""

    class Half:
        def __init__(self):
            self.asked = 0

        def cachefw_validate_memory(self, request):
            self.asked += 1
            return []

        def cachefw_register_memory(self, region, transport, nonsense): ...

    from cachefw import MemoryRegion, hookimpl

    half = Half()
    half.cachefw_validate_memory = hookimpl(half.cachefw_validate_memory.__func__).__get__(half)
    half.cachefw_register_memory = hookimpl(half.cachefw_register_memory.__func__).__get__(half)
    manager = make_manager()
    assert "nonsense" in adopt(half, "half")
    with pytest.raises(PluginError, match="nonsense"):
        make_manager(plugins=[half])
    manager.register_memory(MemoryRegion(0x1000, 64))
    assert half.asked == 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            HEAD + "@hookimpl(optionalhook=True)\ndef cachefw_regster_memory(region): ...",
            "unknown hook 'cachefw_regster_memory'",
        ),
        (
            HEAD + "def cachefw_validate_memory(request): ...",
            r"its function cachefw_validate_memory\(\) is not marked with @hookimpl",
        ),
        ("x = 1", "it implements no hook"),
        ("raise KeyboardInterrupt", "importing it raised KeyboardInterrupt"),
        (
            "import signal\nsignal.signal(signal.SIGHUP, print)",
            r"importing it installs a signal handler \(.*cachefw_it\.py:2\), which is for the application",
        ),
    ],
    ids=["optional hook", "unmarked", "nothing", "interrupt", "signal handler"],
)
def test_what_pluggy_lets_pass_is_refused(site, source, reason):
    site.install("cachefw-it", "it", source)
    with pytest.raises(PluginError, match=reason):
        catalogue.get("it")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setenv("CACHEFW_PLUGIN_TIMEOUT", "0.3")


@pytest.fixture
def gate():
    """An event that a plugin waits for while it is imported; set at the end, so that its thread ends."""
    before = set(threading.enumerate())
    builtin = threading.gate = threading.Event()
    yield builtin
    builtin.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    del threading.gate


@pytest.mark.usefixtures("short")
def test_an_import_that_hangs_is_left_behind_with_the_place_where_it_hangs(site, gate):
    site.install_memory()
    site.install("cachefw-it", "it", "import threading\ndef dial():\n    threading.gate.wait()\ndial()\n")
    with pytest.raises(PluginError) as caught:
        catalogue.get("it")
    text = str(caught.value)
    assert "importing it had not ended after 0.3 s; it is at " in text
    assert "CACHEFW_PLUGIN_TIMEOUT gives it longer" in text
    assert "in dial" in caught.value.detail
    with CacheManager(["memory"]) as manager:
        assert manager.transports == ("memory",)
    gate.set()
    with pytest.raises(PluginError, match=r"had not ended after 0\.3 s"):
        catalogue.get("it")


def test_one_that_is_being_imported_keeps_nobody_from_the_others(site, gate):
    site.install_memory()
    site.install("cachefw-it", "it", OFFER.format(name="it") + "import threading\nthreading.gate.wait()\n")
    waiting = threading.Thread(target=catalogue.get, args=["it"])
    waiting.start()
    assert catalogue.get("memory").state is PluginState.LOADED
    assert waiting.is_alive()
    gate.set()
    waiting.join(10)
    assert catalogue.get("it").state is PluginState.LOADED


def changes_of(site, caplog, statement):
    site.install("cachefw-it", "it", OFFER.format(name="it") + statement)
    with caplog.at_level(logging.WARNING, "cachefw"):
        plugin = catalogue.get("it")
    assert plugin.state is PluginState.LOADED
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"{plugin}: {change}" for change in plugin.changes]
    return list(plugin.changes)


def test_a_changed_environment_is_reported_by_name_and_without_values(site, caplog, monkeypatch):
    monkeypatch.setenv("CACHEFW_TEST_A", "1")
    monkeypatch.setenv("CACHEFW_TEST_B", "1")
    statement = "import os\nos.environ['CACHEFW_TEST_A'] = 'secret'\nos.environ.pop('CACHEFW_TEST_B')\n"
    said = changes_of(site, caplog, statement)
    assert said == ["while it was loaded, it changed the environment variables CACHEFW_TEST_A, CACHEFW_TEST_B"]


def test_threads_are_reported_by_name(site, caplog, gate):
    statement = "import threading\nthreading.Thread(target=threading.gate.wait, name='lurker', daemon=True).start()\n"
    assert changes_of(site, caplog, statement) == ["while it was loaded, it started threads: 1 of Python's (lurker)"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the kernel's view of signals is read from /proc")
def test_a_native_signal_handler_is_reported_by_name(site, caplog):
    """Set behind Python's back, as a shared library does when it is loaded."""
    before = signal.getsignal(signal.SIGUSR2)
    statement = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.signal.restype = ctypes.c_void_p\n"
        "libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]\n"
        "libc.signal(12, ctypes.cast(libc.abs, ctypes.c_void_p))\n"
    )
    try:
        assert changes_of(site, caplog, statement) == ["while it was loaded, it changed what happens on SIGUSR2"]
    finally:
        signal.signal(signal.SIGUSR2, before or signal.SIG_DFL)


# ---------------------------------------------------------------------- bisecting


def test_only_the_plugins_that_are_named(site, monkeypatch):
    for name in ("one", "two", "three"):
        site.install_memory(name)
    monkeypatch.setenv("CACHEFW_PLUGINS", "one, two")
    assert catalogue.get("one").state is PluginState.LOADED
    with pytest.raises(TransportUnavailable, match="transport 'three' is not used: CACHEFW_PLUGINS does not name it"):
        CacheManager(["three"])
    assert catalogue.probe("three").state is PluginState.DISABLED


def test_all_but_the_plugins_that_are_named(site, monkeypatch):
    site.install_memory("one")
    site.install("cachefw-it", "it", "raise SystemExit(1)")
    monkeypatch.setenv("CACHEFW_DISABLE_PLUGINS", "it")
    assert catalogue.probe("it").state is PluginState.DISABLED
    assert "cachefw_it" not in sys.modules
    with pytest.raises(TransportUnavailable, match="CACHEFW_DISABLE_PLUGINS leaves it out"):
        catalogue.get("it")
    assert catalogue.get("one").state is PluginState.LOADED


def test_one_of_two_that_bring_the_same_name_can_be_left_out_by_its_distribution(site, monkeypatch):
    site.install("cachefw-it", "it", OFFER.format(name="it"))
    site.install("other-it", "it", "raise SystemExit(1)")
    monkeypatch.setenv("CACHEFW_DISABLE_PLUGINS", "other-it")
    assert catalogue.get("it").distribution == "cachefw-it"


@pytest.mark.parametrize("variable", ["CACHEFW_PLUGINS", "CACHEFW_DISABLE_PLUGINS"])
def test_a_name_that_is_not_installed_is_answered_with_a_near_one(site, monkeypatch, variable):
    site.install_memory("fabric")
    monkeypatch.setenv(variable, "fabrik")
    with pytest.raises(RequestError, match=f"{variable} names 'fabrik', which is not installed: did you mean 'fabric'"):
        CacheManager(["fabric"])


def test_a_second_version_further_down_the_path_is_shown_and_not_used(site, tmp_path, monkeypatch):
    site.install("cachefw-it", "it", OFFER.format(name="it"))
    old = tmp_path / "old" / "cachefw_it-0.9.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: cachefw-it\nVersion: 0.9\n")
    (old / "entry_points.txt").write_text("[cachefw.plugins]\nit = cachefw_it\nwas = cachefw_it\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(old.parent)])
    catalogue.forget()
    assert catalogue.get("it").version == "1.2"
    assert {hidden.name for hidden in catalogue.hidden()} == {"it", "was"}
    with pytest.raises(TransportUnavailable, match=r"cachefw-it 0\.9 in .*old brings 'was' and is hidden by cach"):
        catalogue.get("was")


def test_metadata_of_others_is_not_read(site):
    """What makes a hundred distributions cheap: of one without plugins only the list of entry points is opened."""
    for number in range(100):
        info = site.path / f"other{number}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_bytes(b"\xff\xfe no metadata at all")
        if number % 2:
            info.joinpath("entry_points.txt").write_text("[console_scripts]\nx = y:z\n")
    code = """
        import importlib.metadata as metadata
        read = metadata.PathDistribution.read_text
        opened = []
        def spy(self, name):
            opened.append((str(self._path), name))
            return read(self, name)
        metadata.PathDistribution.read_text = spy
        from cachefw.plugins import catalogue
        catalogue.plugins()
        others = {name for path, name in opened if "/other" in path}
        assert others == {"entry_points.txt"}, others
        """
    done = site.run(code)
    assert done.returncode == 0, done.stderr
