"""LLM-DataDist's names, enumerations, status codes, exceptions and value classes, row by row."""

from __future__ import annotations

import enum
import importlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.compat import llm_datadist as ld
from cachefw.compat.llm_datadist import data_type, llm_datadist_wrapper, metadef_wrapper
from cachefw.compat.llm_datadist.status import code_to_status, translated
from cachefw.compat.llm_datadist.v2 import llm_types

BASE = 0x5010B000
ABSENT = 2**64 - 1
INVALID = ld.LLMStatusCode.LLM_PARAM_INVALID


class Le:
    """An LLMException with a status."""

    def __init__(self, status: ld.LLMStatusCode = INVALID) -> None:
        self.status = status


LE = Le()


def raises(wanted: Any, call: Callable[[], Any]) -> Any:
    """The call raises a type, or for `Le` an LLMException with that status; always a CacheError."""
    with pytest.raises(ld.LLMException if isinstance(wanted, Le) else wanted) as caught:
        call()
    error = caught.value
    assert isinstance(error, cachefw.CacheError)
    assert str(error)
    if isinstance(wanted, Le):
        assert error.status_code is wanted.status
        assert isinstance(error, ValueError) is (wanted.status is INVALID and not isinstance(error, TypeError))
    else:
        assert not isinstance(error, ld.LLMException)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (type(error), str(error))
    return error


# ---------------------------------------------------------------------- modules and names

V2 = [
    "LLMClusterInfo",
    "LLMStatusCode",
    "LLMException",
    "LLMRole",
    "LlmConfig",
    "LLMConfig",
    "DataType",
    "Status",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "KvCache",
    "Cache",
    "BlocksCacheKey",
    "LLMDataDist",
    "Placement",
    "RegisterMemStatus",
    "LayerSynchronizer",
    "TransferConfig",
    "CacheTask",
    "TransferWithCacheKeyConfig",
    "Memtype",
    "MemInfo",
]
V1 = ["TensorDesc", "Tensor", "KvCacheManager"]
MODULES = [
    "status",
    "configs",
    "data_type",
    "utils.utils",
    "utils.log",
    "v2.llm_datadist",
    "v2.cache_manager",
    "v2.llm_types",
    "v2.llm_utils",
    "v2.config",
    "llm_datadist_wrapper",
    "metadef_wrapper",
]


def test_the_public_names_are_the_vendors() -> None:
    assert sorted(ld.__all__) == sorted([*V2, *V1])
    assert sorted(ld.v2_list) == sorted(V2)
    assert all(hasattr(ld, name) for name in ld.v2_list)
    assert ld.LLMConfig is ld.LlmConfig
    assert not hasattr(ld, "CacheManager")


@pytest.mark.parametrize("name", V1)
def test_names_of_the_first_generation_are_not_there(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="llm_datadist_v1"):
        getattr(ld, name)


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Kache"):
        ld.Kache  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_programs_import_exist(name: str) -> None:
    importlib.import_module(f"cachefw.compat.llm_datadist.{name}")


@pytest.mark.parametrize("before", [None, "1"])
def test_importing_sets_a_variable_unless_it_is_set(before: str | None) -> None:
    environment = {**os.environ, "AUTO_USE_UC_MEMORY": before} if before else dict(os.environ)
    if before is None:
        environment.pop("AUTO_USE_UC_MEMORY", None)
    code = "import os, cachefw.compat.llm_datadist; print(os.environ['AUTO_USE_UC_MEMORY'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (before or "0")


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("0", logging.DEBUG), ("1", logging.INFO), ("2", logging.WARNING), ("3", logging.ERROR), ("x", logging.ERROR)],
)
def test_the_logger_has_the_level_of_the_variable(level: str, wanted: int) -> None:
    code = (
        "import logging, sys, cachefw.compat.llm_datadist; log = logging.getLogger('LLM_DATADIST');"
        "print(log.level, len(log.handlers), log.handlers[0].stream is sys.stdout)"
    )
    environment = {**os.environ, "ASCEND_GLOBAL_LOG_LEVEL": level}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(wanted), "1", "True"]


