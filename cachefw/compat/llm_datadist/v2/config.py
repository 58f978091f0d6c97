"""What `LLMDataDist.init` adds to the options it is given, and what it checks of them itself."""

from __future__ import annotations

from typing import Any

from cachefw.compat.llm_datadist.configs import LLMRole
from cachefw.compat.llm_datadist.status import RoleError, invalid, of_none, out_of_range
from cachefw.compat.llm_datadist.utils.utils import check_isinstance, require

__all__ = ["EngineConfig"]

ROLES = {LLMRole.PROMPT: "Prompt", LLMRole.DECODER: "Decoder", LLMRole.MIX: "Mix"}
LISTEN = "llm.listenIpInfo"


def role_name(role: LLMRole | None) -> str:
    """The option's word for a role.

    Raises:
        KeyError: There is none.
    """
    if role not in ROLES:
        raise RoleError(f"role is {role}; it must be an LLMRole")
    return ROLES[role]


def listen_options(options: dict[str, Any]) -> dict[str, str]:
    """`llm.ListenIp` and `llm.ListenPort` of a `llm.listenIpInfo`, if it is there.

    Raises:
        TypeError: It is no text.
        LLMException: It has not exactly one colon.
        ValueError: The port is no number.
    """
    if LISTEN not in options:
        return {}
    text = options[LISTEN]
    check_isinstance(LISTEN, text, str, allow_none=False)
    parts = text.split(":")
    if len(parts) != 2:
        raise invalid(f"{LISTEN} must be 'ip:port', not {text!r}")
    try:
        port = int(parts[1])
    except ValueError:
        raise out_of_range(f"{LISTEN}: {parts[1]!r} is no port number in {text!r}") from None
    return {"llm.ListenIp": parts[0], "llm.ListenPort": str(port)}


class EngineConfig:
    """Options on their way from the caller to the engine.

    Args:
        role: The instance's.
        options: The caller's; not modified.

    Raises:
        TypeError: No dict, or a value of a wrong type.
        AttributeError: None.
        LLMException: Values that cannot go together.
        ValueError: A port that is no number.

    Attributes:
        options: The options, completed.
        cache_manager: Whether they ask for a cache manager.
    """

    def __init__(self, role: LLMRole | None, options: dict[str, Any]) -> None:
        if options is None:
            raise of_none("options is None; it must be a dict of str to str")
        check_isinstance("options", options, dict)
        memory = options.get("ge.flowGraphMemMaxSize")
        if memory is not None:
            check_isinstance("ge.flowGraphMemMaxSize", memory, str)
            require("," not in memory and memory.isdigit(), f"ge.flowGraphMemMaxSize must be digits, not {memory!r}")
        self.options: dict[str, Any] = {**options, "llm.Role": role_name(role)}
        has_resources = "llm.LocalCommRes" in options
        if has_resources:
            self.options.setdefault("llm.EnableCacheManager", "1")
            self.options.setdefault("llm.EnableRemoteCacheAccessible", "1")
        self.cache_manager = self.options.get("llm.EnableCacheManager") == "1"
        require(self.cache_manager or not has_resources, "llm.LocalCommRes needs llm.EnableCacheManager = '1'")
        if "llm.TransferBackend" in options:
            require(self.cache_manager, "llm.TransferBackend needs llm.EnableCacheManager = '1'")
            accessible = self.options.setdefault("llm.EnableRemoteCacheAccessible", "1")
            require(
                accessible == "1",
                f"llm.TransferBackend needs llm.EnableRemoteCacheAccessible = '1', not {accessible!r}",
            )
            require(LISTEN in options, f"llm.TransferBackend needs {LISTEN}")
        if self.cache_manager:
            self.options.update(listen_options(self.options))
