"""Each sentence of the contract has tests in the kit or a reason, and each test of the kit a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachefw.testing import TransportTests, promises
from cachefw.testing.promises import BESIDES, PROMISES, stated

PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"
TESTS = sorted(name for name in dir(TransportTests) if name.startswith("test_"))
STATED = list(stated())


def heads(of, sentence):
    return [promise for promise in PROMISES if promise.of == of and sentence.startswith(promise.says)]


@pytest.mark.parametrize(("of", "sentence"), STATED, ids=[f"{of}-{number}" for number, (of, _) in enumerate(STATED)])
def test_every_sentence_of_the_contract_is_listed_once(of, sentence):
    assert len(heads(of, sentence)) == 1, f"{of} says: {sentence}"


def test_every_listed_promise_is_in_the_contract():
    lost = [promise for promise in PROMISES if not any(promise in heads(*sentence) for sentence in STATED)]
    assert lost == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.of}: {promise.says[:20]}")
def test_every_promise_has_tests_or_a_reason(promise):
    assert bool(promise.tests) != bool(promise.because)
    assert set(promise.tests) <= set(TESTS)


def test_every_test_of_the_kit_holds_a_promise():
    named = {name for promise in PROMISES for name in promise.tests} | set(BESIDES)
    assert sorted(set(TESTS) - named) == []


def test_a_sentence_that_nobody_lists_is_found():
    assert heads("Transport.register", "Whispers the region's name.") == []


@pytest.mark.parametrize(
    ("name", "lines"), [("promises", promises.promise_lines), ("tests", promises.test_lines)], ids=["promises", "tests"]
)
def test_the_page_has_the_whole_list(name, lines):
    text = PAGE.read_text()
    block = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert block, f"docs/conformance.md has no list of {name}"
    written = [line for line in block[1].splitlines() if line.startswith(("| `", "| |", "- "))]
    assert written == list(lines())
