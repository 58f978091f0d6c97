"""Policies that are installed: in force without being named, and kept apart when they are broken."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from cachefw import CacheManager, MemoryRegion, Outcome, PluginError, RegistrationError
from cachefw.plugins import PluginState, catalogue

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "policies"
REGION = MemoryRegion(0x1000, 64)


@pytest.fixture
def policy(site):
    """Installs an example by what its pyproject.toml says, as an installer would; returns its module's name."""

    def install(name):
        project = (EXAMPLES / name / "pyproject.toml").read_text()
        (entry,) = re.findall(
            r'^\[project\.entry-points\."cachefw\.policies"\]\n(\S+) = "(\w+)"$', project, re.MULTILINE
        )
        assert entry[0] == name
        module = entry[1]
        source = (EXAMPLES / name / f"{module}.py").read_text()
        entries = f"[cachefw.policies]\n{name} = {module}\n"
        site.install(f"cachefw-{name}", name, source, module=module, entry_points=entries)
        return module

    return install


def install_policy(site, source, name="rule"):
    site.install(f"cachefw-{name}", name, source, entry_points=f"[cachefw.policies]\n{name} = cachefw_{name}\n")


def test_a_site_rule_counts_all_managers_of_a_process(make_manager, policy, monkeypatch):
    policy("site-limit")
    monkeypatch.setenv("SITE_LIMIT_GIB", str(200 / 2**30))
    one, two = make_manager(), make_manager()
    one.register_memory(REGION)
    two.register_memory(REGION)
    memory = two.register_memory(MemoryRegion(0x2000, 128))
    with pytest.raises(RegistrationError, match=r"site\.limit: 256 bytes in this process, of the 200 allowed"):
        one.register_memory(MemoryRegion(0x3000, 64))
    two.unregister_memory(memory)
    one.register_memory(MemoryRegion(0x3000, 64))


def test_an_audit_wraps_what_is_registered(make_manager, policy, tmp_path, monkeypatch):
    policy("registration-audit")
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("REGISTRATION_AUDIT", str(path))
    manager = make_manager()
    manager.transport("memory").fail_next("register")
    with pytest.raises(RegistrationError):
        manager.register_memory(REGION)
    manager.unregister_memory(manager.register_memory(REGION))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["refused", "registered", "given back"]
    assert {(line["transport"], line["address"], line["length"]) for line in lines} == {("memory", "0x1000", 64)}
    assert lines[0]["error"] == "register fails on request"


def test_transfers_are_exported(site, policy, tmp_path, monkeypatch, leaves_nothing):
    from cachefw import Node

    module = policy("transfer-export")
    site.install_memory()
    path = tmp_path / "transfers.prom"
    monkeypatch.setenv("TRANSFER_EXPORT", str(path))
    here, there = np.zeros(4096, np.uint8), np.ones(4096, np.uint8)
    with Node(1, transports=["memory"]) as one, Node(2, "127.0.0.1:0", transports=["memory"]) as two:
        one.cache_manager.register_memory(here)
        two.cache_manager.register_memory(there, remote_accessible=True)
        link = one.link(two.address)
        for _ in range(3):
            link.read(here.ctypes.data, there.ctypes.data, 1000)
    sys.modules[module].write()
    text = path.read_text()
    labels = '{cluster="2",transport="memory",path="inline",operation="read",outcome="done",code=""}'
    assert f"cachefw_transfers_total{labels} 3\n" in text
    assert f"cachefw_bytes_total{labels} 3000\n" in text
    assert [line.name for line in tmp_path.glob("transfers*")] == ["transfers.prom"]


def test_a_policy_that_cannot_be_loaded_is_not_checked_and_never_reads_as_good(site, make_manager):
    install_policy(site, "import no_such_module_here")
    manager = make_manager()
    manager.register_memory(REGION)
    with pytest.raises(RegistrationError) as caught:
        make_manager(strict=True).register_memory(REGION)
    (finding,) = [finding for finding in caught.value.findings if finding.rule == "core.plugin"]
    assert finding.outcome is Outcome.NOT_CHECKED
    assert "plugin 'rule' of cachefw-rule 1.2" in finding.message
    assert "No module named 'no_such_module_here'" in finding.message
    assert finding.fix == "mend it, or leave it out: CACHEFW_DISABLE_PLUGINS=rule"


def test_a_policy_is_left_out_by_its_name(site, make_manager, monkeypatch):
    install_policy(site, "import no_such_module_here")
    monkeypatch.setenv("CACHEFW_DISABLE_PLUGINS", "rule")
    catalogue.forget()
    make_manager(strict=True).register_memory(REGION)


def test_a_policy_offers_no_transport(site):
    source = "from cachefw.testing import MemoryTransport\nfrom cachefw import hookimpl\n"
    install_policy(site, source + "@hookimpl\ndef cachefw_transports(): yield MemoryTransport.info_named('rule')\n")
    with pytest.raises(PluginError, match="it offers a transport, and its entry point is in the group of policies"):
        catalogue.get("rule")
    assert [plugin.state for plugin in catalogue.policies()] == [PluginState.BROKEN]


def test_a_plugin_is_given_as_an_object_and_not_by_name(site):
    site.install_memory()
    with pytest.raises(PluginError, match="give the plugin itself, not a name"):
        CacheManager(["memory"], plugins=["site-limit"])
