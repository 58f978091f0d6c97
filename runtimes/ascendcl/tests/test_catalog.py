"""What the runtime knows of its numbers agrees with its tables."""

from __future__ import annotations

from pathlib import Path

import cachefw_ascendcl
import pytest
from cachefw_ascendcl import NAMES, catalog, status

from cachefw.catalog import Health, find
from cachefw.errors import CacheError
from cachefw.testing.codes import lacking_codes


def test_every_number_is_explained() -> None:
    told = {entry.name: entry for entry in catalog.ENTRIES if entry.sort == "status"}
    assert {int(number) for number in told} == set(NAMES) - {0}
    (entry,) = find(catalog.ENTRIES, "ACL_ERROR_RT_DRV_INTERNAL_ERROR")
    assert (entry.name, len(entry.causes) > 3) == ("507899", True)
    assert find(catalog.ENTRIES, "0x7bffb") == [entry]


def test_causes_belong_to_names_that_exist() -> None:
    assert set(catalog._CAUSES) <= set(NAMES.values())


def test_every_code_of_the_table_has_its_entry() -> None:
    codes = {meaning.code for meaning in status._OF.values()} - {None}
    assert codes <= {entry.name for entry in catalog.ENTRIES if entry.sort == "code"}


def test_probes_are_checks() -> None:
    names = {check.name for check in catalog.CHECKS}
    probes = {cause.probe for entry in catalog.ENTRIES for cause in entry.causes}
    assert {probe for probe in probes if probe.startswith("ascendcl.")} <= names


def test_a_simulator_is_never_taken_for_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_ASCENDCL", "simulator")
    (check,) = (check for check in catalog.CHECKS if check.name == "ascendcl.library")
    try:
        (told,) = check.diagnose()
    except CacheError as error:
        pytest.skip(str(error))
    if "not built" in str(told.facts.get("error")):
        pytest.skip("the simulator was not built")
    assert told.health is Health.WARNING
    assert told.found.startswith("SIMULATED AscendCL")
    assert told.facts["simulated"] is True


def test_no_library_is_a_note_where_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_ASCENDCL", "/nowhere/libascendcl.so")
    monkeypatch.setattr(catalog, "_nodes", list)
    (told,) = catalog.CHECKS[0].diagnose()
    assert (told.health, told.found) == (Health.NOTE, "no usable AscendCL library was found")
    monkeypatch.setattr(catalog, "_nodes", lambda: ["/dev/davinci0"])
    (told,) = catalog.CHECKS[0].diagnose()
    assert told.health is Health.BROKEN
    (told,) = catalog.CHECKS[1].diagnose()
    assert told.health is Health.BROKEN
    assert "/dev/davinci_manager" in told.found


def test_every_code_has_its_entry() -> None:
    assert lacking_codes(Path(cachefw_ascendcl.__file__).parent, catalog.ENTRIES) == {}
