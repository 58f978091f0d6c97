"""The runtime of the process: counted, thread safe, shared with others."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import simulator

from cachefw.errors import BrokenError, CacheError, ClosedError, TransportUnavailable

Build = Callable[..., Path]


@pytest.fixture
def environ(build: Build) -> dict[str, str]:
    """Names the library of these tests, open so that its calls can be counted."""
    environ = {acl.VARIABLE: str(build("libascendcl.so"))}
    acl.open_library(environ)
    return environ


def counts() -> tuple[int, int]:
    library = acl.current_library()
    assert library is not None
    return simulator.calls("aclInit"), simulator.calls("aclFinalize")


def test_initialised_and_finalised_once(environ: dict[str, str]) -> None:
    started, ended = counts()
    with acl.Runtime(environ):
        with acl.Runtime(environ) as inner:
            assert inner.library is acl.current_library()
        assert inner.closed
        assert counts() == (started + 1, ended)
    assert acl.current_library() is None
    acl.open_library(environ)
    assert counts() == (started + 1, ended + 1)


def test_others_may_have_initialised_it(environ: dict[str, str]) -> None:
    _, ended = counts()
    simulator.fail("aclInit", acl.lib.ACL_ERROR_REPEAT_INITIALIZE)
    with acl.Runtime(environ):
        assert acl.recent_message() is None
    acl.open_library(environ)
    assert counts()[1] == ended, "who did not initialise does not finalise"


def test_torch_keeps_it(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    _, ended = counts()
    acl.Runtime(environ).close()
    acl.open_library(environ)
    assert counts()[1] == ended


def test_failing_to_initialise(environ: dict[str, str]) -> None:
    simulator.fail("aclInit", 507000)
    with pytest.raises(BrokenError) as caught:
        acl.Runtime(environ)
    assert (caught.value.status, caught.value.operation) == (507000, "aclInit")
    assert acl.current_library() is None
    acl.Runtime(environ).close()


def test_failing_to_finalise(environ: dict[str, str]) -> None:
    runtime = acl.Runtime(environ)
    simulator.fail("aclFinalize", 507000)
    with pytest.raises(BrokenError):
        runtime.close()
    assert not runtime.closed
    runtime.close()
    assert acl.current_library() is None


def test_unavailable() -> None:
    with pytest.raises(TransportUnavailable):
        acl.Runtime({acl.VARIABLE: "/nowhere/libascendcl.so"})
    assert acl.current_library() is None


def test_threads_share_one(environ: dict[str, str]) -> None:
    started, ended = counts()
    start = threading.Barrier(8)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            start.wait()
            for _ in range(20):
                with acl.Runtime(environ) as runtime, runtime.device(0) as device, device.allocate(64):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    acl.open_library(environ)
    inits, finals = counts()
    assert inits - started == finals - ended >= 1


def test_forgotten_runtime(environ: dict[str, str]) -> None:
    runtimes = [acl.Runtime(environ)]
    with pytest.warns(ResourceWarning, match="runtime of AscendCL"):
        runtimes.clear()
    # It still counts, so that one more is not enough to let go.
    with acl.Runtime(environ):
        pass
    assert acl.current_library() is not None


def test_questions(fake: acl.Runtime) -> None:
    assert fake.device_count() == 8
    assert fake.soc_name() == "Ascend910B3"
    assert repr(fake) == f"<runtime of {fake.library}>"
    simulator.fail("aclrtGetSocName", 1)
    with pytest.raises(BrokenError, match="does not say"):
        fake.soc_name()


def test_closed_runtime(fake: acl.Runtime) -> None:
    with acl.Runtime() as other:
        pass
    for question in (other.device, other.device_count, other.soc_name, other.on_host):
        with pytest.raises(ClosedError):
            question()


def test_failing_to_open_a_device(fake: acl.Runtime) -> None:
    resets = simulator.calls("aclrtResetDevice")
    for call, code in (("aclrtSetDevice", 507000), ("aclrtGetCurrentContext", 507000)):
        simulator.fail(call, code, 2 if call == "aclrtGetCurrentContext" else 1)
        with pytest.raises(CacheError) as caught:
            fake.device(0)
        assert (caught.value.status, caught.value.operation) == (code, call)
    assert simulator.calls("aclrtResetDevice") == resets + 1
    fake.device(0).close()


def test_no_simulator_to_control() -> None:
    with pytest.raises(NotImplementedError, match="no simulator is open"):
        simulator.clear()
