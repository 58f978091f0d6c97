"""LLM-DataDist's options: properties, the keys they make, JSON documents, and what `init` says of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import cachefw
from cachefw.compat import llm_datadist as ld
from cachefw.compat.llm_datadist.engine.options import parse
from cachefw.compat.llm_datadist.engine.resources import comm_res, pool_config, resource_config
from cachefw.compat.llm_datadist.engine.transports import choose, settings_for
from cachefw.compat.protocols import available

INVALID = ld.LLMStatusCode.LLM_PARAM_INVALID


@pytest.fixture(autouse=True)
def _plain_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HCCL_CONNECT_TIMEOUT", raising=False)
    monkeypatch.setenv("CACHEFW_TRANSPORTS", "host")
    yield
    live = ld.LLMDataDist.llm_engine_instance
    assert live is None, "a test left an instance behind"


def refuse(wanted: Any, call: Callable[[], Any]) -> Any:
    """The call raises a type, or an LLMException with a status."""
    if isinstance(wanted, ld.LLMStatusCode):
        with pytest.raises(ld.LLMException) as caught:
            call()
        assert caught.value.status_code is wanted
    else:
        with pytest.raises(wanted) as caught:
            call()
        assert not isinstance(caught.value, ld.LLMException)
    return caught.value


# ---------------------------------------------------------------------- properties

WRONG = [
    ("device_id", None, TypeError),
    ("device_id", "0", TypeError),
    ("device_id", -1, INVALID),
    ("device_id", [0, -1], INVALID),
    ("device_id", [], INVALID),
    ("device_id", 2**31, ValueError),
    ("sync_kv_timeout", None, TypeError),
    ("sync_kv_timeout", 1.5, TypeError),
    ("sync_kv_timeout", 0, INVALID),
    ("sync_kv_timeout", "0", INVALID),
    ("sync_kv_timeout", "1s", INVALID),
    ("ge_options", None, AttributeError),
    ("ge_options", [], TypeError),
    ("ge_options", {1: "1"}, TypeError),
    ("ge_options", {"a": 1}, TypeError),
    ("listen_ip_info", 1, TypeError),
    ("enable_cache_manager", 1, TypeError),
    ("enable_remote_cache_accessible", "1", TypeError),
    ("mem_pool_cfg", {}, TypeError),
    ("host_mem_pool_cfg", {}, TypeError),
    ("link_total_time", None, TypeError),
    ("link_total_time", -1, INVALID),
    ("link_total_time", 2**32, INVALID),
    ("link_retry_count", "1", TypeError),
    ("link_retry_count", 0, INVALID),
    ("link_retry_count", 101, INVALID),
    ("rdma_traffic_class", None, TypeError),
    ("rdma_traffic_class", -1, ValueError),
    ("rdma_service_level", 2**32, ValueError),
    ("local_comm_res", {}, TypeError),
    ("transfer_backend", 1, TypeError),
    ("global_resource_config", {}, TypeError),
    ("enable_switch_role", 1, TypeError),
    ("mem_utilization", 1, TypeError),
    ("mem_utilization", 1.5, INVALID),
    ("mem_utilization", None, TypeError),
    ("buf_pool_cfg", 1, TypeError),
    ("deploy_res_path", 1, TypeError),
    ("output_max_size", "1", TypeError),
    ("cluster_info", 1, TypeError),
    ("cluster_info", "{", INVALID),
]


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG, ids=str)
def test_a_property_refuses(name: str, value: Any, wanted: Any) -> None:
    refuse(wanted, lambda: setattr(ld.LLMConfig(), name, value))


UNSET = {
    "device_id": None,
    "sync_kv_timeout": None,
    "ge_options": {},
    "listen_ip_info": "",
    "enable_cache_manager": False,
    "enable_remote_cache_accessible": False,
    "mem_pool_cfg": "",
    "host_mem_pool_cfg": "",
    "link_total_time": 0,
    "link_retry_count": 1,
    "rdma_traffic_class": None,
    "rdma_service_level": None,
    "local_comm_res": "",
    "transfer_backend": "",
    "global_resource_config": "",
    "enable_switch_role": False,
    "mem_utilization": 0.95,
    "buf_pool_cfg": "",
    "deploy_res_path": "",
    "output_max_size": None,
    "cluster_info": "",
}


@pytest.mark.parametrize("name", UNSET)
def test_a_property_has_a_value_before_it_is_set(name: str) -> None:
    assert getattr(ld.LLMConfig(), name) == UNSET[name]


ALWAYS = {"llm.MemoryUtilization": "0.95"}
KEYS = [
    ("device_id", 3, {"ge.exec.deviceId": "3", "ge.session_device_id": "3"}),
    ("device_id", (1, 2), {"ge.exec.deviceId": "1;2", "ge.session_device_id": "1"}),
    ("sync_kv_timeout", 5, {"llm.SyncKvCacheWaitTime": "5"}),
    ("sync_kv_timeout", "5", {"llm.SyncKvCacheWaitTime": "5"}),
    ("ge_options", {"ge.flowGraphMemMaxSize": "1"}, {"ge.flowGraphMemMaxSize": "1"}),
    ("listen_ip_info", "1.2.3.4:5", {"llm.listenIpInfo": "1.2.3.4:5"}),
    ("listen_ip_info", "", {}),
    ("enable_cache_manager", True, {"llm.EnableCacheManager": "1"}),
    ("enable_cache_manager", False, {"llm.EnableCacheManager": "0"}),
    ("enable_cache_manager", None, {}),
    ("enable_remote_cache_accessible", False, {"llm.EnableRemoteCacheAccessible": "0"}),
    ("mem_pool_cfg", "{}", {"llm.MemPoolConfig": "{}"}),
    ("host_mem_pool_cfg", "{}", {"llm.HostMemPoolConfig": "{}"}),
    ("link_total_time", 0, {"llm.LinkTotalTime": "0"}),
    ("link_retry_count", 2, {"llm.LinkRetryCount": "2"}),
    ("rdma_traffic_class", 132, {"llm.RdmaTrafficClass": "132"}),
    ("rdma_service_level", 4, {"llm.RdmaServiceLevel": "4"}),
    ("local_comm_res", "", {"llm.LocalCommRes": ""}),
    ("local_comm_res", None, {}),
    ("transfer_backend", "hixl", {"llm.TransferBackend": "hixl"}),
    ("global_resource_config", "{}", {"llm.GlobalResourceConfig": "{}"}),
    ("enable_switch_role", True, {"llm.EnableSwitchRole": "1"}),
    ("enable_switch_role", False, {}),
    ("mem_utilization", 0.5, {"llm.MemoryUtilization": "0.5"}),
    ("buf_pool_cfg", "x", {"llm.BufPoolCfg": "x"}),
    ("deploy_res_path", "x", {"llm.deployResPath": "x"}),
    ("output_max_size", 7, {"llm.OutputMaxSize": "7"}),
    (
        "cluster_info",
        '{"listen_ip_info": [{"ip": "127.0.0.1", "port": 1}]}',
        {"llm.ClusterInfo": '{"listen_ip_info": [{"ip": 16777343, "port": 1}]}'},
    ),
]


@pytest.mark.parametrize(("name", "value", "made"), KEYS, ids=str)
def test_a_property_makes_its_keys(name: str, value: Any, made: dict[str, str]) -> None:
    config = ld.LLMConfig()
    setattr(config, name, value)
    assert config.generate_options() == {**ALWAYS, **made}


def test_the_options_of_a_small_configuration() -> None:
    config = ld.LLMConfig()
    config.device_id, config.local_comm_res, config.listen_ip_info = 0, "", "127.0.0.1:26000"
    assert config.gen_options() == {
        "ge.exec.deviceId": "0",
        "ge.session_device_id": "0",
        "llm.listenIpInfo": "127.0.0.1:26000",
        "llm.LocalCommRes": "",
        "llm.MemoryUtilization": "0.95",
    }


def test_options_are_one_object_that_forgets_nothing() -> None:
    config = ld.LLMConfig()
    config.listen_ip_info = "a:1"
    config.ge_options = {"llm.listenIpInfo": "b:2"}
    options = config.generate_options()
    assert options["llm.listenIpInfo"] == "a:1"
    config.listen_ip_info = ""
    config.ge_options = {}
    assert config.generate_options() is options is config.options
    assert options["llm.listenIpInfo"] == "a:1"


def test_a_misspelt_property_is_named() -> None:
    with pytest.warns(UserWarning, match="did you mean 'sync_kv_timeout'"):
        ld.LLMConfig().sync_kv_timout = 5


# ---------------------------------------------------------------------- init, in the order of its checks

MANAGER = {"llm.EnableCacheManager": "1"}
INIT = [
    (None, AttributeError),
    ([], TypeError),
    ({"ge.flowGraphMemMaxSize": 1}, TypeError),
    ({"ge.flowGraphMemMaxSize": "1,2"}, INVALID),
    ({"ge.flowGraphMemMaxSize": "1G"}, INVALID),
    ({"llm.LocalCommRes": "", "llm.EnableCacheManager": "0"}, INVALID),
    ({"llm.TransferBackend": "hixl"}, INVALID),
    ({**MANAGER, "llm.TransferBackend": "hixl", "llm.EnableRemoteCacheAccessible": "0"}, INVALID),
    ({**MANAGER, "llm.TransferBackend": "hixl"}, INVALID),
    ({**MANAGER, "llm.listenIpInfo": 5}, TypeError),
    ({**MANAGER, "llm.listenIpInfo": "127.0.0.1"}, INVALID),
    ({**MANAGER, "llm.listenIpInfo": "::1:5"}, INVALID),
    ({**MANAGER, "llm.listenIpInfo": "127.0.0.1:x"}, ValueError),
    ({}, ModuleNotFoundError),
    ({"llm.EnableCacheManager": "0"}, ModuleNotFoundError),
    ({**MANAGER, "ge.exec.deviceId": 0}, TypeError),
    ({**MANAGER, "llm.EnableRemoteCacheAccessible": "2"}, INVALID),
    ({**MANAGER, "llm.EnableRemoteCacheAccessible": ""}, INVALID),
    ({**MANAGER, "ge.exec.deviceId": ""}, INVALID),
    ({**MANAGER, "ge.exec.deviceId": "a"}, INVALID),
    ({**MANAGER, "ge.exec.deviceId": "-1"}, INVALID),
    ({**MANAGER, "ge.exec.deviceId": "0;1"}, INVALID),
    ({**MANAGER, "llm.TransferBackend": "", "llm.listenIpInfo": "127.0.0.1:0"}, INVALID),
    ({**MANAGER, "llm.TransferBackend": "hcom", "llm.listenIpInfo": "127.0.0.1:0"}, INVALID),
    ({**MANAGER, "llm.RdmaTrafficClass": "x"}, INVALID),
    ({**MANAGER, "llm.RdmaServiceLevel": "-1"}, INVALID),
    ({**MANAGER, "llm.LinkRetryCount": "0"}, INVALID),
    ({**MANAGER, "llm.LinkRetryCount": "101"}, INVALID),
    ({**MANAGER, "llm.LinkTotalTime": "soon"}, INVALID),
    ({**MANAGER, "llm.SyncKvCacheWaitTime": "0"}, INVALID),
    ({**MANAGER, "llm.SyncKvCacheWaitTime": "-5"}, INVALID),
    ({**MANAGER, "llm.MemPoolConfig": "{"}, INVALID),
    ({**MANAGER, "llm.HostMemPoolConfig": "{}"}, INVALID),
    (
        {**MANAGER, "llm.LocalCommRes": "x" * 65537, "llm.TransferBackend": "hixl", "llm.listenIpInfo": "127.0.0.1:0"},
        INVALID,
    ),
    ({**MANAGER, "cachefw.transports": " , "}, INVALID),
    ({**MANAGER, "cachefw.transport": "host"}, INVALID),
    ({**MANAGER, "cachefw.settings": "[]"}, INVALID),
    ({**MANAGER, "cachefw.settings": '{"host": 1}'}, INVALID),
    ({**MANAGER, "cachefw.transports": "hosst"}, ld.LLMStatusCode.LLM_FAILED),
    ({**MANAGER, "llm.listenIpInfo": "127.0.0.1:70000"}, ld.LLMStatusCode.LLM_FAILED),
]


@pytest.mark.parametrize(("options", "wanted"), INIT, ids=lambda item: str(item)[:70])
def test_init_refuses(options: Any, wanted: Any) -> None:
    dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 1)
    refuse(wanted, lambda: dist.init(options))
    assert not dist._is_initialized
    # And a retry is allowed.
    dist.init({**MANAGER})
    dist.finalize()


def test_an_address_in_use_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 1)
        refuse(ld.LLMStatusCode.LLM_FAILED, lambda: dist.init({**MANAGER, "llm.listenIpInfo": f"127.0.0.1:{port}"}))


CONSTRUCT = [
    ((1, 1), TypeError),
    (("PROMPT", 1), TypeError),
    ((ld.LLMRole.PROMPT, "1"), TypeError),
    ((ld.LLMRole.PROMPT, None), TypeError),
    ((ld.LLMRole.PROMPT, -1), ValueError),
    ((ld.LLMRole.PROMPT, 2**64), ValueError),
]


@pytest.mark.parametrize(("arguments", "wanted"), CONSTRUCT, ids=str)
def test_the_constructor_refuses(arguments: tuple[Any, Any], wanted: Any) -> None:
    refuse(wanted, lambda: ld.LLMDataDist(*arguments))


def test_without_a_role_init_fails() -> None:
    refuse(KeyError, lambda: ld.LLMDataDist(None, 1).init({**MANAGER}))
    assert ld.LLMDataDist._role_to_str(ld.LLMRole.MIX) == "Mix"


@pytest.mark.parametrize(
    ("role", "word"), [(ld.LLMRole.PROMPT, "Prompt"), (ld.LLMRole.DECODER, "Decoder"), (ld.LLMRole.MIX, "Mix")]
)
def test_init_completes_a_copy_of_the_options(role: ld.LLMRole, word: str) -> None:
    dist = ld.LLMDataDist(role, 1)
    options = {"llm.LocalCommRes": "", "llm.listenIpInfo": "127.0.0.1:0"}
    dist.init(options)
    try:
        assert options == {"llm.LocalCommRes": "", "llm.listenIpInfo": "127.0.0.1:0"}
        assert dist._engine_options == {
            **options,
            "llm.Role": word,
            "llm.EnableCacheManager": "1",
            "llm.EnableRemoteCacheAccessible": "1",
            "llm.ListenIp": "127.0.0.1",
            "llm.ListenPort": "0",
        }
        assert (dist._is_initialized, dist._enable_cache_mgr) == (True, True)
        # Again, whatever the argument.
        dist.init(None)
        other = ld.LLMDataDist(role, 2)
        refuse(ld.LLMStatusCode.LLM_FAILED, lambda: other.init({**MANAGER}))
        assert ld.LLMDataDist.llm_engine_instance is dist
    finally:
        dist.finalize()
    dist.finalize()
    assert ld.LLMDataDist.llm_engine_instance is None


UNINITIALISED = [
    lambda dist: dist.cache_manager,
    lambda dist: dist.kv_cache_manager,
    lambda dist: dist.check_link_status(1),
    lambda dist: dist.link_clusters([]),
    lambda dist: dist.unlink_clusters([]),
    lambda dist: dist.link("a", {}, ""),
    lambda dist: dist.unlink(1),
    lambda dist: dist.query_register_mem_status(1),
    lambda dist: dist.switch_role(ld.LLMRole.PROMPT),
]


@pytest.mark.parametrize("call", UNINITIALISED)
def test_before_init_calls_are_runtime_errors(call: Callable[[ld.LLMDataDist], Any]) -> None:
    dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 7)
    assert isinstance(refuse(RuntimeError, lambda: call(dist)), cachefw.CacheError)
    assert dist.cluster_id == 7
    dist.finalize()


def test_the_first_generations_calls_are_refused() -> None:
    dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 7)
    dist.init({**MANAGER})
    try:
        refuse(INVALID, lambda: dist.kv_cache_manager)
        refuse(INVALID, lambda: dist.check_link_status(1))
    finally:
        dist.finalize()


# ---------------------------------------------------------------------- unknown keys

UNKNOWN = [
    ("llm.SyncKvCacheWaitTimes", "did you mean 'llm.SyncKvCacheWaitTime'"),
    ("llm.Xyzzy", "nothing reads it"),
    ("ge.exec.devicId", "did you mean 'ge.exec.deviceId'"),
    ("something", "nothing reads it"),
]


@pytest.mark.parametrize(("name", "text"), UNKNOWN)
def test_an_unknown_option_is_named(name: str, text: str) -> None:
    with pytest.warns(UserWarning, match=text):
        parse({name: "1"})


def test_an_unknown_option_of_ours_is_an_error() -> None:
    error = refuse(INVALID, lambda: parse({"cachefw.transport": "host"}))
    assert "did you mean 'cachefw.transports'" in str(error)


def test_an_option_of_the_graph_engine_is_left_alone() -> None:
    assert parse({"ge.graphRunMode": "1"}).device_id == 0


# ---------------------------------------------------------------------- JSON documents

POOL = [
    ("[]", "object"),
    ("{}", "memory_size"),
    ('{"memory_size": "1"}', "memory_size"),
    ('{"memory_size": -1}', "memory_size"),
    ('{"memory_size": 1.5}', "memory_size"),
    ('{"memory_size": true}', "memory_size"),
    ('{"memory_size": 1000}', "pages"),
    ('{"memory_size": 65536, "page_shift": 9}', "page_shift"),
    ('{"memory_size": 65536, "page_shift": 31}', "page_shift"),
    ('{"memory_size": 4398046511104, "page_shift": 10}', "pages"),
]


@pytest.mark.parametrize(("text", "says"), POOL)
def test_a_wrong_pool(text: str, says: str) -> None:
    assert says in str(refuse(INVALID, lambda: pool_config("mem_pool_cfg", text)))


def test_a_pool() -> None:
    assert attrs.astuple(pool_config("mem_pool_cfg", '{"memory_size": 200000}')) == (200000, 16)
    assert pool_config("mem_pool_cfg", '{"memory_size": 200000, "page_shift": 10}').pages == 195
    with pytest.warns(UserWarning, match="did you mean 'page_shift'"):
        pool_config("mem_pool_cfg", '{"memory_size": 200000, "page_shfit": 10}')


def table(version: str, **device: Any) -> dict[str, Any]:
    found = {"device_id": "0", "device_ip": "1.2.3.4", **device}
    return {
        "server_list": [{"device": [found], "server_id": "x"}],
        "status": "completed",
        "version": version,
    }


RESOURCES: list[tuple[Any, str | None]] = [
    (table("1.0"), None),
    (table("1.2", super_device_id="0"), None),
    (
        {
            **table("1.2", super_device_id="0"),
            "super_pod_list": [{"super_pod_id": "0", "server_list": [{"server_id": "x"}]}],
        },
        None,
    ),
    ({"version": "1.3"}, None),
    (table("1.2"), "super_device_id"),
    (table("1.1"), "version"),
    (table("1.0", device_id=0), "device_id"),
    ({**table("1.0"), "server_list": []}, "server_list"),
    ({**table("1.0"), "server_list": [{"server_id": "x", "device": []}]}, "device"),
    ({**table("1.0"), "server_list": [{"server_id": "x", "device": [{"device_id": "0"}] * 2}]}, "exactly one"),
    ({**table("1.0"), "server_list": [{"device": [{"device_id": "0"}]}]}, "server_id"),
    ({"version": "1.3", "endpoint_list": []}, "endpoint_list"),
    ({"version": "1.3", "endpoint_list": [{"protocol": "roc", "placement": "host"}]}, "did you mean 'roce'"),
    ({"version": "1.3", "endpoint_list": [{"protocol": "roce", "placement": "gpu"}]}, "placement"),
]


@pytest.mark.parametrize(("document", "says"), RESOURCES, ids=lambda item: str(item)[:60])
def test_communication_resources(document: Any, says: str | None) -> None:
    text = json.dumps(document)
    if says is None:
        assert comm_res(text).version == document["version"]
    else:
        assert says in str(refuse(INVALID, lambda: comm_res(text)))


def test_communication_resources_that_are_no_document() -> None:
    assert comm_res("") is None
    refuse(INVALID, lambda: comm_res("{"))
    refuse(INVALID, lambda: comm_res(" " * 65537))
    with pytest.warns(UserWarning, match="did you mean 'version'"):
        refuse(INVALID, lambda: comm_res('{"version": "1.3", "endpoint_list": [{}], "versoin": "1.3"}'))


def test_the_default_engine_says_what_is_wrong_with_its_resources_when_it_links() -> None:
    for document in ({"version": "9"}, {"version": "1.3"}):
        assert parse({"llm.LocalCommRes": json.dumps(document)}).comm_res_error.status_code is INVALID
        assert parse({"llm.LocalCommRes": ""}).comm_res_error is None


GLOBAL = [
    ({"comm_resource_config.protocol_desc": "roce:devise"}, "did you mean 'roce:device'"),
    ({"comm_resource_config.protocol_desc": [1]}, "protocol_desc"),
    ({"comm_resource_config.listen_port": 0}, "listen_port"),
    ({"comm_resource_config.listen_port": 65536}, "listen_port"),
    ({"comm_resource_config.qos": 8}, "qos"),
    ({"comm_resource_config.max_active_channels": 0}, "max_active_channels"),
    ({"connect_pool.thread_num": 65}, "thread_num"),
    ({"connect_pool.task_queue_capacity": 0}, "task_queue_capacity"),
    ({"channel_pool.max_channel": 513}, "max_channel"),
    ({"channel_pool.high_waterline": 0.5}, "low_waterline"),
    ({"channel_pool.high_waterline": 2, "channel_pool.low_waterline": 0.1}, "high_waterline"),
    ({"fabric_memory.task_stream_num": 9}, "task_stream_num"),
    ({"local_comm_res_path": 5}, "local_comm_res_path"),
]


@pytest.mark.parametrize(("document", "says"), GLOBAL, ids=str)
def test_a_wrong_resource_configuration(document: Any, says: str) -> None:
    assert says in str(refuse(INVALID, lambda: resource_config(json.dumps(document))))


def test_a_resource_configuration() -> None:
    config = resource_config('{"comm_resource_config.protocol_desc": "roce:host", "connect_pool.thread_num": "2"}')
    assert config.protocols == ("roce:host",)
    with pytest.warns(UserWarning, match=r"did you mean 'comm_resource_config\.qos'"):
        assert resource_config('{"comm_resource_config.qqos": 1}').protocols == ()


def test_communication_resources_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "resources.json"
    options = {**HIXL, "llm.GlobalResourceConfig": json.dumps({"local_comm_res_path": str(file)})}
    refuse(INVALID, lambda: parse(options))
    file.write_text("")
    refuse(INVALID, lambda: parse(options))
    file.write_text(ENDPOINT)
    assert parse(options).protocols == ("roce:host",)
    assert parse({**options, "llm.LocalCommRes": ""}).protocols == ("roce:host",)
    # The option itself counts first.
    assert parse({**options, "llm.LocalCommRes": '{"version": "1.3"}'}).protocols == ()


# ---------------------------------------------------------------------- transports

HIXL = {"llm.TransferBackend": "hixl"}
ENDPOINT = json.dumps({"version": "1.3", "endpoint_list": [{"protocol": "roce", "placement": "host"}]})
BOTH = json.dumps({"comm_resource_config.protocol_desc": ["hccs:device", "roce:device"]})
CHOICES = [
    ({}, None, None),
    ({}, "host", ("host",)),
    ({"cachefw.transports": "rdma, host"}, "hccs", ("rdma", "host")),
    ({**HIXL, "llm.GlobalResourceConfig": BOTH}, None, ("hccs", "rdma")),
    ({**HIXL, "llm.GlobalResourceConfig": BOTH}, "host", ("host",)),
    ({**HIXL, "llm.LocalCommRes": ENDPOINT}, None, ("rdma",)),
    ({**HIXL, "llm.LocalCommRes": ENDPOINT, "llm.GlobalResourceConfig": BOTH}, None, ("hccs", "rdma")),
    # Only the hixl engine reads it.
    ({"llm.GlobalResourceConfig": BOTH}, None, None),
]


@pytest.mark.parametrize(("options", "variable", "wanted"), CHOICES, ids=str)
def test_options_choose_transports(
    options: dict[str, str], variable: str | None, wanted: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None stands for what is there, when nobody chose."""
    monkeypatch.setenv("CACHEFW_TRANSPORTS", variable or "")
    assert choose(parse(options)) == (available() if wanted is None else wanted)
    assert available()[-1] == "host"


def test_a_protocol_that_nothing_serves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEFW_TRANSPORTS")
    options = {**HIXL, "llm.GlobalResourceConfig": '{"comm_resource_config.protocol_desc": "ub_ctp:device"}'}
    refuse(ld.LLMStatusCode.LLM_FEATURE_NOT_ENABLED, lambda: choose(parse(options)))


def test_the_device_is_a_setting_of_its_transport() -> None:
    options = parse({"ge.exec.deviceId": "3", "cachefw.settings": '{"hccs": {"any_process": true}}'})
    assert settings_for(("hccs", "host"), options) == {"hccs": {"any_process": True, "device": 3}, "host": {}}


def test_times() -> None:
    assert parse({}).timeout == 1
    assert parse({"llm.SyncKvCacheWaitTime": "250"}).timeout == 0.25
    assert parse({}).link_total_time == 120
    assert parse({"llm.LinkTotalTime": "7"}).link_total_time == 7


def test_linking_takes_as_long_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "300")
    assert parse({"llm.LinkTotalTime": "0"}).link_total_time == 300
