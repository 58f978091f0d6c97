"""Check the distributions in a folder: what is inside, and that they install without an index and work.

The folder is the only argument. `python -m build --outdir FOLDER .` and the same for `plugins/host` fill it.
"""

from __future__ import annotations

import email
import fnmatch
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

# Distribution (as file names spell it) -> top-level folders of its wheel -> their sources in the checkout.
WHEELS = {
    "cachefw": {"cachefw": "cachefw", "_cachefw_embedded/cachefw_host": "plugins/host/src/cachefw_host"},
    "cachefw_host": {"cachefw_host": "plugins/host/src/cachefw_host"},
}
SDISTS = {
    "cachefw": (".", ["cachefw", "plugins/host", "tests"]),
    "cachefw_host": ("plugins/host", ["src", "tests"]),
}
SDIST_ALWAYS = ["LICENSE", "README.md", "pyproject.toml", "PKG-INFO"]
SHIPPED = ["*.py", "*.pyi", "*/py.typed"]
NEVER = ["*.pyc", "*.so", "*.o", "*.whl", "*/__pycache__/*", "*/build/*", "*/dist/*", "*_cache/*", "*/.hypothesis/*"]

problems: list[str] = []


def check(condition: object, problem: str) -> None:
    """Note a problem; all of them are shown at the end."""
    if not condition:
        problems.append(problem)


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def sources(folder: Path) -> set[str]:
    """Files below a folder, without what tools leave behind."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not matches("/" + name, NEVER)}


def check_wheel(path: Path) -> None:
    name, version, *tag = path.stem.split("-")
    packages = WHEELS[name]
    info = f"{name}-{version}.dist-info"
    check(tag[:2] == ["cp310", "abi3"], f"{path.name}: not built for every Python from 3.10 on")
    with zipfile.ZipFile(path) as wheel:
        inside = {entry for entry in wheel.namelist() if not entry.endswith("/")}
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    check(metadata["License-Expression"] == "Apache-2.0", f"{path.name}: no licence in the metadata")
    check(f"{info}/licenses/LICENSE" in inside, f"{path.name}: no licence text")

    expected = {entry for entry in inside if entry.startswith(f"{info}/")}
    for package, source in packages.items():
        expected |= {f"{package}/{entry}" for entry in sources(ROOT / source) if matches("/" + entry, SHIPPED)}
        check(f"{package}/py.typed" in inside, f"{path.name}: {package}/py.typed is missing")
        if source.startswith("plugins/"):
            expected |= {f"{package}/_native.abi3.so"}
            check(f"{package}/_native.pyi" in inside, f"{path.name}: {package}/_native.pyi is missing")
    for entry in sorted(inside - expected):
        check(False, f"{path.name}: {entry} should not be shipped")
    for entry in sorted(expected - inside):
        check(False, f"{path.name}: {entry} is missing")


def check_sdist(path: Path) -> None:
    name, version = path.name.removesuffix(".tar.gz").split("-")
    base, folders = SDISTS[name]
    with tarfile.open(path) as sdist:
        members = sdist.getmembers()
    for member in members:
        check(member.isfile() or member.isdir(), f"{path.name}: {member.name} is neither a file nor a folder")
    inside = {PurePosixPath(member.name).relative_to(f"{name}-{version}").as_posix() for member in members}
    expected = {f"{folder}/{entry}" for folder in folders for entry in sources(ROOT / base / folder)}
    for entry in sorted(expected.union(SDIST_ALWAYS) - inside):
        check(False, f"{path.name}: {entry} is missing")
    for entry in sorted(inside):
        check(not matches("/" + entry, NEVER), f"{path.name}: {entry} should not be shipped")


def run(*command: str | Path, cwd: Path) -> str:
    # Neither the checkout nor the caller's environment may help the installed package along.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CACHEFW"))}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout


def check_installed(python: Path, cwd: Path, package: str, distribution: str) -> None:
    """The installed core imports without a warning, and takes its transport from `distribution`."""
    run(python, "-I", "-m", "pip", "check", cwd=cwd)
    where = Path(run(python, "-W", "error", "-c", "import cachefw; print(cachefw.__file__)", cwd=cwd).strip())
    check(cwd in where.parents and "site-packages" in where.parts, f"import cachefw found {where}")
    run(python, "-W", "error", "-c", f"import {package}._native", cwd=cwd)
    origin = "from cachefw.plugins import catalogue; print(catalogue.plugins()['host'].distribution)"
    origin = run(python, "-W", "error", "-c", origin, cwd=cwd).strip()
    check(origin == distribution, f"host comes from {origin}, not from {distribution}")
    listed = run(python.with_name("cachefw"), "transports", "--json", cwd=cwd)
    check('"host"' in json.dumps(json.loads(listed)), f"`cachefw transports --json` does not list host: {listed}")


def check_installation(wheels: list[Path]) -> None:
    core, host = sorted(wheels, key=lambda path: path.name.startswith("cachefw_host"))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        house = scratch / "wheels"
        run(sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", house, core, host, cwd=scratch)
        run(sys.executable, "-m", "venv", scratch / "venv", cwd=scratch)
        python = scratch / "venv/bin/python"
        install = [python, "-I", "-m", "pip", "install", "-q", "--no-index", "--find-links", house]
        run(*install, "cachefw", cwd=scratch)
        check_installed(python, scratch, "_cachefw_embedded.cachefw_host", "cachefw")
        run(*install, "cachefw-host", cwd=scratch)
        check_installed(python, scratch, "cachefw_host", "cachefw-host")
        run(python, "-I", "-m", "pip", "uninstall", "-q", "-y", "cachefw-host", cwd=scratch)
        check_installed(python, scratch, "_cachefw_embedded.cachefw_host", "cachefw")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    wheels = sorted(folder.glob("*.whl"))
    sdists = sorted(folder.glob("*.tar.gz"))
    check(sorted(path.name.split("-")[0] for path in wheels) == sorted(WHEELS), f"wheels: {wheels}")
    check(sorted(path.name.split("-")[0] for path in sdists) == sorted(SDISTS), f"sdists: {sdists}")
    check(len({path.name.removesuffix(".tar.gz").split("-")[1] for path in wheels + sdists}) == 1, "versions differ")
    if not problems:
        for path in wheels:
            check_wheel(path)
        for path in sdists:
            check_sdist(path)
        check_installation(wheels)
    if problems:
        sys.exit("\n".join(problems))
    print(*(path.name for path in wheels + sdists), sep="\n")


if __name__ == "__main__":
    main()
