"""The doctor between two processes: what both ends say, what would be chosen, and bytes that really move."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import cachefw
from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement
from cachefw.catalog import Health
from cachefw.cli import main
from cachefw.doctor import exit_code, peer
from cachefw.doctor.layouts import compare_layouts
from cachefw.dry import DryCache
from cachefw.links import answers
from cachefw.links.link import Link
from cachefw.memory import MemoryKind

SECONDS = 60
HOME = Path(cachefw.__file__).resolve().parents[1]
NODE = """
import sys
import time
import numpy as np
from cachefw import *
desc = CacheDesc(2, (64, 16, 128), DataType.DT_FLOAT16, Placement.HOST)
tensors = [np.zeros(desc.shape, np.float16) for _ in range(2)]
with Node(7, listen="127.0.0.1:0", transports=["host"]) as node:
    addrs = [tensor.ctypes.data for tensor in tensors]
    node.cache_manager.register_blocks_cache(desc, addrs, BlocksCacheKey(7), remote_accessible=True)
    print(node.address, flush=True)
    sys.stdin.readline()
    end = time.monotonic() + 30
    while (node.links or len(node.cache_manager.memories) > 2) and time.monotonic() < end:
        time.sleep(0.01)
    print(len(node.cache_manager.memories), len(node.links), flush=True)
