"""Imports point one way, the core names no transport, and two habits are kept out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each row may import the rows above it, and nothing in its own row but itself.
LAYERS = [
    {"catalog", "version"},
    {"dlpack", "errors"},
    {"forking", "logs"},
    {"cache", "memory"},
    {"rules"},
    {"drafts"},
    {"core_rules"},
    {"offer", "reports", "session"},
    {"transport"},
    {"hookspecs"},
    {"config", "metrics", "published", "quarantine"},
    {"discovery", "footprint"},
    {"loading"},
    {"plugins"},
    {"hooks"},
    {"diagnostics"},
    {"registry"},
    {"ranges"},
    {"layout"},
    {"copying", "planning", "pools", "pulls", "tasks"},
    {"pushes"},
    {"peers"},
    {"registrar"},
    {"managed", "staging"},
    {"sealing"},
    {"allocating", "layerwise", "local", "moving", "pushing", "remapping", "suspending"},
    {"manager"},
    {"links"},
    {"node"},
    {"compat", "dry", "fleet", "integrations", "otel", "prometheus"},
    {"etcd"},
    {"doctor"},
    {"cli"},
    {"__main__"},
]
RANK = {module: rank for rank, row in enumerate(LAYERS) for module in row}
UNRANKED = {"__init__", "testing"}
TESTING_MAY = {
    "cache",
    "catalog",
    "errors",
    "hookspecs",
    "memory",
    "node",
    "plugins",
    "rules",
    "session",
    "testing",
    "transport",
}
PLUGIN_MAY = {"catalog", "errors", "memory", "rules", "transport", "hookspecs"}

CORE = sorted((ROOT / "cachefw").rglob("*.py"))
PLUGINS = sorted(ROOT.glob("plugins/*/src/**/*.py"))
# What plugins bind through, rather than each for itself.
RUNTIMES = sorted(ROOT.glob("runtimes/*/src/**/*.py"))
RUNTIME_MAY = {"catalog", "errors"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def unit(path: Path) -> str:
    """The module or subpackage directly below cachefw/ that a file belongs to."""
    return path.relative_to(ROOT / "cachefw").parts[0].removesuffix(".py")


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Every absolute module a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from cachefw import errors` may mean the module; `from cachefw import Node` a name of the package.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def core_units(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Units of cachefw that a file imports; `__init__` stands for a name of the package itself."""
    units = {unit(file) for file in CORE}
    for line, module in imports(path, package):
        top, _, rest = module.partition(".")
        if top == "cachefw":
            first = rest.partition(".")[0]
            yield line, first if first in units else "__init__"


def package_of(path: Path, base: Path) -> str:
    return ".".join(path.parent.relative_to(base).parts)


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_imports_point_one_way(path: Path) -> None:
    here = unit(path)
    assert here in RANK or here in UNRANKED, f"give {here} its place in LAYERS"
    for line, there in core_units(path, package_of(path, ROOT)):
        if here in ("__init__", there):
            continue
        below = {module for module, rank in RANK.items() if rank < RANK.get(here, 0)}
        allowed = there in (TESTING_MAY if here == "testing" else below)
        assert allowed, f"{name_of(path)}:{line}: {here} must not import {there}"


def declared(path: Path) -> set[str]:
    """The packages of runtimes that the distribution of a file depends on."""
    folder = next(parent.parent for parent in path.parents if parent.name == "src")
    packages = {runtime.relative_to(ROOT).parts[3] for runtime in RUNTIMES}
    project = (folder / "pyproject.toml").read_text()
    return {package for package in packages if f'"{package.replace("_", "-")}==' in project}


@pytest.mark.parametrize("path", PLUGINS + RUNTIMES, ids=name_of)
def test_plugins_and_runtimes_use_only_the_contract(path: Path) -> None:
    package = package_of(path, next(parent for parent in path.parents if parent.name == "src"))
    may = {"__init__"} | (RUNTIME_MAY if path in RUNTIMES else PLUGIN_MAY)
    for line, there in core_units(path, package):
        assert there in may, f"{name_of(path)}:{line}: it must not import cachefw.{there}"
    ours = {"cachefw", package.partition(".")[0], *declared(path)}
    for line, module in imports(path, package):
        top = module.partition(".")[0]
        assert not top.startswith("_cachefw"), f"{name_of(path)}:{line}: {top} is private"
        assert top in ours or not top.startswith("cachefw_"), f"{name_of(path)}:{line}: {top} is not its own"


@pytest.mark.parametrize("path", sorted(ROOT.glob("plugins/host/src/**/*.py")), ids=name_of)
def test_embedded_plugin_never_says_its_name(path: Path) -> None:
    """It runs under two package names, so it imports itself only relatively."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        assert not any(name.split(".")[0] == "cachefw_host" for name in names), f"{name_of(path)}:{node.lineno}"


def transport_names(path: Path) -> Iterator[str]:
    """Constants that could name a transport. In an enum and next to "device", the word "host" is a kind of memory."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.Assign) and ast.unparse(node) == "HOST = 'host'"):
            continue
        for expression in ast.iter_child_nodes(node):
            if isinstance(expression, ast.expr):
                constants = [each.value for each in ast.walk(expression) if isinstance(each, ast.Constant)]
                if "device" not in constants:
                    yield from (name for name in constants if name in ("host", "rdma", "hccs"))


def test_core_names_only_the_default_transport() -> None:
    # Other people's APIs name protocols of their own; which transport serves each is data there.
    core = [path for path in CORE if name_of(path) != "cachefw/compat/protocols.py"]
    found = [(name_of(path), name) for path in core for name in transport_names(path)]
    assert found == [("cachefw/config.py", "host")]


@pytest.mark.parametrize("path", CORE + PLUGINS + RUNTIMES, ids=name_of)
def test_nothing_is_unpickled_or_swallowed(path: Path) -> None:
    package = package_of(path, ROOT)
    for line, module in imports(path, package):
        assert module.split(".")[0] not in ("pickle", "_pickle", "marshal", "shelve"), f"{name_of(path)}:{line}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{name_of(path)}:{node.lineno}: a bare except"
            assert not (
                isinstance(node.type, ast.Name)
                and node.type.id in ("Exception", "BaseException")
                and all(isinstance(statement, ast.Pass) for statement in node.body)
            ), f"{name_of(path)}:{node.lineno}: a failure is swallowed"
