"""Finding plugins: a broken one is named with its reason and harms no other, and none is loaded before it is asked for.

Each distribution is written by hand, as an installer would leave it.
"""

from __future__ import annotations

import pytest

from cachefw import CacheManager, MemoryRegion, PluginError, RegistrationError, TransportUnavailable, hookimpl
from cachefw.config import DEFAULT_TRANSPORT
from cachefw.plugins import PluginState, catalogue
from cachefw.rules import Finding, Outcome
from cachefw.testing import MemoryTransport

GOOD = """
    from cachefw.hookspecs import hookimpl
    from cachefw.testing import MemoryTransport

    @hookimpl
    def cachefw_transports():
        yield MemoryTransport.info_named("it")
    """
HEAD = "from cachefw.hookspecs import hookimpl\nfrom cachefw.testing import MemoryTransport\nimport attrs\n"
OFFER = HEAD + "@hookimpl\ndef cachefw_transports(): "
BROKEN = {
    "import": ("import no_such_module_here", "importing it raised ModuleNotFoundError: No module named 'no_such"),
    "exit": ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
    "syntax": ("def (", "importing it raised SyntaxError"),
    "library": ("import ctypes; ctypes.CDLL('libnosuch.so.9')", "importing it raised OSError: libnosuch.so.9"),
    "misspelt": (
        HEAD + "@hookimpl\ndef cachefw_validate_memmory(request): ...",
        "it implements an unknown hook 'cachefw_validate_memmory'; did you mean 'cachefw_validate_memory'?",
    ),
    "unlike any": (HEAD + "@hookimpl\ndef cachefw_zzz(): ...", "it implements an unknown hook 'cachefw_zzz'"),
    "argument": (HEAD + "@hookimpl\ndef cachefw_validate_memory(request, extra): ...", "extra"),
    "version": (
        OFFER + "yield attrs.evolve(MemoryTransport.info_named('it'), contract=99)",
        "it is written for version 99 of the plugin contract; this is version 1",
    ),
    "value": (OFFER + "return ['it']", "cachefw_transports() yielded 'it', not a T"),
    "nothing to iterate": (OFFER + "return 5", "cachefw_transports() raised TypeError"),
    "raises": (OFFER + "raise OSError(5, 'x')", "cachefw_transports() raised OSError"),
    "exits": (OFFER + "raise SystemExit(4)", "cachefw_transports() raised SystemExit"),
    "other name": (
        OFFER + "yield MemoryTransport.info_named('that')",
        "its entry point is named 'it' and it offers 'that'",
    ),
}


@pytest.fixture
def good(site):
    """A plugin that works, beside whatever a test installs."""
    site.install_memory()


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_with_its_reason_and_harms_no_other(site, source, reason):
    site.install("cachefw-it", "it", source)
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            CacheManager(["memory", "it"])
        error = caught.value
        assert str(error).startswith(f"plugin 'it' of cachefw-it 1.2 (cachefw_it, in {site.path}) is broken: ")
        assert reason in str(error)
        assert (error.code, error.transport) == ("plugin.broken", "it")
        assert error.facts == {"distribution": "cachefw-it", "version": "1.2", "path": str(site.path)}
    plugin = catalogue.probe("it")
    assert (plugin.state, plugin.reason) == (PluginState.BROKEN, str(error).partition(" is broken: ")[2])
    with CacheManager(["memory", DEFAULT_TRANSPORT]) as manager:
        assert manager.transports == ("memory", DEFAULT_TRANSPORT)


def test_a_failed_import_keeps_its_traceback(site):
    site.install("cachefw-it", "it", "def fail():\n    return 1 // 0\nfail()")
    with pytest.raises(PluginError) as caught:
        catalogue.get("it")
    assert "in fail" in caught.value.detail


@pytest.mark.usefixtures("good")
def test_two_distributions_of_one_name_are_both_out(site):
    site.install("cachefw-it", "it", GOOD)
    site.install("other-it", "it", GOOD)
    with pytest.raises(PluginError, match=r"cachefw-it 1\.2 \(in .*\) and other-it 1\.2 \(in .*\) both bring"):
        CacheManager(["it"])
    assert catalogue.get("memory").state is PluginState.LOADED


def test_an_unknown_name_is_answered_with_a_near_one(site):
    site.install("cachefw-it", "fabric", GOOD)
    with pytest.raises(TransportUnavailable) as caught:
        CacheManager(["fabrik"])
    assert "transport 'fabrik' is not installed: did you mean 'fabric'? installed are 'fabric'" in str(caught.value)
    assert "pip install cachefw-fabrik" in str(caught.value)
    assert caught.value.facts["installed"] == sorted(catalogue.plugins())
    with pytest.raises(TransportUnavailable, match="transport 'zzz' is not installed: installed are"):
        catalogue.probe("zzz")


