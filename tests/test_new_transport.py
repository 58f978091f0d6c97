"""What `cachefw new-transport` writes is green as it is, and so is the code of the tutorial, which is the same."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachefw import RequestError
from cachefw.cli import main
from cachefw.cli.new_transport import write

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "writing-a-transport.md"
SECONDS = 100


def run(*arguments):
    return CliRunner().invoke(main, ["new-transport", *map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_a_distribution_and_says_what_is_next(here):
    done = run("my-wire", "--license", "MIT", "--holder", "A Company")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "cachefw-my-wire has the transport 'my-wire'. Next:",
        "  cd cachefw-my-wire && pip install -e '.[test]' && pytest",
    ]
    folder = here / "cachefw-my-wire"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == [
        ".gitignore",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "src/cachefw_my_wire/__init__.py",
        "src/cachefw_my_wire/transport.py",
        "tests/test_conformance.py",
        "tox.ini",
    ]
    for name in files:
        assert not re.search(r"@\w+@", (folder / name).read_text()), name
    assert "A Company" in (folder / "LICENSE").read_text()
    assert 'license = "MIT"' in (folder / "pyproject.toml").read_text()
    assert "class MyWireTransport(Transport):" in (folder / "src/cachefw_my_wire/transport.py").read_text()
    assert len((folder / "tests/test_conformance.py").read_text().splitlines()) <= 25
    assert list(here.iterdir()) == [folder]


@pytest.mark.parametrize("licence", ["Apache-2.0", "MIT", "BSD-3-Clause"])
def test_each_licence_is_whole(here, licence):
    text = (write("wire", licence=licence) / "LICENSE").read_text()
    if licence == "Apache-2.0":
        assert text == (ROOT / "LICENSE").read_text()
    else:
        assert "the contributors of cachefw-wire" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["My Wire"], "'My Wire' cannot be a transport's name.*did you mean 'my-wire'?"),
        (["9wire"], "did you mean 'wire'?"),
        (["../wire"], "did you mean 'wire'?"),
        ([""], "'' cannot be a transport's name"),
        (["w" * 33], "at most 32 characters"),
        (["host"], "'host' is taken by the plugin 'host' of .*, such as 'host-2'?"),
        (["wire", "--folder", "missing/wire"], "missing/wire cannot be written: .*; nothing was written"),
        (["wire", "--license", "GPL"], "'GPL' is not one of"),
    ],
    ids=["spaces", "digit", "path", "empty", "long", "taken", "folder", "licence"],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(here, arguments, words):
    done = run(*arguments)
    assert done.exit_code != 0
    assert re.search(words, done.output, re.DOTALL), done.output
    assert list(here.iterdir()) == []


def test_a_folder_that_exists_is_left_alone(here):
    folder = write("wire")
    (folder / "README.md").write_text("mine")
    done = run("wire")
    assert done.exit_code == 1
    assert "cachefw-wire exists already; nothing was written" in done.output
    assert (folder / "README.md").read_text() == "mine"
    with pytest.raises(RequestError) as caught:
        write("wire", folder)
    assert isinstance(caught.value, ValueError)


def test_a_name_much_like_an_installed_one_is_remarked_on(here):
    assert "note: 'host' is installed, and reads much like 'hosts'" in run("hosts").output
    assert (here / "cachefw-hosts").is_dir()


# ---------------------------------------------------------------------- the tutorial


def tutorial():
    """The code of the page, by file."""
    files = {}
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```\n", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        files[name] = files.get(name, "") + text + "\n"
    return files


def bare(code):
    """The code without docstrings and comments."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.unparse(tree)


def test_the_tutorial_has_the_code_of_the_scaffold(here):
    package = write("wire") / "src" / "cachefw_wire"
    files = tutorial()
    assert sorted(files) == ["__init__.py", "transport.py"]
    assert bare(files["transport.py"]) == bare((package / "transport.py").read_text())
    assert bare(files["__init__.py"]) in bare((package / "__init__.py").read_text())


def test_the_tutorial_is_short():
    lines = [line for text in tutorial().values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= 120


# ---------------------------------------------------------------------- built, installed, tested


def call(*command, cwd):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def fresh(tmp_path):
    """A new environment that has what this one has, and whatever is installed into it; offline."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    # Not a mere path: what is installed editable here works by further .pth files.
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    Path(site, "outer.pth").write_text("\n".join(lines) + "\n")
    return python


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip builds and installs it")
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling builds it: pip install hatchling")
@pytest.mark.parametrize("code", ["scaffold", "tutorial"])
def test_it_is_built_installed_and_conforms(here, fresh, code):
    folder = write("wire")
    if code == "tutorial":
        (folder / "src" / "cachefw_wire" / "transport.py").write_text(tutorial()["transport.py"])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheels = here / "wheels"
    call(*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheels, folder.resolve(), cwd=here)
    (wheel,) = wheels.iterdir()
    call(*pip, "--python", fresh, "install", "--no-index", "--no-deps", wheel, cwd=here)
    where = call(fresh, "-c", "import cachefw_wire; print(cachefw_wire.__file__)", cwd=here)
    assert str(here / "venv") in where
    assert "wire" in call(fresh, "-m", "cachefw", "transports", cwd=here)
    # Where the core is installed editable, and only there, Python has imported a module of its before pytest is there.
    editable = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
    printed = call(fresh, "-m", "pytest", "-p", "no:cacheprovider", "-W", editable, cwd=folder)
    summary = re.search(r"transport 'wire': (\d+) of (\d+) tests passed, (\d+) did not apply", printed)
    assert summary, printed
    passed, whole, others = map(int, summary.groups())
    assert passed + others == whole
    assert passed > 50