"""


@pytest.fixture
def node() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HOME
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def doctor(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["doctor", *arguments])


def test_two_processes(node) -> None:
    address, process = node
    result = doctor(address, "--json")
    report = json.loads(result.output)
    told = {each["check"]: each for each in report["findings"]}
    assert (result.exit_code, report["verdict"]) == (0, "healthy"), report["findings"]
    assert told["link.host"]["health"] == told["transfer.host"]["health"] == "ok"
    assert told["transfer.host"]["facts"]["bytes"] == answers.LENT
    assert told["transfer.host"]["facts"]["path"] in ("cma", "shm")
    assert "host would be chosen" in told["link.choice"]["found"]
    link = report["link"]
    assert link["there"]["cachefw"] == link["here"]["cachefw"]
    assert link["here"]["transports"]["host"]["details"] == link["there"]["transports"]["host"]["details"]
    assert abs(link["offset"]) < 1
    (cache,) = link["caches"]
    assert (cache["sort"], cache["tensors"], cache["rows"], cache["stride"]) == ("blocks", 2, 64, 4096)
    # What was lent is taken back, and no link stays.
    out, _ = process.communicate("\n", timeout=SECONDS)
    assert out.split() == ["2", "0"]


def test_it_fits_a_narrow_terminal(node) -> None:
    address, _ = node
    result = doctor(address, "--transport", "host")
    assert result.exit_code == 0
    # A path may be longer; it has to stay whole to be copied.
    assert all(len(line) <= 80 or " " not in line.strip() for line in result.output.splitlines())
    assert "transfer.host" in result.output
    assert "host: chosen: the first here that both ends have" in result.output
    assert "cache 1: 2 tensors of 64 blocks of 4,096 bytes; keys: blocks of model 0" in result.output


def test_the_bundle_has_both_ends_without_addresses(node, tmp_path: Path) -> None:
    address, _ = node
    path = tmp_path / "both.json"
    assert doctor(address, "--bundle", str(path), "--transport", "host").exit_code == 0
    report = json.loads(path.read_text())
    assert report["link"]["there"]["transports"]["host"]
    assert {each["check"] for each in report["here"]} >= {"system", "plugins", "ports"}


def test_layouts_are_compared_by_field(node, tmp_path: Path) -> None:
    address, _ = node
    path = tmp_path / "mine.json"
    same = {"name": "same", "tensors": 2, "shape": [128, 16, 128], "data_type": "float16", "memory": "host"}
    path.write_text(json.dumps({"caches": [same]}))
    result = doctor(address, "--transport", "host", "--layout", str(path), "-v")
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "same fits cache 1 there: 2 tensors, 4,096 bytes a row; 128 blocks here, 64 there" in said
    other = {"name": "other", "tensors": 4, "shape": [64, 32, 128], "data_type": "float16", "memory": "host"}
    path.write_text(json.dumps({"caches": [other]}))
    result = doctor(address, "--transport", "host", "--layout", str(path))
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "other differs from cache 1 there: 4 tensors here, 2 there" in said
    assert "8,192 bytes a block here, 4,096 there, 2 times as many here" in said


def test_layouts_of_other_sorts() -> None:
    desc = CacheDesc(2, (8, 100), DataType.DT_INT8, Placement.HOST)
    own = DryCache("mine", desc, (4096, 8192), MemoryKind.HOST, blocks=False)
    (told,) = compare_layouts([own], [])
    assert told.health is Health.NOTE
    row = {"id": 4, "sort": "blocks", "tensors": 2, "rows": 8, "stride": 150}
    (told,) = compare_layouts([own], [row])
    assert told.health is Health.BROKEN
    assert "dimension 0 counts rows here and blocks there; 100 bytes a row here, 150 there (block size" in told.found


def test_a_node_with_a_secret_tells_nothing_to_who_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least sixteen bytes")
    secret.chmod(0o600)
    with Node(3, listen="127.0.0.1:0", secret=secret) as there:
        result = doctor(there.address, "--json")
        told = json.loads(result.output)
        assert (result.exit_code, told["verdict"]) == (2, "broken")
        assert told["findings"][0]["facts"]["code"] == "authentication.missing"
        assert "link" not in told
        monkeypatch.setenv("CACHEFW_SECRET_FILE", str(secret))
        result = doctor(there.address, "--json", "--transport", "host")
        assert (result.exit_code, json.loads(result.output)["verdict"]) == (0, "healthy")


def test_nobody_there() -> None:
    result = doctor("127.0.0.1:1")
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "cannot reach 127.0.0.1:1" in said
    assert "likely: no node listens there" in said
    assert "cachefw explain link.unreachable" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["localhost"], 1, "'localhost' is no address"),
        (["127.0.0.1:1", "--transport", "hsot"], 1, "did you mean 'host'?"),
    ],
)
def test_wrong_arguments(arguments: list[str], code: int, said: str) -> None:
    result = doctor(*arguments)
    assert result.exit_code == code
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------- questions


@pytest.fixture
def linked() -> Iterator[tuple[Node, Node, Link]]:
    with Node(1, listen="127.0.0.1:0") as there, Node(2) as here:
        yield there, here, here.link(there.address)


def ask(link: Link, what: str):
    return msgspec.json.decode(link.inquire(what))


def test_what_is_lent_is_registered_once_and_taken_back_with_the_link(linked) -> None:
    there, here, link = linked
    loan = ask(link, "lend")
    assert ask(link, "lend") == loan
    (memory,) = there.cache_manager.memories
    assert (memory.region.address, memory.region.length) == (loan["address"], loan["length"])
    assert memory.label == "lent to a peer that tries a transfer"
    here.unlink(link)
    end = time.monotonic() + SECONDS
    while there.cache_manager.memories and time.monotonic() < end:
        time.sleep(0.01)
    assert there.cache_manager.memories == []
    assert ask(here.link(there.address), "lend")["address"]


def test_questions_that_cannot_be_answered_are_answered_with_why(linked) -> None:
    _, here, link = linked
    assert ask(link, "secrets")["error"] == "there is no question 'secrets'; there are 'facts', 'stats' and 'lend'"
    with Node(3, listen="127.0.0.1:0", limits=_little()) as poor:
        refused = ask(here.link(poor.address), "lend")
        assert refused["code"] == "core.limit.host_bytes"
        assert poor.cache_manager.memories == []


def _little():
    from cachefw import Limits

    return Limits(host_bytes=1)


def test_a_node_that_lends_nothing_is_read_where_it_publishes(linked) -> None:
    with Node(3, listen="127.0.0.1:0", limits=_little()) as poor:
        found, _ = peer.examine_peer(poor.address, _known(), ["host"], 5.0, lambda *_: None)
    told = {each.check: each for each in found}
    assert told["transfer.host"].health is Health.NOT_CHECKED
    assert "publishes none" in told["transfer.host"].found


def _known():
    from cachefw.diagnostics import everything

    return everything()


def test_published_memory_is_read_when_none_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.Answers, "_lend", lambda self, link: {"error": "none to spare", "code": "x"})
    tensor = np.zeros((4, 4096), np.int8)
    desc = CacheDesc(1, tensor.shape, DataType.DT_INT8, Placement.HOST)
    with Node(3, listen="127.0.0.1:0") as there:
        there.cache_manager.register_blocks_cache(desc, [tensor.ctypes.data], BlocksCacheKey(3), remote_accessible=True)
        found, told = peer.examine_peer(there.address, _known(), ["host"], 5.0, lambda *_: None)
    (moved,) = (each for each in found if each.check == "transfer.host")
    assert moved.health is Health.OK
    assert moved.found.startswith("16,384 bytes of published host memory read in")
    assert told["memories"] == [{"length": 16384, "kind": "host memory"}]


def test_bytes_that_arrive_changed_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    lend = answers.Answers._lend
    monkeypatch.setattr(answers.Answers, "_lend", lambda self, link: {**lend(self, link), "sha256": "0" * 64})
    with Node(3, listen="127.0.0.1:0") as there:
        found, _ = peer.examine_peer(there.address, _known(), ["host"], 5.0, lambda *_: None)
    (moved,) = (each for each in found if each.check == "transfer.host")
    assert moved.health is Health.BROKEN
    assert exit_code(found) == 2


def test_what_differs_between_the_ends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = answers.facts

    def other(manager, towards):
        told = facts(manager, towards)
        row = {**told["transports"]["host"], "version": "9.9", "remark": "SIMULATED", "details": {"user": "nobody"}}
        return {**told, "cachefw": "9.9", "clock": told["clock"] + 3600, "mtu": 1400, "transports": {"host": row}}

    monkeypatch.setattr(answers, "facts", other)
    with Node(3, listen="127.0.0.1:0") as there:
        found, _ = peer.examine_peer(there.address, _known(), ["host"], 5.0, lambda *_: None)
    said = [each.found for each in found if each.health in (Health.WARNING, Health.NOTE)]
    for part in ("and 9.9 there", "3600", "MTU is", "its plugin is", "there is nothing", "user: "):
        assert any(part in text or part in each.meaning for text in said for each in found), part
    states = {each.check: each.health for each in found}
    assert states["peer.version"] is states["peer.clock"] is states["peer.mtu"] is Health.WARNING
    assert states["peer.host"] is Health.WARNING


def test_a_transport_that_only_one_end_has_is_said(linked) -> None:
    there, _, _ = linked
    order = ("host", "nowhere-else")
    findings = peer._Findings()
    told = {"there": {"transports": {"rdma": {}, "host": {}}}}
    peer._chosen(order, told, ["host"], findings)
    assert {row["transport"]: row["why"] for row in told["choice"]} == {
        "host": "chosen: the first here that both ends have",
        "nowhere-else": "not open there",
        "rdma": "not asked for here (CACHEFW_TRANSPORTS), and not to be used here",
    }
    peer._chosen(("nowhere-else",), told, [], findings)
    assert findings.found[-1].health is Health.BROKEN
    peer._chosen(("host",), told, [], findings)
    assert findings.found[-1].found == "host would be chosen, and does not work"
    assert there.links