def test_a_program_that_imports_the_vendors_names_runs_unchanged(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    submodules = "\n".join(f"import llm_datadist.{name}" for name in MODULES)
    program.write_text(
        f"{submodules}\n"
        "from llm_datadist import LLMConfig, LLMDataDist, LLMRole\n"
        "from llm_datadist.v2.llm_types import Placement, PushType, check_layer_range, int_to_mem_status_dict\n"
        "from llm_datadist.v2.llm_datadist import EngineConfig, _shutdown_handler\n"
        "import llm_datadist_wrapper\n"
        "assert llm_datadist_wrapper is llm_datadist.llm_datadist_wrapper\n"
        "dist = LLMDataDist(LLMRole.PROMPT, 1)\n"
        "config = LLMConfig()\n"
        "config.device_id, config.local_comm_res = 0, ''\n"
        "dist.init(config.generate_options())\n"
        "print(type(dist.cache_manager).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "cachefw.compat", "run", str(program)],
        env={**os.environ, "CACHEFW_TRANSPORTS": "host"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "CacheManager\n"), done.stderr


def test_a_program_may_end_without_finalizing(tmp_path: Path) -> None:
    code = (
        "import numpy as np\n"
        "from cachefw.compat import llm_datadist as ld\n"
        "dist = ld.LLMDataDist(ld.LLMRole.PROMPT, 1)\n"
        "dist.init({'llm.LocalCommRes': '', 'llm.listenIpInfo': '127.0.0.1:0', 'cachefw.transports': 'host'})\n"
        "memory = np.zeros((4, 32), np.uint8)\n"
        "desc = ld.CacheDesc(1, [4, 32], ld.DataType.DT_UINT8)\n"
        "dist.cache_manager.register_blocks_cache(desc, [memory.ctypes.data], ld.BlocksCacheKey(1))\n"
        "device = {'device': [{'rank_id': '0'}, {'rank_id': '1'}], 'server_id': 'x'}\n"
        "import json\n"
        "dist.link('alone', {1: 0, 2: 1}, json.dumps({'server_list': [device]}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # Only that there is no device; what is left is given back without a word, and so is the card for other members.
    assert done.stderr.count("\n") == done.stderr.count("no device memory here") == 1, done.stderr
    assert not list(tmp_path.glob("cachefw-*/*/*"))


# ---------------------------------------------------------------------- enumerations

ENUMS = [
    (ld.LLMRole, enum.IntEnum, {"PROMPT": 1, "DECODER": 2, "MIX": 3}),
    (ld.Placement, enum.IntEnum, {"HOST": 0, "DEVICE": 1}),
    (ld.Memtype, enum.Enum, {"MEM_TYPE_DEVICE": 0, "MEM_TYPE_HOST": 1}),
    (ld.RegisterMemStatus, enum.Enum, {"OK": 0, "PREPARING": 1, "FAILED": 2}),
    (llm_types.PushType, enum.Enum, {"NO_CACHE_KEY": 0, "BLOCKS_CACHE_KEY": 1, "CACHE_KEY_BY_ID": 2}),
    (
        ld.DataType,
        enum.Enum,
        {
            "DT_FLOAT": 0,
            "DT_FLOAT16": 1,
            "DT_INT8": 2,
            "DT_INT32": 3,
            "DT_UINT8": 4,
            "DT_INT16": 6,
            "DT_UINT16": 7,
            "DT_UINT32": 8,
            "DT_INT64": 9,
            "DT_UINT64": 10,
            "DT_DOUBLE": 11,
            "DT_BOOL": 12,
            "DT_STRING": 13,
            "DT_BF16": 27,
        },
    ),
]


@pytest.mark.parametrize(("cls", "base", "members"), ENUMS, ids=lambda item: getattr(item, "__name__", ""))
def test_enumerations_have_the_vendors_values(cls: Any, base: type, members: dict[str, int]) -> None:
    assert issubclass(cls, base)
    assert {member.name: member.value for member in cls} == members
    assert [str(member) for member in cls] == [f"{cls.__name__}.{name}" for name in members]


SIZES = {
    4: "FLOAT INT32 UINT32",
    2: "FLOAT16 BF16 INT16 UINT16",
    1: "INT8 UINT8 BOOL",
    8: "INT64 UINT64 DOUBLE",
    16: "STRING",
}


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, names in SIZES.items() for name in names.split()])
def test_elements_have_the_vendors_sizes(size: int, name: str) -> None:
    number = ld.DataType[f"DT_{name}"]
    assert ld.CacheDesc(1, [3, 5], number).size == 15 * size
    assert llm_datadist_wrapper.calc_tensor_size([3, 5], number.value) == 15 * size
    assert getattr(metadef_wrapper, f"DT_{name}") == number.value


def test_data_types_have_counterparts_in_numpy() -> None:
    assert data_type.dtype_to_np_dtype[ld.DataType.DT_BF16] is np.float16
    assert data_type.np_dtype_to_dtype[np.dtype(np.float16)] is ld.DataType.DT_FLOAT16
    assert np.dtype(np.int64) in data_type.valid_np_dtypes
    for each in ld.DataType:
        assert data_type.get_python_dtype_from_wrapper_dtype(data_type.python_dtype_2_dwrapper_dtype[each]) is each
    raises(ValueError, lambda: data_type.get_python_dtype_from_wrapper_dtype(5))
    assert llm_datadist_wrapper.calc_tensor_size([1], 5) == -1
    assert llm_datadist_wrapper.calc_tensor_size([-1, 1], 0) == -1


# ---------------------------------------------------------------------- status codes and exceptions

STATUSES = {
    "LLM_SUCCESS": 0,
    "LLM_FAILED": 4294967295,
    "LLM_WAIT_PROCESS_TIMEOUT": BASE + 1,
    "LLM_KV_CACHE_NOT_EXIST": BASE + 2,
    "LLM_REPEAT_REQUEST": BASE + 3,
    "LLM_REQUEST_ALREADY_COMPLETED": BASE + 4,
    "LLM_PARAM_INVALID": 1343270917,
    "LLM_ENGINE_FINALIZED": BASE + 6,
    "LLM_NOT_YET_LINK": BASE + 7,
    "LLM_ALREADY_LINK": BASE + 8,
    "LLM_LINK_FAILED": BASE + 9,
    "LLM_UNLINK_FAILED": BASE + 10,
    "LLM_NOTIFY_PROMPT_UNLINK_FAILED": BASE + 11,
    "LLM_CLUSTER_NUM_EXCEED_LIMIT": BASE + 12,
    "LLM_PROCESSING_LINK": BASE + 13,
    "LLM_DEVICE_OUT_OF_MEMORY": BASE + 14,
    "LLM_PREFIX_ALREADY_EXIST": BASE + 15,
    "LLM_PREFIX_NOT_EXIST": BASE + 16,
    "LLM_SEQ_LENOVERLIMIT": BASE + 17,
    "LLM_NO_FREE_BLOCK": BASE + 18,
    "LLM_BLOCKS_OUT_OF_MEMORY": BASE + 19,
    "LLM_EXIST_LINK": BASE + 24,
    "LLM_FEATURE_NOT_ENABLED": BASE + 25,
    "LLM_TIMEOUT": BASE + 26,
    "LLM_LINK_BUSY": BASE + 27,
    "LLM_OUT_OF_MEMORY": BASE + 28,
    "LLM_DEVICE_MEM_ERROR": 507053,
    "LLM_SUSPECT_REMOTE_ERROR": 507057,
    "LLM_UNKNOWN_ERROR": -1,
}
WRAPPER = [
    "kSuccess",
    "kFailed",
    "kLLMWaitProcessTimeOut",
    "kLLMKVCacheNotExist",
    "kLLMRepeatRequest",
    "kLLMRequestAlreadyCompleted",
    "kParamInvalid",
    "kLLMEngineFinalized",
    "kLLMNotYetLink",
    "kAlreadyLink",
    "kLinKFailed",
    "kUnlinkFailed",
    "kNotifyPromptUnlinkFailed",
    "kLLMClusterNumExceedLimit",
    "kProcessingLink",
    "kDeviceOutOfMemory",
    "kPrefixAlreadyExist",
    "kPrefixNotExist",
    "kLLMSeqLenOverLimit",
    "kLLMNoFreeBlock",
    "kLLMBlocksOutOfMemory",
    "kLLMExistLink",
    "kLLMFeatureNotEnabled",
    "kLLMTimeout",
    "kLLMLinkBusy",
    "kLLMOutOfMemory",
    "kLLMDeviceMemError",
    "kLLMSuspectRemoteError",
]


def test_status_codes_have_the_vendors_values() -> None:
    assert {member.name: member.value for member in ld.LLMStatusCode} == STATUSES
    assert str(ld.LLMStatusCode.LLM_TIMEOUT) == "LLMStatusCode.LLM_TIMEOUT"
    assert [getattr(llm_datadist_wrapper, name) for name in WRAPPER] == list(STATUSES.values())[:-1]


def test_a_native_code_that_is_not_known_is_a_failure() -> None:
    assert code_to_status(BASE + 26) is ld.LLMStatusCode.LLM_TIMEOUT
    assert code_to_status(12345) is ld.LLMStatusCode.LLM_FAILED
    assert code_to_status(-1) is ld.LLMStatusCode.LLM_FAILED


def test_the_exception_is_a_runtime_error_with_a_status() -> None:
    assert ld.LLMException().status_code is ld.LLMStatusCode.LLM_SUCCESS
    assert str(ld.LLMException()) == ""
    error = ld.LLMException("text", status_code=ld.LLMStatusCode.LLM_TIMEOUT)
    assert isinstance(error, RuntimeError)
    assert (str(error), error.args, error.status_code) == ("text", ("text",), ld.LLMStatusCode.LLM_TIMEOUT)
    assert error.code == "LLM_TIMEOUT"
    assert pickle.loads(pickle.dumps(error)).status_code is ld.LLMStatusCode.LLM_TIMEOUT
    assert ld.Status(ld.LLMStatusCode.LLM_SUCCESS).is_ok()
    assert not ld.Status(INVALID).is_ok()
    assert ld.Status(INVALID).status_code is INVALID


ERRORS = [
    (cachefw.NotFoundError("x", code="not_found.link"), "NOT_YET_LINK"),
    (cachefw.NotFoundError("x", code="not_found.cache"), "KV_CACHE_NOT_EXIST"),
    (cachefw.NotFoundError("x", code="not_found.block"), "PARAM_INVALID"),
    (cachefw.RequestError("x"), "PARAM_INVALID"),
    (cachefw.RegistrationError("x"), "PARAM_INVALID"),
    (cachefw.RegistrationError("x", code="registration.native"), "FAILED"),
    (cachefw.TransferTimeout("x"), "TIMEOUT"),
    (cachefw.TransferCancelled("x"), "TIMEOUT"),
    (cachefw.BrokenError("x"), "TIMEOUT"),
    (cachefw.BrokenError("x", status=507053), "DEVICE_MEM_ERROR"),
    (cachefw.BrokenError("x", status=507057), "SUSPECT_REMOTE_ERROR"),
    (cachefw.ClosedError("x", code="link.closed"), "NOT_YET_LINK"),
    (cachefw.ClosedError("x"), "KV_CACHE_NOT_EXIST"),
    (cachefw.BusyError("x"), "LINK_BUSY"),
    (cachefw.OutOfMemoryError("x"), "OUT_OF_MEMORY"),
    (cachefw.UnsupportedOperation("x"), "FEATURE_NOT_ENABLED"),
    (cachefw.AuthenticationError("x"), "LINK_FAILED"),
    (cachefw.TransportUnavailable("x"), "FAILED"),
    (cachefw.PluginError("x"), "FAILED"),
]


@pytest.mark.parametrize(("error", "name"), ERRORS, ids=lambda item: str(type(item).__name__))
def test_every_error_of_cachefws_has_a_status(error: cachefw.CacheError, name: str) -> None:
    known = translated(error, "pull_cache")
    assert isinstance(known, ld.LLMException)
    assert known.status_code is ld.LLMStatusCode[f"LLM_{name}"]
    assert isinstance(known, ValueError) is (name == "PARAM_INVALID")
    assert (known.code, known.status, known.operation) == (error.code, error.status, "pull_cache")
    assert translated(known, "other") is known


# ---------------------------------------------------------------------- CacheDesc

F16 = ld.DataType.DT_FLOAT16
DESC = {"num_tensors": 4, "shape": [2, 8], "data_type": F16}
DESC_ROWS: list[tuple[dict[str, Any], Any]] = [
    ({"num_tensors": None}, TypeError),
    ({"num_tensors": "4"}, TypeError),
    ({"num_tensors": -1}, ValueError),
    ({"num_tensors": 2**32}, ValueError),
    ({"shape": None}, TypeError),
    ({"shape": 8}, TypeError),
    ({"shape": [2, "8"]}, TypeError),
    ({"shape": [2, None]}, TypeError),
    ({"shape": []}, LE),
    ({"shape": [2, 2**63]}, ValueError),
    ({"data_type": 1}, TypeError),
    ({"placement": 1}, TypeError),
    ({"batch_dim_index": None}, TypeError),
    ({"batch_dim_index": "0"}, TypeError),
    ({"batch_dim_index": 2}, LE),
    ({"batch_dim_index": -1}, LE),
    ({"seq_len_dim_index": None}, TypeError),
    ({"seq_len_dim_index": 2**31}, ValueError),
    ({"seq_len_dim_index": 2}, LE),
    ({"seq_len_dim_index": -2}, LE),
    ({"kv_tensor_format": 3}, TypeError),
    # The first that is wrong decides.
    ({"num_tensors": -1, "shape": None}, ValueError),
    ({"shape": [], "data_type": 1}, TypeError),
]


@pytest.mark.parametrize(("wrong", "wanted"), DESC_ROWS, ids=str)
def test_a_wrong_description(wrong: dict[str, Any], wanted: Any) -> None:
    raises(wanted, lambda: ld.CacheDesc(**{**DESC, **wrong}))


def test_a_description_says_what_it_was_given() -> None:
    shape = [2, 8]
    desc = ld.CacheDesc(4, shape, F16, ld.Placement.HOST, 1, 0, "BNSD")
    assert desc.shape is shape
    assert (desc.num_tensors, desc.data_type, desc.placement) == (4, F16, ld.Placement.HOST)
    assert (desc.batch_dim, desc.batch_size, desc.seq_len_dim_index, desc.kv_tensor_format) == (1, 8, 0, "BNSD")
    assert desc.size == 32
    desc.update_dim(0, 3)
    assert (shape, desc.size, desc.batch_size) == ([3, 8], 48, 8)
    with pytest.raises(TypeError):
        ld.CacheDesc(1, (2, 8), F16).update_dim(0, 3)


def test_a_description_defers_some_of_its_faults() -> None:
    assert ld.CacheDesc(0, [1], F16).num_tensors == 0
    raises(AttributeError, lambda: ld.CacheDesc(1, [2], None).size)
    assert ld.CacheDesc(1, [2], F16, None).placement is None
    raises(Le(ld.LLMStatusCode.LLM_SUCCESS), lambda: ld.CacheDesc(1, [-2], F16).size)


REPRS = [
    (
        ld.CacheDesc(4, [2, 8], F16),
        "CacheDesc(num_tensors=4, shape=[2, 8], data_type=DataType.DT_FLOAT16, placement=Placement.DEVICE, "
        "batch_dim_index=0, seq_len_dim_index=-1,kv_tensor_format=None)",
    ),
    (ld.Cache(1, None, [1, 2]), "Cache(cache_id = 1, device_tensor_addrs = 2, is_blocks_cache = False)"),
    (ld.BlocksCacheKey(1), "BlocksCacheKey(cluster_id=1, model_id=0)"),
    (ld.BlocksCacheKey(prompt_cluster_id=1, model_id=2), "BlocksCacheKey(prompt_cluster_id=1, model_id=2)"),
    (ld.CacheKey(1, 2), f"CacheKey(cluster_id=1, req_id=2, prefix_id={ABSENT}, model_id=0)"),
    (ld.CacheKeyByIdAndIndex(1, 2, 3), "CacheKeyByIdAndIndex(cluster_id=1, cache_id=2, batch_index=3)"),
    (
        ld.MemInfo(ld.Memtype.MEM_TYPE_DEVICE, 1, 2),
        "MemInfo(mem_type=Memtype.MEM_TYPE_DEVICE, addr=1, size=2)",
    ),
]


@pytest.mark.parametrize(("value", "text"), REPRS, ids=lambda item: type(item).__name__)
def test_values_show_as_the_vendors_do(value: object, text: str) -> None:
    assert repr(value) == str(value) == text


# ---------------------------------------------------------------------- Cache and KvCache

HOST = ld.CacheDesc(2, [2, 8], F16, ld.Placement.HOST)
CPU_ROWS = [
    ((1, [1, 2]), TypeError),
    ((None, [1, 2]), AttributeError),
    ((HOST, (1, 2)), TypeError),
    ((HOST, [1, None]), TypeError),
    ((HOST, [1]), LE),
    ((ld.CacheDesc(2, [2, 8], F16), [1, 2]), LE),
]


@pytest.mark.parametrize(("arguments", "wanted"), CPU_ROWS, ids=str)
def test_a_wrong_cpu_cache(arguments: tuple[Any, Any], wanted: Any) -> None:
    raises(wanted, lambda: ld.Cache.create_cpu_cache(*arguments))


def test_a_cpu_cache() -> None:
    cache = ld.Cache.create_cpu_cache(HOST, [1, 2])
    assert (cache.cache_id, cache.cache_desc, cache.tensor_addrs, cache.is_blocks_cache) == (-1, HOST, [1, 2], True)
    raises(ValueError, lambda: ld.Cache(2**63, HOST, []))
    raises(TypeError, lambda: ld.Cache("1", HOST, []))


def test_a_cache_of_the_first_generation_is_given_back_with_its_last_reference() -> None:
    given = []

    class Manager:
        def is_initialized(self) -> bool:
            return True

        def deallocate_cache(self, cache: ld.KvCache) -> None:
            given.append(cache.cache_id)

    ld.KvCache(3, HOST, [[1, 2]], Manager())
    assert given == [3]
    flat, nested = ld.KvCache.create_cpu_cache(HOST, [1, 2]), ld.KvCache.create_cpu_cache(HOST, [[1, 2]])
    assert flat.per_device_tensor_addrs == nested.per_device_tensor_addrs == [[1, 2]]


# ---------------------------------------------------------------------- keys

KEY_ROWS: list[tuple[Callable[[], Any], Any]] = [
    (ld.BlocksCacheKey, LE),
    (lambda: ld.BlocksCacheKey(1, 2, 3), LE),
    (lambda: ld.BlocksCacheKey(1, modelid=3), LE),
    (lambda: ld.BlocksCacheKey("1"), TypeError),
    (lambda: ld.BlocksCacheKey(1, 2.0), TypeError),
    (lambda: ld.CacheKey(1), LE),
    (lambda: ld.CacheKey(req_id=1), LE),
    (lambda: ld.CacheKey(1, 2, 3, 4, 5), LE),
    (lambda: ld.CacheKey(1, 2, model=3), LE),
    (lambda: ld.CacheKey("1", 2), TypeError),
    (lambda: ld.CacheKey(1, None), TypeError),
    (lambda: ld.CacheKey(-1, 2), ValueError),
    (lambda: ld.CacheKey(1, 2**64), ValueError),
    (lambda: ld.CacheKey(1, 2, -1), ValueError),
    (lambda: ld.CacheKey(1, 2, 0, 2**64), ValueError),
    (lambda: ld.CacheKeyByIdAndIndex("1", 1), TypeError),
    (lambda: ld.CacheKeyByIdAndIndex(1, None), TypeError),
    (lambda: ld.CacheKeyByIdAndIndex(-1, 1), ValueError),
    (lambda: ld.CacheKeyByIdAndIndex(1, 2**63), ValueError),
    (lambda: ld.CacheKeyByIdAndIndex(1, 1, -1), ValueError),
    (lambda: ld.CacheKeyByIdAndIndex(1, 1, 2**32), ValueError),
]


@pytest.mark.parametrize(("make", "wanted"), KEY_ROWS)
def test_a_wrong_key(make: Callable[[], Any], wanted: Any) -> None:
    raises(wanted, make)


def test_a_misspelt_argument_of_a_key_is_named() -> None:
    error = raises(LE, lambda: ld.CacheKey(1, 2, modell_id=3))
    assert "did you mean 'model_id'?" in str(error)


def test_keys_say_what_they_were_given() -> None:
    assert ld.BlocksCacheKey(None).cluster_id is None
    assert ld.BlocksCacheKey(-1).cluster_id == -1
    both = ld.BlocksCacheKey(cluster_id=1, prompt_cluster_id=2)
    assert (both.cluster_id, both.prompt_cluster_id, both.model_id) == (1, 1, 0)
    assert ld.BlocksCacheKey(1, cluster_id=5).cluster_id == 1
    key = ld.CacheKey(1, 2, 3, 4)
    assert (key.cluster_id, key.req_id, key.model_id, key.prefix_id) == (1, 2, 3, 4)
    assert ld.CacheKey(prompt_cluster_id=7, req_id=1).prompt_cluster_id == 7
    assert ld.CacheKey(1, 2).prefix_id == ABSENT
    named = ld.CacheKeyByIdAndIndex(1, -5)
    assert (named.cluster_id, named.cache_id, named.batch_index) == (1, -5, 0)
    with pytest.raises(AttributeError):
        key.req_id = 3


# ---------------------------------------------------------------------- transfer descriptors

BLOCKS, BY_ID = ld.BlocksCacheKey(1), ld.CacheKeyByIdAndIndex(1, 1)
CONFIG_ROWS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: ld.TransferConfig(None, [1]), TypeError),
    (lambda: ld.TransferConfig(-1, [1]), ValueError),
    (lambda: ld.TransferConfig(1, None), TypeError),
    (lambda: ld.TransferConfig(1, 5), TypeError),
    (lambda: ld.TransferConfig(1, ["1"]), TypeError),
    (lambda: ld.TransferConfig(1, [2**64]), ValueError),
    (lambda: ld.TransferConfig(1, [1], [0]), TypeError),
    (lambda: ld.TransferConfig(1, [1], range(0, 4, 2)), LE),
    (lambda: ld.TransferConfig(1, [1], range(0)), LE),
    (lambda: ld.TransferConfig(1, [1], range(-1, 2)), LE),
    (lambda: ld.TransferConfig(1, [1], None, -1), ValueError),
    (lambda: ld.TransferConfig(1, [1], None, "0"), TypeError),
    (lambda: ld.TransferWithCacheKeyConfig(None, range(1), range(1)), TypeError),
    (lambda: ld.TransferWithCacheKeyConfig(ld.CacheKey(1, 2), range(1), range(1)), TypeError),
    (lambda: ld.TransferWithCacheKeyConfig(BLOCKS), TypeError),
    (lambda: ld.TransferWithCacheKeyConfig(BLOCKS, range(1)), TypeError),
    (lambda: ld.TransferWithCacheKeyConfig(BLOCKS, range(0, 4, 2), range(2)), LE),
    (lambda: ld.TransferWithCacheKeyConfig(BLOCKS, range(2), range(1)), LE),
    (lambda: ld.TransferWithCacheKeyConfig(BLOCKS, range(1), range(1), 1), LE),
    (lambda: ld.TransferWithCacheKeyConfig(BY_ID, range(1), range(1), -1), ValueError),
    (lambda: setattr(ld.TransferConfig(1, [1]), "dst_addrs", None), TypeError),
    (lambda: setattr(ld.TransferConfig(1, [1]), "src_batch_index", 2**32), ValueError),
    (lambda: setattr(ld.TransferWithCacheKeyConfig(BY_ID, range(1), range(1)), "cache_key", 1), TypeError),
]


