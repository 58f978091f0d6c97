"""What the plugin knows of errors and machines agrees with its tables."""

from __future__ import annotations

from pathlib import Path

import cachefw_hccs
from cachefw_hccs import cachefw_diagnostics
from cachefw_hccs.profiles import PROFILES
from cachefw_hccs.rules import RULES

from cachefw.testing.codes import lacking_codes


def test_every_code_has_its_entry() -> None:
    assert lacking_codes(Path(cachefw_hccs.__file__).parent, cachefw_diagnostics().entries) == {}


def test_every_rule_has_its_entry_and_the_runtime_is_explained() -> None:
    names = [entry.name for entry in cachefw_diagnostics().entries]
    assert {rule.name for rule in RULES} <= set(names)
    assert "507899" in names
    assert len(names) == len(set(names))


def test_profiles_are_those_of_the_rules() -> None:
    told = {profile.name: profile.alignment for profile in cachefw_diagnostics().profiles}
    assert told == {profile.name: profile.alignment for profile in PROFILES}
