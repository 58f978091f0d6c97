"""Finding and opening the library, and every way in which that fails."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import _acl

from cachefw.errors import BusyError, ClosedError, TransportUnavailable, UnsupportedOperation

Build = Callable[..., Path]


def opened(path: Path) -> acl.Library:
    return acl.open_library({acl.VARIABLE: str(path)})


def refusal(path: object) -> str:
    with pytest.raises(TransportUnavailable) as caught:
        acl.open_library({acl.VARIABLE: str(path)})
    (attempt,) = caught.value.facts["attempts"]
    assert str(attempt) in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts
    return attempt.result


def test_import_opens_nothing() -> None:
    code = (
        "import cachefw_ascendcl, re, sys\n"
        "maps = open('/proc/self/maps').read()\n"
        "sys.exit(bool(re.search(r'/(libascendcl|libacl_rt)[^/]*$', maps, re.M)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_module_is_not_linked_against_the_runtime() -> None:
    assert _acl.__file__
    needed = subprocess.run(["readelf", "-d", _acl.__file__], check=True, capture_output=True, text=True).stdout
    libraries = [line for line in needed.splitlines() if "(NEEDED)" in line]
    assert libraries
    assert not [line for line in libraries if "ascend" in line or "acl" in line]


def test_order_of_the_search(tmp_path: Path) -> None:
    (tmp_path / "home" / "lib64").mkdir(parents=True)
    environ = {"ASCEND_HOME_PATH": str(tmp_path / "home"), "ASCEND_TOOLKIT_HOME": str(tmp_path / "toolkit")}
    found = [(place.source, place.path.removeprefix(f"{tmp_path}/"), place.note) for place in acl.candidates(environ)]
    assert found == [
        ("CACHEFW_ASCENDCL", "", "not set"),
        ("ASCEND_HOME_PATH", "home/lib64/libascendcl.so", ""),
        ("ASCEND_HOME_PATH", "home/lib64/libacl_rt.so", ""),
        ("ASCEND_HOME_PATH", "home/runtime/lib64", "no such folder"),
        ("ASCEND_TOOLKIT_HOME", "toolkit/lib64", "no such folder"),
        ("ASCEND_TOOLKIT_HOME", "toolkit/runtime/lib64", "no such folder"),
        ("the loader", "libascendcl.so", ""),
        ("the loader", "libacl_rt.so", ""),
    ]
    assert not [place for place in acl.candidates(environ) if place.simulated]


def test_own_variable_ends_the_search(tmp_path: Path) -> None:
    environ = {acl.VARIABLE: "/x/libascendcl.so", "ASCEND_HOME_PATH": str(tmp_path)}
    assert list(acl.candidates(environ)) == [acl.Candidate(acl.VARIABLE, "/x/libascendcl.so", simulated=True)]
    (place,) = acl.candidates({acl.VARIABLE: "simulator"})
    assert place.path == str(acl.simulator_path())


def test_same_folder_is_tried_once(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    environ = {"ASCEND_HOME_PATH": str(tmp_path), "ASCEND_TOOLKIT_HOME": str(tmp_path)}
    notes = [place.note for place in acl.candidates(environ) if place.source == "ASCEND_TOOLKIT_HOME"]
    assert notes == ["tried before", "tried before"]


def test_nothing_found_lists_every_attempt(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").write_bytes(b"not a library at all, but long enough")
    with pytest.raises(TransportUnavailable) as caught:
        acl.open_library({"ASCEND_HOME_PATH": str(tmp_path)})
    results = {(attempt.source, Path(attempt.path).name): attempt.result for attempt in caught.value.facts["attempts"]}
    assert results["ASCEND_HOME_PATH", "libascendcl.so"] == "not an ELF file, so no library"
    assert results["ASCEND_HOME_PATH", "libacl_rt.so"] == "no such file"
    assert results["ASCEND_TOOLKIT_HOME", ""] == "not set"
    # Not the other name: when the simulator was open before, the loader knows it by that one.
    assert "cannot open shared object file" in results["the loader", "libacl_rt.so"]
    assert "simulator" in str(caught.value)
    assert acl.current_library() is None


def test_home_is_found(tmp_path: Path, build: Build) -> None:
    folder = tmp_path / "lib64"
    folder.mkdir()
    (folder / "libacl_rt.so").write_bytes(build("libascendcl.so").read_bytes())
    library = acl.open_library({"ASCEND_HOME_PATH": str(tmp_path)})
    assert (library.source, library.path) == ("ASCEND_HOME_PATH", str(folder / "libacl_rt.so"))
    assert [attempt.result for attempt in library.attempts] == ["not set", "no such file", "opened"]


def test_what_is_told_about_a_library(build: Build) -> None:
    path = build("libascendcl.so")
    library = opened(path)
    assert library == acl.current_library()
    assert (library.path, library.version, library.missing) == (str(path), (1, 16, 0), ())
    assert (library.device_count, library.device_status, library.is_simulator) == (8, 0, False)
    assert library.has("aclrtMalloc")
    assert not library.has("aclrtNoSuchFunction")
    assert str(library) == f"AscendCL 1.16.0 at {path}"
    assert opened(Path("/nowhere")) is library, "it is open already"


def test_missing_functions_are_a_status(build: Build) -> None:
    path = build("libascendcl.so", "-DaclrtMallocHost=a", "-DaclrtGetVersion=b", "-DaclrtGetSocName=c")
    library = opened(path)
    assert set(library.missing) == {"aclrtMallocHost", "aclrtGetVersion", "aclrtGetSocName"}
    assert library.version is None
    assert not library.has("aclrtMallocHost")
    assert "without 3 newer functions" in str(library)
    assert acl.lib.cfw_aclrtMallocHost(acl.ffi.new("void **"), 1) == acl.lib.CFW_ACL_MISSING
    assert acl.lib.cfw_aclrtGetSocName() == acl.ffi.NULL
    with (
        acl.Runtime({acl.VARIABLE: str(path)}) as runtime,
        runtime.device() as device,
        pytest.raises(UnsupportedOperation, match="no such function") as caught,
    ):
        device.allocate_host(4096)
    assert caught.value.status == acl.lib.CFW_ACL_MISSING


def test_stub_of_the_toolkit_is_refused(build: Build) -> None:
    path = build("libascendcl.so", "-DSTUB", sources=("generic.c",))
    assert "100039" in refusal(path)
    assert "stub" in refusal(path)
    assert acl.current_library() is None
    assert str(path) not in Path("/proc/self/maps").read_text(), "a refused library is unloaded"


def test_stub_does_not_hide_a_runtime_behind_it(tmp_path: Path, build: Build) -> None:
    stub = build("libascendcl.so", "-DSTUB", "-Wl,-soname,libascendcl.so", sources=("generic.c",))
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").write_bytes(stub.read_bytes())
    (tmp_path / "lib64" / "libacl_rt.so").write_bytes(build("libascendcl.so").read_bytes())
    library = acl.open_library({"ASCEND_HOME_PATH": str(tmp_path)})
    assert Path(library.path).name == "libacl_rt.so"
    assert "stub" in library.attempts[1].result


def test_foreign_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libascendcl.so"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(path)], check=True)
    assert refusal(path) == "loaded, but it has not one function of AscendCL"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({18: 0xB7}, "wrong architecture: built for AArch64, this process is"),
        ({4: 1, 18: 0x03}, "wrong architecture: built for 32-bit x86, this process is"),
        ({18: 0x99}, "wrong architecture: built for machine 0x99 (64-bit), this process is"),
        ({16: 2}, "an ELF file, but no shared library"),
    ],
)
def test_wrong_kind_of_file_is_said_in_words(tmp_path: Path, build: Build, patch: dict[int, int], words: str) -> None:
    image = bytearray(build("libascendcl.so").read_bytes())
    for offset, value in patch.items():
        image[offset] = value
    path = tmp_path / "libascendcl.so"
    path.write_bytes(image)
    assert refusal(path).startswith(words)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "a folder; name the library in it"
    assert refusal(tmp_path / "none.so") == "no such file"
    (tmp_path / "short.so").write_bytes(b"\x7fELF")
    assert refusal(tmp_path / "short.so") == "not an ELF file, so no library"


def test_loader_has_its_say(build: Build) -> None:
    path = build("libascendcl.so", sources=("generic.c",))
    assert "undefined symbol: fake_enter" in refusal(path)


@pytest.mark.parametrize("kept", [20, 64, 100, 0.2, 0.5])
def test_cut_off_files_do_not_kill(tmp_path: Path, build: Build, kept: float) -> None:
    image = build("libascendcl.so").read_bytes()
    path = tmp_path / "libascendcl.so"
    path.write_bytes(image[: int(kept if kept > 1 else len(image) * kept)])
    assert refusal(path).startswith("cut off: it has ")


def test_simulator_is_never_found_by_search(tmp_path: Path, build: Build) -> None:
    (tmp_path / "lib64").mkdir()
    path = tmp_path / "lib64" / "libascendcl.so"
    path.write_bytes(build("libmarked.so", "-DMARK").read_bytes())
    with pytest.raises(TransportUnavailable, match="a simulator, which is used only when CACHEFW_ASCENDCL names it"):
        acl.open_library({"ASCEND_HOME_PATH": str(tmp_path)})
    library = opened(path)
    assert library.is_simulator
    assert library.description == "SIMULATED by the tests"
    assert str(library).startswith("SIMULATED AscendCL")


def test_simulator_that_was_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_acl, "__file__", str(tmp_path / "_acl.so"))
    assert refusal("simulator").endswith("the simulator was not built into this installation")


def test_another_library_can_follow(build: Build) -> None:
    opened(build("libascendcl.so"))
    version = [acl.ffi.new("int32_t *") for _ in range(3)]
    assert acl.lib.cfw_aclrtGetVersion(*version) == 0
    acl.close_library()
    assert acl.lib.cfw_aclrtGetVersion(*version) == acl.lib.CFW_ACL_CLOSED
    assert acl.lib.cfw_aclGetRecentErrMsg() == acl.ffi.NULL
    with pytest.raises(ClosedError):
        acl.check(acl.lib.CFW_ACL_CLOSED, "aclrtGetVersion")
    assert opened(build("libother.so", "-DaclrtGetVersion=hidden")).missing == ("aclrtGetVersion",)
    assert acl.lib.cfw_aclrtGetVersion(*version) == acl.lib.CFW_ACL_MISSING
    acl.close_library()
    assert opened(build("libascendcl.so")).missing == ()
    assert acl.lib.cfw_aclrtGetVersion(*version) == 0
    acl.close_library()
    acl.close_library()


def test_library_in_use_is_not_closed(build: Build) -> None:
    environ = {acl.VARIABLE: str(build("libascendcl.so"))}
    with acl.Runtime(environ), acl.Runtime(environ), pytest.raises(BusyError, match="2 runtimes"):
        acl.close_library()
    assert acl.current_library() is None


def test_threads_open_one_library(build: Build) -> None:
    path, found = build("libascendcl.so"), []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        found.append(opened(path))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(library) for library in found}) == 1


def test_calls_survive_opening_and_closing(build: Build) -> None:
    """Calls in other threads end in the library they began in, or answer that none is open."""
    paths = [build("libascendcl.so"), build("libother.so", "-DaclrtGetVersion=hidden")]
    allowed = {0, acl.lib.CFW_ACL_CLOSED, acl.lib.CFW_ACL_MISSING}
    seen: set[int] = set()
    done = threading.Event()

    def call() -> None:
        numbers = [acl.ffi.new("int32_t *") for _ in range(3)]
        while not done.is_set():
            seen.add(acl.lib.cfw_aclrtGetVersion(*numbers))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(100):
            opened(paths[turn % 2])
            acl.close_library()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert seen <= allowed


def test_types_name_everything_that_is_compiled() -> None:
    stub = (Path(__file__).parents[1] / "src" / "cachefw_ascendcl" / "_acl.pyi").read_text()
    absent = [name for name in dir(acl.lib) if f" {name}" not in stub]
    assert not absent
