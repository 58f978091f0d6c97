"""`cachefw.compat.install` and ``python -m cachefw.compat run``: other names for our modules, and whole programs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

from cachefw import RequestError, compat

SECONDS = 60


@pytest.fixture
def answered():
    yield
    compat.uninstall()
    assert compat.installed() == ()
    assert not {name.partition(".")[0] for name in sys.modules} & set(compat.PACKAGES)


def test_a_package_is_one_module_under_both_names(answered):
    assert compat.install("hixl", "mooncake") == ("hixl", "mooncake")
    assert compat.installed() == ("hixl", "mooncake")
    import hixl.hixl
    import mooncake.engine

    for name, module in (("hixl", hixl), ("hixl.hixl", hixl.hixl), ("mooncake.engine", mooncake.engine)):
        home = importlib.import_module(f"cachefw.compat.{name}")
        assert sys.modules[name] is module is home
        # What reload, pickle and relative imports go by is untouched.
        assert home.__spec__.name == home.__name__ == f"cachefw.compat.{name}"
    assert mooncake.engine.TransferEngine is home.TransferEngine
    assert compat.install("hixl") == ("hixl",)


def test_what_is_not_there_is_not_found(answered):
    compat.install("mooncake", "hixl")
    for name in ("mooncake.store", "mooncake.engine.parts", "hixl.hixl.more.parts"):
        with pytest.raises(ModuleNotFoundError, match=name.partition(".")[0]):
            importlib.import_module(name)
    assert importlib.util.find_spec("mooncake.store") is None
    assert importlib.util.find_spec("mooncake.engine") is not None


def test_uninstalling_leaves_the_names_free(answered):
    before = list(sys.meta_path)
    compat.install("hixl")
    importlib.import_module("hixl.hixl")
    compat.uninstall("hixl")
    compat.uninstall("hixl")
    assert sys.meta_path == before
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hixl")


def test_unknown_names_are_refused(answered):
    for call in (compat.install, compat.uninstall):
        with pytest.raises(ValueError, match="not 'nixl'"):
            call("hixl", "nixl")
    assert compat.installed() == ()


@pytest.fixture
def real(answered, tmp_path, monkeypatch):
    """A package of the name, really installed."""
    (tmp_path / "hixl.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "hixl.py"
    sys.modules.pop("hixl", None)


def test_a_real_package_is_not_hidden_in_silence(real):
    with pytest.raises(RequestError, match="really installed") as refused:
        compat.install("hixl", "mooncake")
    assert str(real) in str(refused.value)
    assert compat.installed() == ()
    compat.install("hixl", replace=True)
    import hixl

    assert not hasattr(hixl, "REAL")
    compat.uninstall()
    assert importlib.import_module("hixl").REAL


def test_what_the_program_has_imported_already_stays(real):
    module = importlib.import_module("hixl")
    for replace in (False, True):
        with pytest.raises(RequestError, match="imported already"):
            compat.install("hixl", replace=replace)
    compat.uninstall()
    assert sys.modules.pop("hixl") is module


def test_importing_it_imports_next_to_nothing():
    code = (
        "import sys, cachefw.compat.npu; print([m for m in ('attrs', 'numpy', 'msgspec', 'torch') if m in sys.modules])"
    )
    assert python("-c", code).stdout == "[]\n"


# ---------------------------------------------------------------------- programs

RUN = ("-m", "cachefw.compat", "run")


def python(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return make


SHOW = """
    import sys
    import beside
    print(sys.argv, sys.path[0], __name__, __file__, __package__, __cached__, __doc__, type(__loader__).__name__)
    print(getattr(__spec__, "name", None), sys.modules["__main__"].__dict__ is globals(), __builtins__)
    def later():
        print("still here:", SHOWN)
    import atexit
    atexit.register(later)
    SHOWN = 1
    """


@pytest.mark.parametrize("where", ["", "deep/"])
def test_a_script_sees_what_it_would_see(write, tmp_path, where):
    write(f"{where}show.py", SHOW)
    write(f"{where}beside.py", "")
    plain = python(f"{where}show.py", "-m", "--x", cwd=tmp_path)
    assert plain.stderr == ""
    assert plain.stdout.count("\n") == 3
    ours = python(*RUN, f"{where}show.py", "-m", "--x", cwd=tmp_path)
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, "", 0)


@pytest.mark.parametrize("kind", ["module", "package", "folder", "archive", "link"])
def test_other_forms_of_programs(write, tmp_path, kind):
    write("show.py", SHOW)
    write("beside.py", "")
    target = ["-m", "show"]
    if kind == "package":
        write("parcel/__init__.py", "")
        write("parcel/__main__.py", SHOW)
        target = ["-m", "parcel"]
    elif kind == "folder":
        write("folder/__main__.py", SHOW)
        write("folder/beside.py", "")
        target = ["folder"]
    elif kind == "archive":
        with zipfile.ZipFile(tmp_path / "show.pyz", "w") as archive:
            archive.writestr("__main__.py", textwrap.dedent(SHOW))
            archive.writestr("beside.py", "")
        target = ["show.pyz"]
    elif kind == "link":
        (tmp_path / "links").mkdir()
        (tmp_path / "links/show.py").symlink_to(tmp_path / "show.py")
        target = ["links/show.py"]
    plain = python(*target, "a", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert plain.stderr == ""
    ours = python(*RUN, *target, "a", cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, "", 0)


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(7)",
        "raise SystemExit('words')",
        "raise SystemExit",
        "def f():\n    raise ValueError('x')\ntry:\n    f()\nexcept ValueError as e:\n    raise KeyError(1) from e",
        "x = = 1",
        "raise KeyboardInterrupt",
        "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__, a[2].tb_lineno)\n1 / 0",
        "import os\nos._exit(3)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "assert False",
    ],
)
def test_it_ends_as_it_would(write, tmp_path, text):
    write("end.py", text)
    plain, ours = (python(*command, "end.py", cwd=tmp_path) for command in ((), RUN))
    assert ours.returncode == plain.returncode
    assert ours.stdout == plain.stdout
    # Python's own flag says so in a last line of its own for some versions.
    assert ours.stderr == plain.stderr


def test_nothing_to_run(tmp_path):
    for target, words in ((["nope.py"], "can't open file"), (["-m", "no.pe"], "no.pe"), ([tmp_path], "__main__")):
        done = python(*RUN, *target, cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
    assert python(*RUN).returncode == 2


def test_imports_are_answered_where_they_were_asked_for(write, tmp_path):
    write(
        "imports.py",
        """
        import hixl
        print(hixl.__name__, hixl.Hixl().connect("127.0.0.1:1"))
        try:
            from mooncake.engine import TransferEngine
            print("mooncake too")
        except ModuleNotFoundError as error:
            print(error)
        """,
    )
    done = python(*RUN, "imports.py", cwd=tmp_path)
    assert done.stdout == "cachefw.compat.hixl 503900\nNo module named 'mooncake'\n"
    assert python(*RUN, "--mooncake", "imports.py", cwd=tmp_path).stdout.endswith("mooncake too\n")


def test_a_real_package_needs_a_word(write, tmp_path):
    write("hixl.py", "print('the real one')")
    write("imports.py", "import hixl; print(hixl.__name__)")
    refused = python(*RUN, "imports.py", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "really installed" in refused.stderr
    assert "--replace" in refused.stderr
    assert python(*RUN, "--replace", "imports.py", cwd=tmp_path).stdout == "cachefw.compat.hixl\n"


def test_transports_are_told_to_the_program(write, tmp_path):
    write(
        "chooses.py",
        """
        from hixl import Hixl
        engine = Hixl()
        options = {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": "roce:device"}'}
        print(engine.initialize("127.0.0.1:0", options), engine._state.engine.manager.transports)
        engine.finalize()
        """,
    )
    assert python(*RUN, "--transports", "host", "chooses.py", cwd=tmp_path).stdout == "0 ('host',)\n"


def test_processes_of_the_program_answer_too(write, tmp_path):
    write(
        "parent.py",
        """
        import multiprocessing, subprocess, sys
        import hixl
        def child(queue):
            import hixl
            queue.put(hixl.__name__)
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=30))
            process.join()
            code = "import sys, sitecustomize, hixl; print(hixl.__name__, sitecustomize.__file__)"
            sys.stdout.flush()
            subprocess.run([sys.executable, "-c", code], check=True)
        """,
    )
    own = write("site/sitecustomize.py", "import sys; sys.stdout.write('my own site\\n')")
    done = python(*RUN, "parent.py", cwd=tmp_path, PYTHONPATH=str(own.parent))
    assert done.stderr == ""
    # The runner itself, the spawned process, and the one that is run; a resource tracker may add one.
    lines = [line for line in done.stdout.splitlines() if line != "my own site"]
    assert lines == ["cachefw.compat.hixl", f"cachefw.compat.hixl {own}"]
    done = python(*RUN, "parent.py", cwd=tmp_path)
    assert done.stderr == ""
    assert "_children/sitecustomize.py" in done.stdout.splitlines()[-1]
