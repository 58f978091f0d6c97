"""LLM-DataDist's links: by address on both engines, by rank table, their statuses, and the switching of roles."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from llm_datadist_kit import GET, HIXL, INVALID, LEGACY, LISTEN, OK, Instance, code, refuse

import cachefw
from cachefw.compat import llm_datadist as ld
from cachefw.compat.llm_datadist.engine import rendezvous

SECONDS = 20
Make = Callable[..., Instance]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Makes instances, and finalizes them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with contextlib.ExitStack() as stack:

        def start(cluster_id: int, **options: Any) -> Instance:
            instance = Instance(cluster_id, **options)
            stack.callback(instance.dist.finalize)
            return instance

        yield start


def pull(here: Instance, cluster_id: int, cache: Any) -> None:
    here.manager.pull_blocks(ld.BlocksCacheKey(cluster_id), cache.handle, [0], [3])


def filled(instance: Instance, value: int) -> Any:
    return instance.cache(blocks=True, key=ld.BlocksCacheKey(instance.cluster_id), fill=value)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


# ---------------------------------------------------------------------- by address: arguments


def info(cluster_id: int | None = 2, local: int = 1, remote: int = 1, port: int = 9) -> ld.LLMClusterInfo:
    made = ld.LLMClusterInfo()
    if cluster_id is not None:
        made.remote_cluster_id = cluster_id
    for _ in range(local):
        made.append_local_ip_info("127.0.0.1", 0)
    for _ in range(remote):
        made.append_remote_ip_info("127.0.0.1", port)
    return made


ARGUMENTS: list[tuple[str, tuple[Any, ...], Any]] = [
    ("both", ([info()], None), TypeError),
    ("both", ([info()], "5"), TypeError),
    ("both", ([info()], 2**31), ValueError),
    ("both", ([info()], 0), INVALID),
    ("both", ([info()], -1), INVALID),
    ("both", (None,), TypeError),
    ("both", (info(),), TypeError),
    ("both", ([None],), TypeError),
    ("link", ([info(None, local=0)],), INVALID),
    ("both", ([info(None)],), TypeError),
    ("unlink", ([info()], 5, 1), TypeError),
    ("unlink", ([info()], 5, "yes"), TypeError),
]


@pytest.mark.parametrize(("which", "arguments", "wanted"), ARGUMENTS, ids=str)
def test_linking_refuses(make: Make, which: str, arguments: tuple[Any, ...], wanted: Any) -> None:
    one = make(1, **GET)
    calls = {"link": one.dist.link_clusters, "unlink": one.dist.unlink_clusters}
    for name, call in calls.items():
        if which in (name, "both"):
            refuse(wanted, lambda call=call: call(*arguments))


def test_known_resources_need_no_local_address(make: Make) -> None:
    resources = {
        "server_list": [{"device": [{"device_id": "0"}], "server_id": "x"}],
        "status": "completed",
        "version": "1.0",
    }
    one, two = make(1, local_comm_res=json.dumps(resources)), make(2, **GET, **LISTEN)
    assert one.dist.link_clusters([info(local=0, port=two.port)], 5000) == (OK, [OK])


# ---------------------------------------------------------------------- by address: what comes of it


def test_a_link_serves_both_sides(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    here, there = filled(one, 1), filled(two, 2)
    one.link(two)
    pull(one, 2, here)
    pull(two, 1, there)
    assert [int(cache.arrays[0][3, 0]) for cache in (here, there)] == [2, 1]
    assert one.dist.link_clusters([two.info()], 5000) == (code("ALREADY_LINK"), [code("ALREADY_LINK")])
    assert two.dist.unlink_clusters([info(1)]) == (OK, [OK])
    refuse(code("NOT_YET_LINK"), lambda: pull(two, 1, there))
    wait_for(lambda: not one.dist._engine.node.links)
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 2, here))
    one.link(two)
    pull(one, 2, here)


def test_a_link_is_filed_under_the_real_id(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    here, _ = filled(one, 1), filled(two, 2)
    assert one.dist.link_clusters([two.info(77)], 5000) == (OK, [OK])
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 77, here))
    pull(one, 2, here)


def test_nobody_listens(make: Make) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        failed = code("LINK_FAILED")
        assert make(1, **GET).dist.link_clusters([info(port=unused.getsockname()[1])], 5000) == (failed, [failed])


def test_a_peer_that_never_answers_takes_no_longer_than_the_timeout(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        late = code("TIMEOUT")
        assert make(1, **GET).dist.link_clusters([info(port=port)], 300) == (late, [late])


def test_attempts_are_made_until_the_peer_listens(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    one = make(1, **GET, link_retry_count=100)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(one.dist.link_clusters([info(port=port)], 15000)))
    thread.start()
    time.sleep(0.2)
    make(2, **GET, listen_ip_info=f"127.0.0.1:{port}")
    thread.join(SECONDS)
    assert results == [(OK, [OK])]


ADDRESSES = [(0, INVALID), (2, INVALID)]


@pytest.mark.parametrize(("count", "status"), ADDRESSES)
def test_a_cluster_has_one_address(make: Make, count: int, status: ld.LLMStatusCode) -> None:
    one = make(1, **GET)
    assert one.dist.link_clusters([info(remote=count)]) == (status, [status])
    assert one.dist.unlink_clusters([info(remote=count)]) == (status, [status])
    assert one.dist.unlink_clusters([info(remote=count)], force=True) == (OK, [OK])


def test_several_local_addresses_are_too_many_until_one_is_known(make: Make) -> None:
    two = make(2, **GET, **LISTEN)
    one = make(1, **GET)
    assert one.dist.link_clusters([info(local=2, port=two.port)]) == (INVALID, [INVALID])
    one.link(two)
    one.dist.unlink_clusters([two.info()])
    assert one.dist.link_clusters([info(local=2, port=two.port)], 5000) == (OK, [OK])


def test_no_cluster_is_invalid(make: Make) -> None:
    one = make(1, **GET)
    assert one.dist.link_clusters([]) == one.dist.unlink_clusters([]) == (INVALID, [])


def test_each_cluster_has_a_status_and_the_last_failure_counts(make: Make) -> None:
    one, two, three = make(1, **GET), make(2, **GET, **LISTEN), make(3, **GET, **LISTEN)
    clusters = [two.info(), info(4, remote=0), three.info()]
    assert one.dist.link_clusters(clusters, 5000) == (INVALID, [OK, INVALID, OK])
    assert one.dist.unlink_clusters([two.info(), info(9, remote=1), three.info()]) == (OK, [OK, OK, OK])


def test_bad_resources_are_told_when_linking(make: Make) -> None:
    two = make(2, **GET, **LISTEN)
    for resources in ('{"version": "1.3"}', "{"):
        one = make(1, local_comm_res=resources)
        assert one.dist.link_clusters([two.info()], 5000) == (INVALID, [INVALID])
        one.dist.finalize()


MODES = [(GET, LEGACY), (LEGACY, GET), (GET, HIXL), (HIXL, GET)]


@pytest.mark.parametrize(("here", "there"), MODES, ids=str)
def test_both_sides_have_to_work_the_same_way(make: Make, here: Any, there: Any) -> None:
    one, two = make(1, **here, **LISTEN), make(2, **there, **LISTEN)
    assert one.dist.link_clusters([two.info()], 5000) == (INVALID, [INVALID])
    wait_for(lambda: not one.dist._engine.node.links and not two.dist._engine.node.links)


def test_an_ordinary_node_can_be_linked(make: Make) -> None:
    one = make(1, **GET)
    with cachefw.Node(2, "127.0.0.1:0") as node:
        port = int(node.address.rpartition(":")[2])
        assert one.dist.link_clusters([info(port=port)], 5000) == (OK, [OK])
        one.dist.unlink_clusters([info(port=port)])


def test_what_is_registered_later_can_be_pulled(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    here = filled(one, 1)
    one.link(two)
    refuse(code("KV_CACHE_NOT_EXIST"), lambda: pull(one, 2, here))
    there = filled(two, 2)
    pull(one, 2, here)
    two.manager.unregister_cache(there.handle.cache_id)
    refuse(code("KV_CACHE_NOT_EXIST"), lambda: pull(one, 2, here))


def test_a_peer_that_is_gone_is_a_link_to_make_anew(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    here = filled(one, 1)
    filled(two, 2)
    port = two.port
    one.link(two)
    two.dist.finalize()
    with pytest.raises(ld.LLMException) as caught:
        pull(one, 2, here)
    assert caught.value.status_code in (code("TIMEOUT"), code("NOT_YET_LINK"))
    again = make(2, **GET, listen_ip_info=f"127.0.0.1:{port}")
    filled(again, 3)
    # As serving code does it.
    one.dist.unlink_clusters([again.info()], timeout=5000, force=True)
    one.link(again)
    pull(one, 2, here)
    assert here.arrays[0][3, 0] == 3


# ---------------------------------------------------------------------- the hixl engine


def test_links_of_the_hixl_engine_serve_one_side(make: Make) -> None:
    one, two = make(1, **HIXL, **LISTEN), make(2, **HIXL, **LISTEN)
    here, there = filled(one, 1), filled(two, 2)
    one.link(two)
    pull(one, 2, here)
    refuse(code("NOT_YET_LINK"), lambda: pull(two, 1, there))
    assert one.dist.link_clusters([two.info()], 5000) == (code("ALREADY_LINK"), [code("ALREADY_LINK")])
    two.link(one)
    pull(two, 1, there)
    # Each gives up its own; addresses and force say nothing.
    assert one.dist.unlink_clusters([info(2, remote=0)]) == (OK, [OK])
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 2, here))
    pull(two, 1, there)
    assert two.dist.unlink_clusters([info(1, remote=0)], force=True) == (OK, [OK])
    wait_for(lambda: not one.dist._engine.node.links and not two.dist._engine.node.links)
    assert two.dist.unlink_clusters([info(1, remote=0)]) == (OK, [OK])


def test_links_of_the_hixl_engine_are_filed_under_the_given_id(make: Make) -> None:
    one, two = make(1, **HIXL, **LISTEN), make(2, **HIXL, **LISTEN)
    here = filled(one, 1)
    filled(two, 2)
    assert one.dist.link_clusters([two.info(50)], 5000) == (OK, [OK])
    pull(one, 50, here)
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 2, here))
    assert one.dist.link_clusters([two.info(51)], 5000) == (OK, [OK])
    one.dist.unlink_clusters([info(50, remote=0)])
    pull(one, 51, here)


def test_a_link_of_the_hixl_engine_outlives_the_peers_unlinking(make: Make) -> None:
    one, two = make(1, **HIXL, **LISTEN), make(2, **HIXL, **LISTEN)
    here = filled(one, 1)
    filled(two, 2)
    one.link(two)
    # Below, one link serves both; that it went down is made good when it is next needed.
    node = two.dist._engine.node
    node.unlink(node.links[0])
    wait_for(lambda: not one.dist._engine.node.links)
    pull(one, 2, here)
    assert here.arrays[0][3, 0] == 2


RANKS = {1: 0, 2: 1}
NOT_ON_HIXL: list[Callable[[ld.LLMDataDist], Any]] = [
    lambda dist: dist.link("a", RANKS, "{}"),
    lambda dist: dist.unlink(1),
    lambda dist: dist.query_register_mem_status(1),
    lambda dist: dist.switch_role(ld.LLMRole.DECODER, {"llm.listenIpInfo": "127.0.0.1:1"}),
]


@pytest.mark.parametrize("call", NOT_ON_HIXL)
def test_the_hixl_engine_has_no_rank_tables(make: Make, call: Callable[[ld.LLMDataDist], Any]) -> None:
    refuse(code("FEATURE_NOT_ENABLED"), lambda: call(make(1, **HIXL, **LISTEN).dist))


def test_the_hixl_engine_switches_roles_where_it_listens(make: Make) -> None:
    one, two = make(1, **HIXL, **LISTEN), make(2, **HIXL, **LISTEN)
    one.link(two)
    one.dist.switch_role(ld.LLMRole.DECODER, {"llm.listenIpInfo": "127.0.0.1:0"})
    one.dist.switch_role(ld.LLMRole.PROMPT)
    assert one.dist._engine.node.address


# ---------------------------------------------------------------------- by rank table


def table(*hosts: str, first: int = 0) -> str:
    """A rank table with one device on each host, or all devices on the one host."""
    devices = [{"device_id": str(first + n), "device_ip": f"10.0.0.{n}", "rank_id": str(n)} for n in range(4)]
    if len(hosts) < 2:
        servers = [{"device": devices, "server_id": "1", "host_ip": (hosts or ("127.0.0.1",))[0]}]
    else:
        servers = [
            {"device": [device], "server_id": host, "host_ip": host}
            for host, device in zip(hosts, devices, strict=False)
        ]
    return json.dumps({"server_count": "1", "server_list": servers, "status": "completed", "version": "1.2"})


TABLE = table()
LINK: list[tuple[tuple[Any, ...], Any]] = [
    ((None, RANKS, TABLE), TypeError),
    ((5, RANKS, TABLE), TypeError),
    (("", RANKS, TABLE), INVALID),
    (("x" * 128, RANKS, TABLE), INVALID),
    (("a", None, TABLE), AttributeError),
    (("a", [1], TABLE), TypeError),
    (("a", {"1": 0}, TABLE), TypeError),
    (("a", {1: "0"}, TABLE), TypeError),
    (("a", {1: 0, 2: 1, 3: 2, 4: 3, 5: 4}, TABLE), INVALID),
    (("a", {-1: 0, 2: 1}, TABLE), ValueError),
    (("a", {1: 0, 2: 2**32}, TABLE), ValueError),
    (("a", RANKS, None), TypeError),
    (("a", RANKS, {}), TypeError),
    (("a", {1: 0}, TABLE), INVALID),
    (("a", {1: 1, 2: 0}, TABLE), INVALID),
    # Two of one rank pass in the vendor's engine.
    (("a", {1: 0, 2: 0}, TABLE), INVALID),
    (("a", {2: 0, 3: 1}, TABLE), INVALID),
    (("a", RANKS, "{"), "LINK_FAILED"),
    (("a", RANKS, "[]"), "LINK_FAILED"),
    (("a", RANKS, '{"server_list": [{"device": [{"rank_id": "0"}]}]}'), "LINK_FAILED"),
    (("a", RANKS, table("x", "y")), "LINK_FAILED"),
]


@pytest.mark.parametrize(("arguments", "wanted"), LINK, ids=lambda item: str(item)[:50])
def test_a_rank_table_link_refuses(make: Make, arguments: tuple[Any, ...], wanted: Any) -> None:
    one = make(1, **GET)
    refuse(code(wanted) if isinstance(wanted, str) else wanted, lambda: one.dist.link(*arguments))
    assert not one.manager._is_call_linked


IDS = [(None, TypeError), ("1", TypeError), (-1, ValueError), (2**64, ValueError), (1, "NOT_YET_LINK")]


@pytest.mark.parametrize(("number", "wanted"), IDS, ids=str)
def test_a_communicator_that_is_not_there(make: Make, number: Any, wanted: Any) -> None:
    one = make(1, **GET)
    for call in (one.dist.unlink, one.dist.query_register_mem_status):
        refuse(code(wanted) if isinstance(wanted, str) else wanted, lambda call=call: call(number))


def status(instance: Instance, number: int) -> ld.RegisterMemStatus:
    return instance.dist.query_register_mem_status(number)


def ready(instance: Instance, number: int) -> ld.RegisterMemStatus:
    wait_for(lambda: status(instance, number) is not ld.RegisterMemStatus.PREPARING)
    return status(instance, number)


@pytest.mark.parametrize("mode", [GET, LEGACY], ids=str)
def test_members_of_a_table_find_each_other(make: Make, mode: Any) -> None:
    one, two = make(1, **mode), make(2, **mode)
    here, there = filled(one, 1), filled(two, 2)
    first = one.dist.link("pair", RANKS, TABLE)
    assert first == 1
    assert status(one, first) is ld.RegisterMemStatus.PREPARING
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 2, here))
    assert one.manager._is_call_linked
    # The same table in other words.
    second = two.dist.link("pair", RANKS, json.dumps(json.loads(TABLE), indent=1))
    assert ready(one, first) is ready(two, second) is ld.RegisterMemStatus.OK
    pull(one, 2, here)
    pull(two, 1, there)
    assert [int(cache.arrays[0][3, 0]) for cache in (here, there)] == [2, 1]
    one.dist.unlink(first)
    refuse(code("NOT_YET_LINK"), lambda: status(one, first))
    two.dist.unlink(second)
    refuse(code("NOT_YET_LINK"), lambda: pull(one, 2, here))
    assert one.manager._is_call_linked
    assert one.dist.link("pair", RANKS, TABLE) == 2


def test_four_members_link_each_to_each(make: Make) -> None:
    members = {n: n for n in range(4)}
    instances = [make(n, **GET) for n in members]
    numbers = [instance.dist.link("four", members, TABLE) for instance in instances]
    for instance, number in zip(instances, numbers, strict=True):
        assert ready(instance, number) is ld.RegisterMemStatus.OK
        assert sorted(link.cluster_id for link in instance.dist._engine.node.links) == sorted(
            set(members) - {instance.cluster_id}
        )


def test_a_link_of_two_tables_lasts_as_long_as_one_of_them(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET)
    pairs = [(one.dist.link(name, RANKS, TABLE), two.dist.link(name, RANKS, TABLE)) for name in ("a", "b")]
    for first, second in pairs:
        assert ready(one, first) is ready(two, second) is ld.RegisterMemStatus.OK
    one.dist.unlink(pairs[0][0])
    two.dist.unlink(pairs[0][1])
    assert len(one.dist._engine.node.links) == 1
    one.dist.unlink(pairs[1][0])
    assert not one.dist._engine.node.links


def test_a_member_that_does_not_come_makes_it_fail(make: Make) -> None:
    one = make(1, **GET, link_total_time=1)
    number = one.dist.link("alone", RANKS, TABLE)
    assert ready(one, number) is ld.RegisterMemStatus.FAILED
    assert status(one, number) is ld.RegisterMemStatus.FAILED
    one.dist.unlink(number)


def test_other_words_are_another_table(make: Make) -> None:
    one, two = make(1, **GET, link_total_time=1), make(2, **GET, link_total_time=1)
    numbers = one.dist.link("one", RANKS, TABLE), two.dist.link("two", RANKS, TABLE)
    assert ready(one, numbers[0]) is ready(two, numbers[1]) is ld.RegisterMemStatus.FAILED


def test_members_that_work_differently_make_it_fail(make: Make) -> None:
    one, two = make(1, **GET, link_total_time=2), make(2, **LEGACY, link_total_time=2)
    numbers = one.dist.link("mixed", RANKS, TABLE), two.dist.link("mixed", RANKS, TABLE)
    assert ready(one, numbers[0]) is ready(two, numbers[1]) is ld.RegisterMemStatus.FAILED


def test_unlinking_ends_what_is_not_ready(make: Make) -> None:
    one = make(1, **GET)
    number = one.dist.link("alone", RANKS, TABLE)
    one.dist.unlink(number)
    refuse(code("NOT_YET_LINK"), lambda: one.dist.unlink(number))


def test_what_an_earlier_run_left_is_passed_over(make: Make, tmp_path: Path) -> None:
    one = make(1, **GET)
    number = one.dist.link("stale", RANKS, TABLE)
    (folder,) = (each for each in tmp_path.glob("cachefw-*/*") if each.is_dir())
    (card,) = (each.read_bytes() for each in folder.iterdir())
    # As if it had died there, and started again.
    one.dist.finalize()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "1").write_bytes(card)
    two = make(2, **GET)
    waiting = two.dist.link("stale", RANKS, TABLE)
    again = make(1, **GET)
    number = again.dist.link("stale", RANKS, TABLE)
    assert ready(two, waiting) is ready(again, number) is ld.RegisterMemStatus.OK


def test_a_directory_that_is_open_to_others_is_refused(make: Make, tmp_path: Path) -> None:
    one = make(1, **GET)
    root = tmp_path / f"cachefw-{Path(tmp_path).stat().st_uid}"
    root.mkdir()
    root.chmod(0o777)
    refuse(code("LINK_FAILED"), lambda: one.dist.link("open", RANKS, TABLE))


def test_members_on_several_hosts_meet_at_ports(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        # Both hosts are this one; the second address needs the next port.
        try:
            other.bind(("127.0.0.2", port + 1))
        except OSError:
            pytest.skip("the port after a free one is taken")
    monkeypatch.setenv("HCCL_IF_BASE_PORT", str(port))
    apart = table("127.0.0.1", "127.0.0.2")
    one, two = make(1, **GET), make(2, **GET)
    here = filled(one, 1)
    filled(two, 2)
    numbers = one.dist.link("apart", RANKS, apart), two.dist.link("apart", RANKS, apart)
    assert ready(one, numbers[0]) is ready(two, numbers[1]) is ld.RegisterMemStatus.OK
    pull(one, 2, here)
    assert one.dist._engine.node.address == f"127.0.0.1:{port}"


def test_a_member_on_several_hosts_has_to_listen_where_the_table_says(make: Make) -> None:
    one = make(1, **GET, **LISTEN)
    error = refuse(code("LINK_FAILED"), lambda: one.dist.link("x", RANKS, table("127.0.0.1", "127.0.0.2", first=7)))
    assert "127.0.0.1:60007" in str(error)


def test_there_are_only_so_many_communicators(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MOST", 2)
    one = make(1, **GET)
    numbers = [one.dist.link(f"c{n}", RANKS, TABLE) for n in range(2)]
    refuse(INVALID, lambda: one.dist.link("c3", RANKS, TABLE))
    one.dist.unlink(numbers[0])
    one.dist.link("c3", RANKS, TABLE)


# ---------------------------------------------------------------------- roles

SWITCH: list[tuple[tuple[Any, ...], Any]] = [
    ((None,), KeyError),
    ((1,), TypeError),
    (("PROMPT",), TypeError),
    ((ld.LLMRole.PROMPT, "x"), TypeError),
    ((ld.LLMRole.PROMPT, {"llm.listenIpInfo": 1}), TypeError),
    ((ld.LLMRole.PROMPT, {"llm.listenIpInfo": "127.0.0.1"}), INVALID),
    ((ld.LLMRole.PROMPT, {"llm.listenIpInfo": "127.0.0.1:x"}), ValueError),
    ((ld.LLMRole.PROMPT, {"other": 1}), TypeError),
    ((ld.LLMRole.PROMPT, {"llm.listenIpInfo": "127.0.0.1:70000"}), "FAILED"),
]


@pytest.mark.parametrize(("arguments", "wanted"), SWITCH, ids=str)
def test_switching_roles_refuses(make: Make, arguments: tuple[Any, ...], wanted: Any) -> None:
    one = make(1, **GET, **LISTEN)
    port = one.port
    refuse(code(wanted) if isinstance(wanted, str) else wanted, lambda: one.dist.switch_role(*arguments))
    assert one.port == port


def test_a_role_is_switched_only_without_links(make: Make) -> None:
    one, two = make(1, **GET, **LISTEN), make(2, **GET)
    cache = filled(one, 1)
    two.link(one)
    for each in (one, two):
        refuse(code("EXIST_LINK"), lambda each=each: each.dist.switch_role(ld.LLMRole.DECODER))
    two.dist.unlink_clusters([one.info()])
    port = one.port
    # The same port: nothing happens, whatever the address.
    one.dist.switch_role(ld.LLMRole.DECODER, {"llm.listenIpInfo": f"127.0.0.2:{port}"})
    assert one.dist._engine.node.address == f"127.0.0.1:{port}"
    one.dist.switch_role(ld.LLMRole.DECODER)
    assert one.dist._engine.node.address is None
    config = ld.LLMConfig()
    config.listen_ip_info = "127.0.0.1:0"
    two.dist.switch_role(ld.LLMRole.PROMPT, config.generate_options())
    one.link(two)
    # What was registered is still there.
    assert one.dist._engine.manager.caches[cache.handle.cache_id]
    pull(two, 1, filled(two, 2))


# ---------------------------------------------------------------------- many at a time


def test_two_that_link_to_each_other_at_once_get_one_link(make: Make) -> None:
    for mode in (GET, HIXL):
        one, two = make(1, **mode, **LISTEN), make(2, **mode, **LISTEN)
        for _ in range(10):
            results: dict[int, Any] = {}

            def call(here: Instance, there: Instance, results: dict[int, Any] = results) -> None:
                results[here.cluster_id] = here.dist.link_clusters([there.info()], 5000)[0]

            threads = [threading.Thread(target=call, args=pair) for pair in ((one, two), (two, one))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
            assert set(results.values()) <= {OK, code("ALREADY_LINK")}
            assert len(one.dist._engine.node.links) == len(two.dist._engine.node.links) == 1
            for here, there in ((one, two), (two, one)):
                here.dist.unlink_clusters([there.info()])
            wait_for(lambda one=one, two=two: not one.dist._engine.node.links and not two.dist._engine.node.links)
        one.dist.finalize()
        two.dist.finalize()


@pytest.mark.parametrize("mode", [GET, HIXL, LEGACY], ids=str)
def test_finalizing_leaves_nothing_behind(leaves_nothing: None, make: Make, mode: Any) -> None:
    one, two = make(1, **mode, **LISTEN), make(2, **mode, **LISTEN)
    here = filled(one, 1)
    filled(two, 2)
    one.link(two)
    pull(one, 2, here)
    if mode is not HIXL:
        one.dist.link("alone", {1: 0, 9: 1}, TABLE)
    one.dist.finalize()
    two.dist.finalize()


def test_finalizing_waits_for_calls_and_refuses_later_ones(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    here = filled(one, 1)
    filled(two, 2)
    one.link(two)
    statuses: set[Any] = set()
    begun = threading.Event()

    def work() -> None:
        while True:
            try:
                pull(one, 2, here)
            except ld.LLMException as error:
                statuses.add(error.status_code)
                return
            begun.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(SECONDS)
    one.dist.finalize()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert statuses == {INVALID}


def test_unlinking_in_the_middle_of_pulls_is_an_error_and_no_hang(make: Make) -> None:
    one, two = make(1, **GET), make(2, **GET, **LISTEN)
    caches = [one.cache(1, 64, 4096, blocks=True) for _ in range(3)]
    two.cache(1, 64, 4096, blocks=True, key=ld.BlocksCacheKey(2))
    one.link(two)
    statuses: list[Any] = []
    begun = threading.Barrier(4)

    def work(cache: Any) -> None:
        begun.wait(SECONDS)
        blocks = list(range(64))
        try:
            while True:
                one.manager.pull_blocks(ld.BlocksCacheKey(2), cache.handle, blocks, blocks)
        except ld.LLMException as error:
            statuses.append(error.status_code)

    threads = [threading.Thread(target=work, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    begun.wait(SECONDS)
    time.sleep(0.05)
    assert two.dist.unlink_clusters([info(1)], force=True) == (OK, [OK])
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert set(statuses) <= {code("NOT_YET_LINK"), code("TIMEOUT")}
    assert len(statuses) == 3


# ---------------------------------------------------------------------- a peer that stops, or dies

OWNER = """
import sys
from cachefw.compat import llm_datadist as ld
dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 2)
dist.init({
    "llm.EnableCacheManager": "1", "llm.listenIpInfo": "127.0.0.1:0", "cachefw.transports": "host",
    "llm.MemPoolConfig": '{"memory_size": 1048576}',
})
desc = ld.CacheDesc(2, [4, 32], ld.DataType.DT_UINT8)
dist.cache_manager.allocate_cache(desc, [ld.CacheKey(2, n) for n in range(4)])
print(dist._engine.node.address.rpartition(":")[2], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process with an allocated cache, and its port."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(SECONDS)
        process.stdin.close()
        process.stdout.close()


def test_an_owner_that_stops_costs_the_timeout(make: Make, owner: tuple[subprocess.Popen[str], int]) -> None:
    process, port = owner
    one = make(1, **LEGACY, sync_kv_timeout=500)
    cache = one.cache(2, 4, 32)
    assert one.dist.link_clusters([info(port=port)], 5000) == (OK, [OK])
    one.manager.pull_cache(ld.CacheKey(2, 0), cache.handle)
    process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    refuse(code("TIMEOUT"), lambda: one.manager.pull_cache(ld.CacheKey(2, 1), cache.handle))
    late = code("TIMEOUT")
    another = make(3, **LEGACY)
    assert another.dist.link_clusters([info(port=port)], 500) == (late, [late])
    assert time.monotonic() - started < SECONDS
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: another.dist.link_clusters([info(port=port)], 2000)[0] is OK)


