"""What a node counts and tells: statistics, metrics for Prometheus, spans, log records, `cachefw top`."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import threading
import urllib.request
from pathlib import Path

import attrs
import numpy as np
import pytest
from click.testing import CliRunner

from cachefw import AuthenticationError, BrokenError, Node, Operation, RegistrationError, TransferTimeout
from cachefw.cli import main
from cachefw.links.reporting import ObservedChannel
from cachefw.metrics import Counters, Stats

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 10
SIZE = 4096


@attrs.frozen
class Pair:
    """A node that counts, and its link to one that does not."""

    one: Node
    two: Node
    link: object
    here: np.ndarray
    there: np.ndarray

    def read(self, length=64, offset=0, **options):
        return self.link.read(self.here.ctypes.data + offset, self.there.ctypes.data, length, **options)


@pytest.fixture
def plugins():
    return []


@pytest.fixture
def pair(site, leaves_nothing, transport, plugins):
    site.install_memory()
    here, there = np.zeros(SIZE, np.uint8), np.arange(SIZE, dtype=np.uint16).astype(np.uint8)
    with (
        Node(1, transports=[transport], metrics=True, plugins=plugins) as one,
        Node(2, "127.0.0.1:0", transports=[transport]) as two,
    ):
        one.cache_manager.register_memory(here)
        two.cache_manager.register_memory(there, remote_accessible=True)
        yield Pair(one, two, one.link(two.address), here, there)


only_memory = pytest.mark.parametrize("transport", ["memory"], indirect=True)


def settled(condition):
    """Wait for what another thread does in a moment."""
    tick, limit = threading.Event(), 2000
    while not condition() and limit:
        limit -= 1
        tick.wait(0.005)
    return condition()


# ---------------------------------------------------------------------- statistics


def test_transfers_are_counted_by_peer_path_and_outcome(pair, transport):
    for _ in range(3):
        pair.read(64)
    local, remote = pair.here.ctypes.data, pair.there.ctypes.data
    pair.link.write([local, local + 200], [remote, remote + 300], [10, 20])
    reads, writes = pair.one.stats().traffic
    assert (reads.cluster_id, reads.transport, reads.operation, reads.outcome) == (2, transport, "read", "done")
    assert (reads.transfers, reads.nbytes, reads.pieces, reads.staged) == (3, 192, 3, False)
    assert (writes.operation, writes.transfers, writes.nbytes, writes.pieces) == ("write", 1, 30, 2)
    assert reads.path
    assert 0 < reads.seconds < SECONDS


def test_the_last_transfers_are_remembered_with_numbers(pair):
    for size in (64, 128, 256):
        pair.read(size)
    recent = pair.one.stats().recent
    assert [(each.number, each.nbytes, each.outcome) for each in recent] == [
        (1, 64, "done"),
        (2, 128, "done"),
        (3, 256, "done"),
    ]
    assert [each.ended for each in recent] == sorted(each.ended for each in recent)


@only_memory
def test_failures_and_cancelled_transfers_are_counted_apart(pair):
    memory = pair.one.cache_manager.transport("memory")
    memory.fail_next("move", error=BrokenError("on request", code="test.broken"))
    with pytest.raises(BrokenError):
        pair.read()
    memory.pause()
    transfer = pair.read(wait=False)
    transfer.cancel()
    assert transfer.wait(SECONDS)
    assert settled(lambda: len(pair.one.stats().recent) == 2)
    assert [(each.outcome, each.code) for each in pair.one.stats().recent] == [
        ("failed", "test.broken"),
        ("cancelled", "cancelled"),
    ]
    assert {row.outcome: row.transfers for row in pair.one.stats().traffic} == {"failed": 1, "cancelled": 1}


@only_memory
def test_late_transfers_show_their_bytes_until_they_settle(pair):
    memory = pair.one.cache_manager.transport("memory")
    memory.pause()
    with pytest.raises(TransferTimeout):
        pair.read(512, timeout=0.01)
    stats = pair.one.stats()
    (link,) = stats.links
    assert (stats.timeouts, link.unsettled, link.unsettled_bytes, link.inflight_bytes) == (1, 1, 512, 512)
    (late,) = pair.link.unsettled
    memory.resume()
    assert late.wait(SECONDS)
    assert settled(lambda: pair.one.stats().links[0].unsettled_bytes == 0)


def test_links_memory_and_handshakes_are_counted_without_being_asked(nodes):
    one, two = nodes
    held = np.zeros(SIZE, np.uint8)
    two.cache_manager.register_memory(held, remote_accessible=True)
    stats = two.stats()
    assert not stats.metrics
    assert [(kind.regions, kind.nbytes, kind.remote_accessible) for kind in stats.memory] == [(1, SIZE, SIZE)]
    assert [(link.cluster_id, link.state) for link in stats.links] == [(1, "up")]
    one.unlink(one.links[0])
    assert settled(lambda: two.stats().links_broken == 1)
    assert (one.stats().links_made, one.stats().links_closed, one.stats().links_broken) == (1, 1, 0)
    assert one.stats().links == ()


def test_handshakes_that_fail_are_counted_by_code(leaves_nothing):
    with Node(1, "127.0.0.1:0", secret=b"0123456789abcdef") as one, Node(2) as two:
        with pytest.raises(AuthenticationError):
            two.link(one.address)
        assert settled(lambda: one.stats().refused == {"authentication.missing": 1})


def test_dials_that_are_tried_again_are_counted(leaves_nothing):
    with Node(1) as one:
        with pytest.raises(BrokenError):
            one.relink("127.0.0.1:1", timeout=0.3)
        assert one.stats().retries >= 1


def test_statistics_can_be_asked_of_a_closed_node(pair):
    pair.read()
    pair.one.close()
    stats = pair.one.stats()
    assert (stats.traffic[0].transfers, stats.links_closed, stats.memory) == (1, 1, ())


def test_statistics_are_values_for_json(pair):
    pair.read()
    told = json.loads(json.dumps(pair.one.stats().as_dict()))
    assert list(told) == [field.name for field in attrs.fields(Stats)]
    assert told["traffic"][0]["nbytes"] == told["recent"][0]["nbytes"] == 64
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        pair.one.stats().timeouts = 0


def test_nothing_is_in_the_way_of_transfers_that_nobody_counts(nodes):
    one, _ = nodes
    assert not isinstance(one.links[0].channel, ObservedChannel)
    assert one.stats().traffic == one.stats().recent == ()


def test_the_setting_counts_too(monkeypatch, leaves_nothing):
    monkeypatch.setenv("CACHEFW_METRICS", "1")
    with Node(1) as one, Node(2, metrics=False) as two:
        assert (one.stats().metrics, two.stats().metrics) == (True, False)


def test_rows_and_remembered_transfers_are_bounded():
    counters = Counters(recent=3, rows=2)
    for cluster in range(10):
        counters.record((cluster, 0.0, "x", cluster, "t", "p", "read", 8, 1, 0.5, "done", "", False))
    assert [(row.cluster_id, row.transfers, row.nbytes) for row in counters.traffic()] == [
        (0, 1, 8),
        (1, 1, 8),
        (None, 8, 64),
    ]
    assert [each.number for each in counters.recent()] == [7, 8, 9]


def test_threads_that_count_at_once_lose_nothing(pair):
    prepared = [
        pair.link.prepare(Operation.READ, pair.here.ctypes.data + 64 * row, pair.there.ctypes.data, 64)
        for row in range(4)
    ]

    def post(one):
        for _ in range(500):
            one.post()

    threads = [threading.Thread(target=post, args=[each]) for each in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(row.transfers for row in pair.one.stats().traffic) == 2000
    assert sum(row.nbytes for row in pair.one.stats().traffic) == 2000 * 64


# ---------------------------------------------------------------------- Prometheus


def test_prometheus_gets_the_numbers_over_http(pair):
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from cachefw.prometheus import serve

    for _ in range(3):
        pair.read()
    with serve(pair.one, pair.two) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=SECONDS) as answer:
            text = answer.read().decode()
        with pytest.raises(OSError, match="in use"):
            serve(pair.one, port=server.port)
    samples = {
        (sample.name, sample.labels["node"]): (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    value, labels = samples["cachefw_transfers_total", "1"]
    assert value == 3
    assert (labels["cluster_id"], labels["operation"], labels["outcome"], labels["staged"]) == (
        "2",
        "read",
        "done",
        "false",
    )
    assert samples["cachefw_transfer_bytes_total", "1"][0] == 192
    assert samples["cachefw_memory_remote_accessible", "2"][0] == SIZE
    assert samples["cachefw_links", "1"][0] == samples["cachefw_links_made_total", "2"][0] == 1
    assert samples["cachefw_link_unsettled_bytes", "1"][0] == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=SECONDS)
    server.close()


# ---------------------------------------------------------------------- OpenTelemetry


@pytest.fixture
def spans(plugins):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from cachefw.otel import Spans

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    plugins.append(Spans(provider))

    def named(name):
        return [span for span in exporter.get_finished_spans() if span.name == f"cachefw.{name}"]

    named.tracer = provider.get_tracer("test")
    yield named
    provider.shutdown()


def test_spans_cover_registration_link_and_transfer(spans, pair, transport):
    (register,) = spans("register")
    assert (register.attributes["cachefw.transport"], register.attributes["cachefw.bytes"]) == (transport, SIZE)
    pair.read()
    pair.one.close()
    (transfer,) = spans("transfer")
    assert transfer.attributes["cachefw.bytes"] == 64
    assert transfer.attributes["cachefw.transfer"] == pair.one.stats().recent[0].number
    assert 0 <= transfer.end_time - transfer.start_time < SECONDS * 1e9
    (link,) = spans("link")
    assert (link.attributes["cachefw.cluster_id"], link.attributes["cachefw.state"]) == ("2", "closed")
    assert link.start_time <= transfer.start_time


def test_a_transfer_is_a_child_of_its_callers_span(spans, pair):
    with spans.tracer.start_as_current_span("request") as request:
        pair.read()
        extra = np.zeros(SIZE, np.uint8)
        pair.one.cache_manager.register_memory(extra)
    pair.read()
    assert settled(lambda: len(spans("transfer")) == 2)
    inside, outside = spans("transfer")
    assert inside.parent.span_id == request.get_span_context().span_id
    assert inside.context.trace_id == request.get_span_context().trace_id
    assert outside.parent is None
    assert spans("register")[1].parent.span_id == request.get_span_context().span_id


@only_memory
def test_spans_of_what_failed_say_so(spans, pair):
    memory = pair.one.cache_manager.transport("memory")
    memory.fail_next("move", error=BrokenError("on request", code="test.broken"))
    with pytest.raises(BrokenError):
        pair.read()
    memory.fail_next("register", error=BrokenError("no", code="test.register"))
    with pytest.raises(RegistrationError):
        pair.one.cache_manager.register_memory(np.zeros(SIZE, np.uint8))
    pair.two.close()
    assert settled(lambda: spans("link") and spans("transfer"))
    failed = [spans("transfer")[0], spans("register")[1], spans("link")[0]]
    assert [span.attributes["error.type"] for span in failed] == ["test.broken", "test.register", "link.broken"]
    assert {span.status.status_code.name for span in failed} == {"ERROR"}


# ---------------------------------------------------------------------- log records


def events(caplog):
    return {record.cachefw_event: record for record in caplog.records if hasattr(record, "cachefw_event")}


def test_log_records_have_fields(caplog, site, leaves_nothing):
    site.install_memory()
    with caplog.at_level(logging.INFO, "cachefw"), Node(1, "127.0.0.1:0", secret=b"0123456789abcdef") as one:
        with Node(2) as two, pytest.raises(AuthenticationError):
            two.link(one.address)
        with Node(3, secret=b"0123456789abcdef") as three:
            three.link(one.address)
        assert settled(lambda: "link.ended" in events(caplog))
    told = events(caplog)
    assert (told["link.refused"].cachefw_code, told["link.refused"].cachefw_address) == (
        "authentication.missing",
        "127.0.0.1",
    )
    up = [record for record in caplog.records if getattr(record, "cachefw_event", "") == "link.up"]
    assert {record.cachefw_cluster_id for record in up} == {1, 3}
    assert {record.cachefw_security for record in up} == {"secret"}
    assert "is up" in up[0].getMessage()


@only_memory
def test_late_transfers_are_logged(pair, caplog):
    memory = pair.one.cache_manager.transport("memory")
    memory.pause()
    with caplog.at_level(logging.INFO, "cachefw"), pytest.raises(TransferTimeout):
        pair.read(512, timeout=0.01)
    memory.resume()
    record = events(caplog)["transfer.late"]
    assert (record.cachefw_nbytes, record.cachefw_operation, record.cachefw_cluster_id) == (512, "read", 2)


# ---------------------------------------------------------------------- cachefw top


@pytest.fixture
def busy(leaves_nothing):
    here, there = np.zeros(SIZE, np.uint8), np.ones(SIZE, np.uint8)
    with Node(1, "127.0.0.1:0", metrics=True) as one, Node(2, "127.0.0.1:0") as two:
        one.cache_manager.register_memory(here)
        two.cache_manager.register_memory(there, remote_accessible=True)
        link = one.link(two.address)
        for _ in range(5):
            link.read(here.ctypes.data, there.ctypes.data, SIZE)
        yield one, two


def run(*arguments):
    return CliRunner(env={"COLUMNS": "120"}).invoke(main, ["top", *arguments])


def test_top_prints_json(busy):
    result = run(busy[0].address, "--once", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert (told["cluster_id"], told["traffic"][0]["transfers"], told["memory"][0]["nbytes"]) == (1, 5, SIZE)
    # The link that asks is not shown.
    assert [link["cluster_id"] for link in told["links"]] == [2]


def test_top_shows_tables(busy):
    output = run(busy[0].address, "--once").output
    assert "cluster 1, cachefw" in output
    assert "last transfers" in output
    assert "20.0 KiB" in output
    assert "transfers are not counted" in run(busy[1].address, "--once").output


def test_top_shows_rates():
    from rich.console import Console

    from cachefw.cli.top import _view

    row = {"cluster_id": 2, "transport": "t", "path": "p", "operation": "read", "outcome": "done", "staged": False}
    base = {
        "cluster_id": 1, "software": "cachefw", "security": "loopback", "metrics": True, "refused": {}, "links": [],
        "links_made": 0, "links_closed": 0, "links_broken": 0, "retries": 0, "timeouts": 0, "caches": 0, "memory": [],
        "recent": [],
    }  # fmt: skip
    before = base | {"time": 10.0, "traffic": [row | {"transfers": 1, "nbytes": 1024, "pieces": 1, "seconds": 1.0}]}
    now = base | {"time": 12.0, "traffic": [row | {"transfers": 3, "nbytes": 5120, "pieces": 3, "seconds": 2.0}]}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(_view(now, before))
    assert "2.0 KiB/s" in console.export_text()


def test_top_needs_the_same_proof_as_any_link(leaves_nothing):
    with Node(1, "127.0.0.1:0", secret=b"0123456789abcdef") as one:
        result = run(one.address, "--once")
    assert result.exit_code == 1
    assert "secret" in result.output


def test_top_refuses_what_is_no_address():
    assert run("nowhere", "--once").exit_code == 1


# ---------------------------------------------------------------------- the page


def test_every_event_has_its_row():
    """The table of events is that of the source."""
    logged = set()
    for path in (ROOT / "cachefw").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "event":
                logged.add(ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else None)
    logged.discard(None)
    # One function logs both.
    logged |= {"link.up", "link.ended"}
    table = (ROOT / "docs" / "observing.md").read_text().partition("| event |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)) == logged


def test_every_metric_and_field_has_its_row(pair):
    pytest.importorskip("prometheus_client")
    from cachefw.prometheus import NodeCollector

    page = (ROOT / "docs" / "observing.md").read_text()
    names = {
        f"{each.name}_total" if each.type == "counter" else each.name for each in NodeCollector(pair.one).collect()
    }
    assert set(re.findall(r"`(cachefw_[a-z_]+)`", page.partition("| metric |")[2].partition("\n\n")[0])) == names
    fields = set(re.findall(r"`(\w+)`", page.partition("| field |")[2].partition("\n\n")[0]))
    assert {"traffic", "recent", "links", "memory", "links_made", "refused", "retries", "timeouts"} <= fields