@pytest.mark.parametrize(("make", "wanted"), CONFIG_ROWS)
def test_a_wrong_transfer_config(make: Callable[[], Any], wanted: Any) -> None:
    raises(wanted, make)


def test_transfer_configs_say_what_they_were_given() -> None:
    config = ld.TransferConfig(1, (2, 3))
    assert (config.dst_cluster_id, config.dst_addrs, config.src_layer_range, config.src_batch_index) == (
        1,
        (2, 3),
        None,
        0,
    )
    assert config.dst_layer_range is None
    keyed = ld.TransferWithCacheKeyConfig(BY_ID, range(1, 3), range(0, 2), 1)
    assert (keyed.src_layer_range, keyed.dst_layer_range, keyed.src_batch_index) == (range(1, 3), range(0, 2), 1)
    keyed.cache_key = ld.BlocksCacheKey(9)
    assert keyed.dst_cluster_id == 1
    keyed.cache_key = keyed.src_layer_range = keyed.dst_layer_range = None
    assert keyed.cache_key is None


def test_a_synchronizer_is_abstract() -> None:
    with pytest.raises(TypeError):
        ld.LayerSynchronizer()
    assert not isinstance(ld.LayerSynchronizer, type(None))


MEM_ROWS = [((1, 1, 1), TypeError), ((ld.Memtype.MEM_TYPE_HOST, "1", 1), TypeError), ((None, 1, "1"), TypeError)]