def test_an_owner_that_dies_is_a_link_to_make_anew(make: Make, owner: tuple[subprocess.Popen[str], int]) -> None:
    process, port = owner
    one = make(1, **LEGACY)
    cache = one.cache(2, 4, 32)
    assert one.dist.link_clusters([info(port=port)], 5000) == (OK, [OK])
    process.kill()
    process.wait(SECONDS)
    with pytest.raises(ld.LLMException) as caught:
        one.manager.pull_cache(ld.CacheKey(2, 0), cache.handle)
    assert caught.value.status_code in (code("TIMEOUT"), code("NOT_YET_LINK"))
    assert one.dist.unlink_clusters([info(port=port)]) == (OK, [OK])
    failed = code("LINK_FAILED")
    assert one.dist.link_clusters([info(port=port)], 2000) == (failed, [failed])


CLIENT = """
import sys
from cachefw.compat import llm_datadist as ld
dist = ld.LLMDataDist(ld.LLMRole.DECODER, 1)
dist.init({"llm.LocalCommRes": "", "cachefw.transports": "host"})
info = ld.LLMClusterInfo()
info.remote_cluster_id = 2
info.append_local_ip_info("127.0.0.1", 0)
info.append_remote_ip_info("127.0.0.1", int(sys.argv[1]))
print(dist.link_clusters([info], 5000)[0], flush=True)
sys.stdin.read()
"""


def test_a_client_that_was_started_anew_links_while_the_server_holds_the_old_link(make: Make) -> None:
    two = make(2, **GET, **LISTEN)
    there = filled(two, 2)
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(two.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as old:
        try:
            assert old.stdout.readline() == "LLMStatusCode.LLM_SUCCESS\n"
            # One that lives and answers keeps its place.
            again = make(1, **GET)
            assert again.dist.link_clusters([two.info()], 5000) == (code("LINK_FAILED"), [code("LINK_FAILED")])
            # This one says nothing any more, and its connection is up.
            old.send_signal(signal.SIGSTOP)
            assert again.dist.link_clusters([two.info()], 15000) == (OK, [OK])
            here = filled(again, 1)
            pull(again, 2, here)
            pull(two, 1, there)
            assert there.arrays[0][3, 0] == 1
        finally:
            old.kill()