def test_an_installed_plugin_goes_before_the_embedded_one(site):
    site.install("cachefw-host", DEFAULT_TRANSPORT, GOOD.replace('"it"', f"{DEFAULT_TRANSPORT!r}"), module="standalone")
    plugin = catalogue.plugins()[DEFAULT_TRANSPORT]
    assert (plugin.distribution, plugin.version, plugin.target) == ("cachefw-host", "1.2", "standalone")
    with CacheManager() as manager:
        assert isinstance(manager.transport(DEFAULT_TRANSPORT), MemoryTransport)


@pytest.mark.usefixtures("good")
def test_a_distribution_whose_metadata_cannot_be_read_harms_no_other(site):
    site.install("broken", "it", GOOD, entry_points="[cachefw.plugins]\nno equals sign\n")
    with pytest.warns(RuntimeWarning, match="the entry points of broken in .* cannot be read"):
        assert catalogue.plugins()["memory"].distribution == "cachefw-memory"


@pytest.mark.usefixtures("good")
def test_metadata_alone_imports_nothing(site):
    site.install("cachefw-it", "it", "raise RuntimeError('imported')")
    plugin = catalogue.plugins()["it"]
    assert (plugin.state, plugin.reason, plugin.module) == (PluginState.DISCOVERED, "", None)


def test_importing_cachefw_loads_no_plugin_and_little_else(site):
    site.install("cachefw-it", "it", "raise SystemExit('loaded')")
    code = """
        import sys
        import cachefw
        heavy = {"asyncio", "rich", "click", "numpy", "pluggy", "cachefw_it", "_cachefw_embedded", "importlib.metadata"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        cachefw.CacheManager, cachefw.Plan, cachefw.CacheDesc
        heavy = {"asyncio", "rich", "click", "cachefw_it", "_cachefw_embedded"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """
    done = site.run(code)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- runtimes


def faulty(**methods):
    """The source of a plugin whose transport has these methods, each an expression."""
    lines = "".join(f"    def {name}(self, *args): return {body}\n" for name, body in methods.items())
    return f"""{HEAD}
def fail(error): raise error
class Faulty(MemoryTransport):
    pass
{lines}
@hookimpl
def cachefw_transports():
    yield Faulty.info_named("it")
"""


@pytest.mark.usefixtures("good", "leaves_nothing")
def test_a_missing_runtime_is_no_broken_plugin(site):
    site.install("cachefw-it", "it", faulty(probe="'libit.so is not here; tried /usr/lib'"))
    with pytest.raises(TransportUnavailable, match=r"transport 'it' cannot be used here: libit\.so is not here"):
        CacheManager(["memory", "it"])
    plugin = catalogue.probe("it")
    assert (plugin.state, plugin.reason) == (PluginState.UNAVAILABLE, "libit.so is not here; tried /usr/lib")


@pytest.mark.usefixtures("good", "leaves_nothing")
@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ({"probe": "fail(KeyError('x'))"}, r"probe\(\) raised KeyError\('x'\)"),
        ({"open": "fail(OSError(5, 'x'))"}, r"open\(\) raised OSError\(5, 'x'\)"),
        ({"__init__": "fail(OSError(5, 'x'))"}, r"its factory raised OSError\(5, 'x'\)"),
        ({"__new__": "object()"}, r"its factory made <object object at .*>, not a Transport"),
    ],
    ids=["probe", "open", "factory", "no transport"],
)
def test_a_transport_that_raises_anything_is_a_broken_plugin(site, methods, reason):
    site.install("cachefw-it", "it", faulty(**methods))
    with pytest.raises(PluginError, match=f"plugin 'it' of cachefw-it 1.2 .cachefw_it, in .* is broken: {reason}"):
        CacheManager(["memory", "it"])
    if "open" not in methods:
        plugin = catalogue.probe("it")
        assert plugin.state is PluginState.BROKEN
        assert plugin.reason.count("raised") <= 1
        assert "is broken" not in plugin.reason


@pytest.mark.usefixtures("good", "leaves_nothing")
def test_a_transport_s_own_refusal_passes_through(site):
    site.install("cachefw-it", "it", faulty())
    with pytest.raises(ValueError, match="transport 'it' has no setting 'speed'"):
        CacheManager(["memory", "it"], settings={"it": {"speed": 9}})


# ---------------------------------------------------------------------- plugins given as objects

REGION = MemoryRegion(0x1000, 64)


