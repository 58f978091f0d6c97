"""Check the distributions in a folder: what is inside, and that they install without an index and work.

The folder is the only argument. `python -m build --outdir FOLDER .` and the same for each folder in `plugins` and
`runtimes` fill it; `tox run -e dist` does that.
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

# Distribution (as file names spell it) -> its folder in the checkout.
FOLDERS = {
    "cachefw": ROOT,
    **{
        f"cachefw_{path.parent.name}": path.parent
        for group in ("plugins", "runtimes")
        for path in sorted(ROOT.glob(f"{group}/*/pyproject.toml"))
    },
}
# Distribution -> packages of its wheel -> their sources in the checkout.
WHEELS = {
    "cachefw": {"cachefw": ROOT / "cachefw", "_cachefw_embedded/cachefw_host": ROOT / "plugins/host/src/cachefw_host"},
    **{name: {name: folder / "src" / name} for name, folder in FOLDERS.items() if folder != ROOT},
}
# Distribution -> what its sdist has to hold, all of it.
SDISTS = {name: ["."] for name in FOLDERS} | {
    "cachefw": ["benchmarks", "cachefw", "docs", "examples", "plugins/host", "tests"],
}
SDIST_ALWAYS = ["LICENSE", "README.md", "pyproject.toml", "PKG-INFO"]
# The last: what `cachefw new-transport` writes.
SHIPPED = ["*.py", "*.pyi", "*/py.typed", "*/cli/scaffold/*"]
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


def natives(folder: Path) -> list[str]:
    """Compiled modules of a package, without their suffix: those that have a file of types, which only they need."""
    return [path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.rglob("*.pyi"))]


def check_wheel(path: Path) -> None:
    name, version, *tag = path.stem.split("-")
    packages = WHEELS[name]
    info = f"{name}-{version}.dist-info"
    compiled = any(natives(source) for source in packages.values())
    wanted = ["cp310", "abi3"] if compiled else ["py3", "none"]
    check(tag[:2] == wanted, f"{path.name}: not built for every Python from 3.10 on")
    with zipfile.ZipFile(path) as wheel:
        inside = {entry for entry in wheel.namelist() if not entry.endswith("/")}
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    check(metadata["License-Expression"] == "Apache-2.0", f"{path.name}: no licence in the metadata")
    check(f"{info}/licenses/LICENSE" in inside, f"{path.name}: no licence text")

    expected = {entry for entry in inside if entry.startswith(f"{info}/")}
    for package, source in packages.items():
        expected |= {f"{package}/{entry}" for entry in sources(source) if matches("/" + entry, SHIPPED)}
        expected |= {f"{package}/{module}.abi3.so" for module in natives(source)}
        check(f"{package}/py.typed" in inside, f"{path.name}: {package}/py.typed is missing")
    for entry in sorted(inside - expected):
        check(False, f"{path.name}: {entry} should not be shipped")
    for entry in sorted(expected - inside):
        check(False, f"{path.name}: {entry} is missing")


def check_sdist(path: Path) -> None:
    name, version = path.name.removesuffix(".tar.gz").split("-")
    with tarfile.open(path) as sdist:
        members = sdist.getmembers()
    for member in members:
        check(member.isfile() or member.isdir(), f"{path.name}: {member.name} is neither a file nor a folder")
    inside = {PurePosixPath(member.name).relative_to(f"{name}-{version}").as_posix() for member in members}
    root = FOLDERS[name]
    expected = {
        (PurePosixPath(folder) / entry).as_posix() for folder in SDISTS[name] for entry in sources(root / folder)
    }
    for entry in sorted(expected.union(SDIST_ALWAYS) - inside):
        check(False, f"{path.name}: {entry} is missing")
    for entry in sorted(inside):
        check(not matches("/" + entry, NEVER), f"{path.name}: {entry} should not be shipped")


def run(*command: str | Path, cwd: Path, **variables: str | Path) -> str:
    # Neither the checkout nor the caller's environment may help the installed package along.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CACHEFW"))}
    environment |= {key: str(value) for key, value in variables.items()}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout


def check_import(python: Path, cwd: Path, package: str, source: Path) -> None:
    """The installed package and its compiled modules import without a warning."""
    for module in [package, *(f"{package}/{module}" for module in natives(source))]:
        name = module.replace("/", ".")
        found = run(python, "-W", "error", "-c", f"import {name}; print({name}.__file__)", cwd=cwd)
        where = Path(found.strip())
        check(cwd in where.parents and "site-packages" in where.parts, f"import {name} found {where}")


def transports(python: Path, cwd: Path, **variables: str | Path) -> dict[str, dict[str, str]]:
    """What the installed command says of each transport."""
    listed = json.loads(run(python.with_name("cachefw"), "transports", "--json", cwd=cwd, **variables))
    return {transport["name"]: transport for transport in listed}


def check_host(python: Path, cwd: Path, package: str, distribution: str) -> None:
    """The installed core works, and takes its transport from `distribution`."""
    run(python, "-I", "-m", "pip", "check", cwd=cwd)
    check_import(python, cwd, "cachefw", ROOT / "cachefw")
    check_import(python, cwd, package, ROOT / "plugins/host/src/cachefw_host")
    listed = transports(python, cwd)
    host = listed.get("host", {})
    check(list(listed) == ["host"], f"`cachefw transports --json` lists {', '.join(listed)} instead of host")
    check(host.get("distribution") == distribution, f"host comes from {host.get('distribution')}, not {distribution}")
    check(host.get("state") == "available", f"host is {host.get('state')}: {host.get('reason')}")


def check_extras(python: Path, cwd: Path) -> None:
    """All of it together imports, and what lacks the vendor's library says so."""
    run(python, "-I", "-m", "pip", "check", cwd=cwd)
    for packages in WHEELS.values():
        for package, source in packages.items():
            check_import(python, cwd, package, source)
    absent = cwd / "absent.so"
    listed = transports(python, cwd, CACHEFW_ASCENDCL=absent, CACHEFW_UCX=absent)
    states = {name: transport["state"] for name, transport in listed.items()}
    check(states == {"hccs": "unavailable", "host": "available", "rdma": "unavailable"}, f"transports: {states}")
    for name, transport in listed.items():
        reason = transport["reason"]
        check(name == "host" or str(absent) in (reason or ""), f"{name} does not say what it lacks: {reason}")


def check_installation(wheels: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        house = scratch / "wheels"
        run(sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", house, *wheels, cwd=scratch)
        run(sys.executable, "-m", "venv", scratch / "venv", cwd=scratch)
        python = scratch / "venv/bin/python"
        install = [python, "-I", "-m", "pip", "install", "-q", "--no-index", "--find-links", house]
        run(*install, "cachefw", cwd=scratch)
        check_host(python, scratch, "_cachefw_embedded/cachefw_host", "cachefw")
        run(*install, "cachefw-host", cwd=scratch)
        check_host(python, scratch, "cachefw_host", "cachefw-host")
        run(python, "-I", "-m", "pip", "uninstall", "-q", "-y", "cachefw-host", cwd=scratch)
        check_host(python, scratch, "_cachefw_embedded/cachefw_host", "cachefw")
        run(*install, "cachefw[hccs,rdma]", "cachefw-host", cwd=scratch)
        check_extras(python, scratch)


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
