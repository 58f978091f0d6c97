"""Observers of transfers: told of each, in a thread of their own, and at no cost to anybody when there are none."""

from __future__ import annotations

import logging
import threading

import attrs
import numpy as np
import pytest

from cachefw import BrokenError, Node, TransferReport, hookimpl
from cachefw.links.reporting import ObservedChannel
from cachefw.reports import Reporter
from cachefw.transport import Channel

REPORT = TransferReport("cluster 2 at x:1", 2, "memory", "inline", "read", 64, 1, 0.001, "done")
SECONDS = 10


class Exporter:
    def __init__(self):
        self.reports = []
        self.threads = set()
        self.came = threading.Semaphore(0)

    @hookimpl
    def cachefw_transfer_finished(self, report):
        self.reports.append(report)
        self.threads.add(threading.current_thread().name)
        self.came.release()

    def next(self, count=1):
        for _ in range(count):
            assert self.came.acquire(timeout=SECONDS)
        return self.reports[-count:]


@pytest.fixture
def exporter():
    return Exporter()


@pytest.fixture
def pair(site, leaves_nothing, exporter, transport):
    """A node that is observed, linked to one that is not, with 4096 registered bytes at each end."""
    site.install_memory()
    here, there = np.zeros(4096, np.uint8), np.arange(4096, dtype=np.uint16).astype(np.uint8)
    with (
        Node(1, transports=[transport], plugins=[exporter]) as one,
        Node(2, "127.0.0.1:0", transports=[transport]) as two,
    ):
        one.cache_manager.register_memory(here)
        two.cache_manager.register_memory(there, remote_accessible=True)
        yield one, one.link(two.address), here, there


def test_reads_and_writes_are_reported(pair, exporter, transport):
    _, link, here, there = pair
    local, remote = here.ctypes.data, there.ctypes.data
    link.read([local, local + 200], [remote + 100, remote + 400], [64, 32])
    link.write(local, remote, 128, wait=False).result()
    read, write = exporter.next(2)
    assert attrs.evolve(read, seconds=0, path="") == TransferReport(
        link.peer_name, 2, transport, "", "read", 96, 2, 0, "done"
    )
    assert (write.operation, write.nbytes, write.pieces, write.outcome, write.code) == ("write", 128, 1, "done", "")
    assert read.path
    assert 0 < read.seconds < SECONDS
    assert exporter.threads == {"cachefw-reports-1"}


def test_a_prepared_transfer_is_reported_each_time(pair, exporter):
    from cachefw import Operation

    _, link, here, there = pair
    prepared = link.prepare(Operation.READ, here.ctypes.data, there.ctypes.data, 4096)
    for _ in range(5):
        prepared.post()
    assert [report.nbytes for report in exporter.next(5)] == [4096] * 5
    assert (here == there).all()


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
@pytest.mark.parametrize("step", ["post", "move"])
def test_failures_are_reported_with_their_code(pair, exporter, step):
    one, link, here, there = pair
    one.cache_manager.transport("memory").fail_next(step, error=BrokenError("on request", code="test.broken"))
    with pytest.raises(BrokenError):
        link.read(here.ctypes.data, there.ctypes.data, 64)
    (report,) = exporter.next()
    assert (report.outcome, report.code, report.nbytes) == ("failed", "test.broken", 64)


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
def test_a_cancelled_transfer_is_reported_as_that(pair, exporter):
    one, link, here, there = pair
    one.cache_manager.transport("memory").pause()
    transfer = link.read(here.ctypes.data, there.ctypes.data, 64, wait=False)
    transfer.cancel()
    assert transfer.wait(SECONDS)
    assert exporter.next()[0].outcome == "cancelled"


def test_what_waits_is_delivered_before_a_node_has_closed(pair, exporter):
    one, link, here, there = pair
    for _ in range(100):
        link.read(here.ctypes.data, there.ctypes.data, 64)
    one.close()
    assert len(exporter.reports) == 100


def test_nothing_is_observed_where_no_plugin_asks(nodes):
    one, two = nodes
    assert one._reporter is None
    assert not any(isinstance(link.channel, ObservedChannel) for node in (one, two) for link in node.links)
    assert not any(thread.name.startswith("cachefw-reports") for thread in threading.enumerate())


def test_an_observed_channel_passes_everything_on():
    """What the contract gives a default would else be lost in silence."""
    everything = {name for name in vars(Channel) if not name.startswith("_")}
    assert everything <= set(vars(ObservedChannel))


class Fails:
    @hookimpl
    def cachefw_transfer_finished(self, report):
        raise ZeroDivisionError("on purpose")


def test_an_observer_that_raises_is_reported_once_and_breaks_nothing(site, leaves_nothing, exporter):
    site.install_memory()

    def report_three(node):
        for _ in range(3):
            node._reporter.put(REPORT)
        assert exporter.next(3) == [REPORT] * 3

    with Node(1, transports=["memory"], plugins=[Fails(), exporter]) as one:
        with pytest.warns(RuntimeWarning, match="Fails: cachefw_transfer_finished raised ZeroDivisionError") as warned:
            report_three(one)
        assert len(warned) == 1


def test_reports_beyond_the_limit_are_dropped_and_counted(leaves_nothing):
    gate, entered, got = threading.Event(), threading.Event(), []

    def slow(report):
        entered.set()
        gate.wait(SECONDS)
        got.append(report)

    reporter = Reporter(slow, "test-reports", limit=4)
    reporter.put(REPORT)
    assert entered.wait(SECONDS)
    for _ in range(10):
        reporter.put(REPORT)
    gate.set()
    reporter.close(SECONDS)
    assert [report.lost for report in got] == [0, 6, 0, 0, 0]


def test_an_observer_that_does_not_return_does_not_hold_up_closing(caplog):
    gate = threading.Event()
    reporter = Reporter(lambda report: gate.wait(SECONDS), "test-reports")
    try:
        reporter.put(REPORT)
        with caplog.at_level(logging.WARNING, "cachefw"):
            reporter.close(0.05)
        assert "test-reports: an observer of transfers did not return within 0.05 s" in caplog.text
    finally:
        gate.set()
        reporter._thread.join(SECONDS)