class Policy:
    """At most 100 bytes."""

    @hookimpl
    def cachefw_validate_memory(self, request):
        assert request.transport is None
        total = request.registered_bytes + sum(region.length for region in request.regions)
        fine = Outcome.OK if total <= 100 else Outcome.REFUSED
        return [Finding("site.memory", fine, f"{total} bytes of the 100 allowed", fix="ask for more")]


def test_policies_are_asked_once_and_may_refuse(make_manager):
    manager = make_manager(plugins=[Policy()])
    manager.register_memory(REGION)
    with pytest.raises(RegistrationError, match=r"1\. site\.memory: 128 bytes of the 100 allowed\n +-> ask for more"):
        manager.register_memory(MemoryRegion(0x2000, 64))
    assert [memory.region for memory in manager.memories] == [REGION]


class Raises:
    @hookimpl
    def cachefw_validate_memory(self, request):
        raise ZeroDivisionError("oops")


class Yields:
    @hookimpl
    def cachefw_validate_memory(self, request):
        yield "fine"


@pytest.mark.parametrize(
    ("plugin", "words"), [(Raises, r"raised ZeroDivisionError\('oops'\)"), (Yields, "returned 'fine', not a Finding")]
)
def test_rules_that_cannot_be_run_refuse_and_name_their_plugin(make_manager, plugin, words):
    manager = make_manager(plugins=[plugin()])
    with pytest.raises(RegistrationError, match=f"of plugin '{plugin.__name__}.* could not be run: it {words}"):
        manager.register_memory(REGION)
    assert manager.memories == []


def test_rules_of_a_transport_s_own_plugin_carry_its_name(site, make_manager):
    source = GOOD + (
        "\n"
        "    @hookimpl\n"
        "    def cachefw_validate_memory(request):\n"
        "        from cachefw.rules import Finding, Outcome\n"
        "        assert request.transport == 'it'\n"
        "        return [Finding('it.never', Outcome.REFUSED, f'{len(request.regions)} regions', fix='none')]\n"
    )
    site.install("cachefw-it", "it", source)
    with pytest.raises(RegistrationError, match=r"it\.never \(it\): 1 regions") as caught:
        make_manager(["memory", "it"]).register_memory(REGION)
    assert (caught.value.code, caught.value.transport) == ("it.never", "it")


class Observer:
    def __init__(self):
        self.seen = []

    @hookimpl
    def cachefw_memory_registered(self, cache):
        self.seen.append(("registered", cache.cache_id))
        raise RuntimeError("observer")

    @hookimpl
    def cachefw_memory_unregistered(self, cache):
        self.seen.append(("unregistered", cache.cache_id))


def test_observers_that_raise_are_reported_once_and_break_nothing(make_manager, tensors, recwarn):
    broken, good = Observer(), Observer()
    good.cachefw_memory_registered = hookimpl(lambda cache: good.seen.append(("registered", cache.cache_id)))
    manager = make_manager(plugins=[broken, good])
    made = [tensors(1, 1, 64) for _ in range(2)]
    with pytest.warns(RuntimeWarning, match=r"cachefw_memory_registered raised RuntimeError\('observer'\)") as warned:
        caches = [manager.register_cache(each.desc, each.addrs) for each in made]
    assert len(warned) == 1
    manager.unregister_cache(caches[0].cache_id)
    manager.close()
    expected = [("registered", 1), ("registered", 2), ("unregistered", 1), ("unregistered", 2)]
    assert broken.seen == good.seen == expected


class Wrapper:
    def __init__(self):
        self.seen = []

    @hookimpl(wrapper=True)
    def cachefw_register_memory(self, region, transport):
        registered = yield
        self.seen.append((transport.info.name, registered.region))
        return registered

    @hookimpl(wrapper=True)
    def cachefw_unregister_memory(self, registered, transport):
        done = yield
        self.seen.append(done)
        return done


def test_wrappers_see_each_native_call(make_manager):
    wrapper = Wrapper()
    manager = make_manager(plugins=[wrapper])
    manager.unregister_memory(manager.register_memory(REGION))
    assert wrapper.seen == [("memory", REGION), True]


class Misspelt:
    @hookimpl
    def cachefw_memory_registred(self, cache): ...


@pytest.mark.usefixtures("good", "leaves_nothing")
@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        ([Misspelt()], "unknown hook 'cachefw_memory_registred'; did you mean 'cachefw_memory_registered'"),
        ([Policy] * 2, "is given twice"),
    ],
    ids=["misspelt", "twice"],
)
def test_objects_that_are_no_plugins_are_refused_and_nothing_stays_open(plugins, words):
    with pytest.raises(PluginError, match=words):
        CacheManager(["memory"], plugins=plugins)
