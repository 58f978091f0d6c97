"""Instances that have to know a secret."""

from __future__ import annotations

import pytest

PROMPTS = ["a secret that both know " * 8, "and another prompt " * 12]
TOKENS = 16


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    for name in ("theirs", "another"):
        (folder / name).write_bytes(name.encode() * 8)
        (folder / name).chmod(0o600)
    return folder


def said(instance, text, since=0):
    return [line for line in instance.lines()[since:] if text in line]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_who_knows_it_is_served_and_who_does_not_computes(start, secrets, mode):
    settings = {"mode": mode, "model": "tiny", "secret_file": str(secrets / "theirs")}
    prefill = start(f"secret-prefill-{mode}", "kv_producer", settings)
    friend = start(f"secret-friend-{mode}", "kv_consumer", settings)
    stranger = start(f"secret-stranger-{mode}", "kv_consumer", {**settings, "secret_file": str(secrets / "another")})
    for instance in (prefill, friend, stranger):
        instance.ready()
    wanted, _ = friend.generate(PROMPTS, TOKENS)
    friend.forget()
    assert friend.generate(PROMPTS, TOKENS, prefill.prefill(PROMPTS))[0] == wanted
    assert not said(friend, "could not be loaded")
    assert stranger.generate(PROMPTS, TOKENS, prefill.prefill(PROMPTS))[0] == wanted
    assert len(said(stranger, "could not be loaded")) == len(PROMPTS)
    assert said(stranger, "no link to another instance: ")
    assert said(stranger, "secret")
    text = "\n".join(friend.lines() + stranger.lines() + prefill.lines())
    # Neither secret is in a log.
    assert "theirs" * 8 not in text
    assert "another" * 8 not in text


def test_a_secret_that_others_can_read_keeps_the_engine_from_starting(start, tmp_path):
    file = tmp_path / "open"
    file.write_bytes(b"x" * 32)
    file.chmod(0o644)
    wrong = start("secret-open", "kv_consumer", {"secret_file": str(file)})
    with pytest.raises(AssertionError):
        wrong.ready()
    assert said(wrong, "secret")
