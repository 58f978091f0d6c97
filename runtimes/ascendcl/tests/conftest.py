"""Libraries to try the binding on: a small one made here for each need, and the simulator where it was built."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import library, simulator
from cachefw_ascendcl import runtime as runtime_module

HERE = Path(__file__).parent
NATIVE = HERE / "native"
HEADERS = HERE.parent / "src" / "cachefw_ascendcl" / "native"

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile a library: ``build("name", "-D", "OPTION", sources=...)``."""
    made: dict[tuple[str, ...], Path] = {}

    def build(name: str, *options: str, sources: tuple[str, ...] = ("fake.c", "generic.c")) -> Path:
        key = (name, *options, *sources)
        if key not in made:
            path = tmp_path_factory.mktemp("library") / name
            paths = [str(NATIVE / source) for source in sources]
            command = ["cc", "-shared", "-fPIC", "-I", str(HEADERS), *options, "-o", str(path), *paths]
            subprocess.run(command, check=True)
            made[key] = path
        return made[key]

    return build


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    """A simulated machine that no other run shares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACLSIM_MACHINE", f"binding-{os.getpid()}")
        yield


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts and ends with no library open, and none that the machine has is found by accident."""
    for name in ("CACHEFW_ASCENDCL", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield
    if acl.current_library() is not None and acl.lib.cfw_acl_lookup(b"aclsimClear"):
        simulator.clear()
    # After a failed test somebody may still hold it; the next one starts afresh all the same.
    library._uses = runtime_module._process.uses = 0
    acl.close_library()


def _fake(build: Build) -> dict[str, str]:
    return {acl.VARIABLE: str(build("libascendcl.so"))}


@pytest.fixture
def fake(build: Build) -> Iterator[acl.Runtime]:
    """A runtime over the library of these tests."""
    with acl.Runtime(_fake(build)) as runtime:
        yield runtime


@pytest.fixture
def simulated() -> Iterator[acl.Runtime]:
    """A runtime over the simulator."""
    if not acl.simulator_path().exists():
        pytest.skip("the simulator was not built (CACHEFW_ASCENDCL_SIMULATOR=OFF)")
    with acl.Runtime({acl.VARIABLE: "simulator"}) as runtime:
        yield runtime


@pytest.fixture(params=["fake", "simulated"])
def runtime(request: pytest.FixtureRequest) -> acl.Runtime:
    """Each of the two in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, acl.Runtime)
    return found


@pytest.fixture
def device(runtime: acl.Runtime) -> Iterator[acl.Device]:
    """Device 0 of each."""
    with runtime.device(0) as device:
        yield device


@pytest.fixture
def fake_device(fake: acl.Runtime) -> Iterator[acl.Device]:
    """Device 0 of the library of these tests."""
    with fake.device(0) as device:
        yield device


@pytest.fixture
def simulated_device(simulated: acl.Runtime) -> Iterator[acl.Device]:
    """Device 0 of the simulator."""
    with simulated.device(0) as device:
        yield device
