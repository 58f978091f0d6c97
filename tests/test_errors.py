"""Every error is of two families, says when one does not get it, and survives pickling whole."""

from __future__ import annotations

import inspect
import itertools
import pickle
import sys
import warnings

import pytest

import cachefw
from cachefw import errors
from cachefw.errors import CacheError, RegistrationError, RequestError, refusal
from cachefw.rules import Finding, Outcome

PUBLIC = sorted((getattr(errors, name) for name in errors.__all__ if name != "refusal"), key=lambda cls: cls.__name__)
VARIANTS = [
    cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, CacheError) and name[0] != "_"
]
BUILTINS = {
    "AuthenticationError": PermissionError,
    "BrokenError": ConnectionError,
    "BusyError": RuntimeError,
    "ClosedError": RuntimeError,
    "NotFoundError": LookupError,
    "OutOfMemoryError": MemoryError,
    "TransferTimeout": TimeoutError,
    "UnsupportedOperation": NotImplementedError,
}
KINDS = (AttributeError, TypeError, ValueError)
COMBINATIONS = [c for size in range(4) for c in itertools.combinations(KINDS, size)]
FIELDS = {
    "code": "some.code",
    "operation": "register_cache",
    "transport": "memory",
    "peer": "cluster 2",
    "status": 507899,
    "detail": "driver error",
    "findings": (Finding("core.unique", Outcome.REFUSED, "twice", index=1, facts={"owner": "attn"}, fix="once"),),
    "facts": {"failed": (3, 4), "settled": False, "undo_errors": [errors.BrokenError("again", status=7)]},
}


def by_name(cls):
    return cls.__name__


@pytest.mark.parametrize("cls", VARIANTS, ids=by_name)
def test_every_error_pickles_whole(cls):
    error = cls("what, why and what to do", **FIELDS)
    if sys.version_info >= (3, 11):
        error.add_note("while warming up")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error) == copy.message == "what, why and what to do"
    for name in FIELDS.keys() - {"facts"}:
        assert getattr(copy, name) == getattr(error, name) == FIELDS[name]
    assert (copy.facts["failed"], copy.facts["undo_errors"][0].status) == ((3, 4), 7)
    assert getattr(copy, "__notes__", None) == getattr(error, "__notes__", None)


@pytest.mark.parametrize("cls", VARIANTS, ids=by_name)
def test_attributes_have_defaults(cls):
    error = cls("text")
    assert error.code == cls.default_code
    assert (error.operation, error.transport, error.peer, error.status, error.detail) == (None,) * 5
    assert (error.findings, error.facts) == ((), {})


@pytest.mark.parametrize("cls", PUBLIC, ids=by_name)
def test_every_error_says_when_one_does_not_get_it(cls):
    assert "not raised" in cls.__doc__.lower()
    assert issubclass(cls, CacheError)
    assert getattr(cachefw, cls.__name__) is cls


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_errors_are_the_builtin_that_fits(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_codes_are_those_of_one_class():
    codes = [cls.default_code for cls in PUBLIC]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("family", [RegistrationError, RequestError])
@pytest.mark.parametrize("kinds", COMBINATIONS, ids=lambda kinds: "+".join(map(by_name, kinds)) or "none")
def test_refusals_are_each_builtin_that_applies(family, kinds):
    error = refusal(family, kinds, "text", **FIELDS)
    assert isinstance(error, family)
    assert [kind for kind in KINDS if isinstance(error, kind)] == list(kinds)
    assert (error.message, error.status) == ("text", 507899)
    assert type(error) is type(refusal(family, reversed(kinds), "text"))
    assert type(error) in VARIANTS


def test_a_refusal_of_no_builtin_is_the_family_itself():
    assert type(refusal(RequestError, (), "text")) is RequestError


def test_facts_are_the_errors_own():
    facts = {"a": 1}
    error = CacheError("text", facts=facts)
    facts["a"] = 2
    assert error.facts == {"a": 1}


def test_failed_items_and_settling_are_attributes():
    assert errors.BrokenError("x").failed == ()
    assert errors.BrokenError("x", facts={"failed": [2]}).failed == (2,)
    assert errors.TransferTimeout("x").settled
    assert not errors.TransferTimeout("x", facts={"settled": False}).settled


def test_texts_are_shown_as_they_are():
    assert str(refusal(errors.NotFoundError.__mro__[1], {ValueError}, "it's 'this'")) == "it's 'this'"
    assert str(errors.NotFoundError("no cache 3")) == "no cache 3"


def test_every_public_name_is_there_and_no_other():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in cachefw.__all__:
            assert getattr(cachefw, name) is not None
    assert sorted(cachefw.__all__) == dir(cachefw)
    assert set(cachefw._HOMES) | {"__version__"} == set(cachefw.__all__)
    with pytest.raises(AttributeError, match="module 'cachefw' has no attribute 'CacheManger'"):
        _ = cachefw.CacheManger