@pytest.mark.parametrize(("arguments", "wanted"), MEM_ROWS, ids=str)
def test_a_wrong_mem_info(arguments: tuple[Any, ...], wanted: Any) -> None:
    raises(wanted, lambda: ld.MemInfo(*arguments))
    assert ld.MemInfo(None, None, None).addr is None


# ---------------------------------------------------------------------- LLMClusterInfo

INFO_ROWS: list[tuple[Callable[[ld.LLMClusterInfo], Any], Any]] = [
    (lambda info: setattr(info, "remote_cluster_id", None), TypeError),
    (lambda info: setattr(info, "remote_cluster_id", 2**64), ValueError),
    (lambda info: setattr(info, "remote_role_type", "x"), TypeError),
    (lambda info: info.append_local_ip_info(None, 1), TypeError),
    (lambda info: info.append_remote_ip_info("127.0.0.1", None), TypeError),
    (lambda info: info.append_remote_ip_info("127.0.0.1", 65536), ValueError),
    (lambda info: info.append_remote_ip_info("::1", 1), RuntimeError),
    (lambda info: info.append_remote_ip_info("localhost", 1), RuntimeError),
]


@pytest.mark.parametrize(("do", "wanted"), INFO_ROWS)
def test_a_wrong_cluster_info(do: Callable[[ld.LLMClusterInfo], Any], wanted: Any) -> None:
    raises(wanted, lambda: do(ld.LLMClusterInfo()))


def test_a_cluster_info_keeps_addresses_as_numbers() -> None:
    info = ld.LLMClusterInfo()
    info.append_local_ip_info("127.0.0.1", 26000)
    info.append_remote_ip_info(16777343, 1)
    info.remote_role_type = ld.LLMRole.PROMPT
    info.remote_role_type = 1
    info.remote_cluster_id = 5
    assert info.local_ip_info_list == [(16777343, 26000)]
    assert info.remote_ip_info_list == [(16777343, 1)]
    assert info.remote_cluster_id == 5
