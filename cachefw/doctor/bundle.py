"""A report that can be sent to strangers: what was found, without secrets, names and addresses."""

from __future__ import annotations

import getpass
import ipaddress
import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachefw.errors import RequestError, refusal

__all__ = ["Mask", "write_bundle"]

_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|AUTH|COOKIE|PRIVATE|(?:^|_)(?:API|ACCESS)?_?KEY(?:$|_)", re.IGNORECASE
)
_IN_TEXT = re.compile(r"([\w-]*(?:secret|token|passw(?:or)?d|credential|api_?key)[\w-]*\s*[=:]\s*)\S+", re.IGNORECASE)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5,}[0-9a-f]{2}\b", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?:%\w+)?(?![\w:])", re.IGNORECASE)
_POINTER = re.compile(r"\b0x[0-9a-f]{6,}\b", re.IGNORECASE)


class Mask:
    """Takes out of a report what is nobody's business. The same thing becomes the same word everywhere.

    Args:
        environ: Variables whose values may be secrets.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._words: dict[tuple[str, str], str] = {}
        self._plain: dict[str, str] = {}
        for name, value in environ.items():
            # Shorter values stand in too many words that are none.
            if _SECRET.search(name) and len(value) >= 4:
                self._plain[value] = "<secret>"
        self._names()

    def _names(self) -> None:
        host = socket.gethostname()
        names = {host: "<host>", host.partition(".")[0]: "<host>", str(Path.home()): "<home>"}
        try:
            names[getpass.getuser()] = "<user>"
        except (KeyError, OSError):
            names["nobody"] = "<user>"
        # "root" and the like say nothing about anybody and stand in many sentences.
        common = {"root", "nobody", "localhost", "/", "/root"}
        self._plain |= {name: word for name, word in names.items() if name not in common and len(name) >= 3}

    def _word(self, kind: str, text: str) -> str:
        known = sum(1 for each, _ in self._words if each == kind)
        return self._words.setdefault((kind, text.lower()), f"<{kind} {known + 1}>")

    def text(self, text: str) -> str:
        """A text without secrets, names and addresses."""
        for plain in sorted(self._plain, key=len, reverse=True):
            pattern = rf"(?<!\w){re.escape(plain)}(?!\w)" if plain[:1].isalnum() else re.escape(plain)
            text = re.sub(pattern, lambda _, word=self._plain[plain]: word, text)  # type: ignore[misc]
        text = _IN_TEXT.sub(r"\1<secret>", text)
        text = _MAC.sub(lambda match: self._word("mac", match[0]), text)
        text = _IPV6.sub(self._address, _IPV4.sub(self._address, text))
        return _POINTER.sub(lambda match: self._word("address", match[0]), text)

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0].partition("%")[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._word("ip", match[0])

    def value(self, value: Any) -> Any:
        """A value of JSON, all texts of it masked; what a secret's name stands for is left out whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): "<secret>" if _SECRET.search(str(name)) and each else self.value(each)
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.value(each) for each in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(str(value))


def write_bundle(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report, masked; whole or not at all, readable by this user alone.

    Raises:
        RequestError: Also a `ValueError`: it cannot be written there.
    """
    text = json.dumps(Mask().value(report), indent=2)
    temporary = ""
    try:
        # Made readable by this user alone.
        fd, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise refusal(
            RequestError, {ValueError}, f"cannot write {path}: {error.strerror}", operation="doctor", status=error.errno
        ) from None
