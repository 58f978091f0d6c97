"""What ``kv_connector_extra_config`` may say."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import attrs

from cachefw.errors import RequestError, refusal

__all__ = ["Settings"]


def _positive(settings: Settings, attribute: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise _wrong(f"{attribute.name} is a number of seconds above 0, not {value!r}")


def _wrong(text: str) -> Exception:
    return refusal(RequestError, {ValueError}, f"kv_connector_extra_config: {text}", operation="vllm")


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one instance.

    Attributes:
        listen: ``"host:port"`` that other instances reach this one at; port 0 takes a free one. With several ranks
            only port 0 makes sense.
        transports: Names of the transports, best first. None takes the setting ``transports`` of cachefw.
        settings: For a transport's name, its own settings.
        memory: ``"transport"``: the cache lies in memory that the first transport allocates, which it moves best;
            ``"engine"``: in the engine's own.
        lease: Seconds for which a finished prefill is kept for an instance that does not come for it.
        timeout: Seconds that loading one request may take.
        link_timeout: Seconds that reaching another instance may take.
        model: What both instances call the model; None takes the name that the engine was started with.
        mode: ``"pull"``: the decode instance reads a finished prefill; ``"push"``: the prefill instance writes to it,
            layer by layer as they are computed where it is told early enough. Both instances say the same.
        secret_file: Path of a file that only its owner reads, with what every instance has to know. None takes the
            setting ``secret_file`` of cachefw.
    """

    listen: str = "127.0.0.1:0"
    transports: tuple[str, ...] | None = None
    settings: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    memory: str = attrs.field(default="transport")
    lease: float = attrs.field(default=30.0, validator=_positive)
    timeout: float = attrs.field(default=30.0, validator=_positive)
    link_timeout: float = attrs.field(default=5.0, validator=_positive)
    model: str | None = None
    mode: str = attrs.field(default="pull")
    secret_file: str | None = None

    @memory.validator
    def _check_memory(self, _attribute: object, value: str) -> None:
        if value not in ("transport", "engine"):
            raise _wrong(f'memory is "transport" or "engine", not {value!r}')

    @mode.validator
    def _check_mode(self, _attribute: object, value: str) -> None:
        if value not in ("pull", "push"):
            raise _wrong(f'mode is "pull" or "push", not {value!r}')

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> Settings:
        """The settings in the engine's configuration.

        Raises:
            RequestError: Also a `ValueError`: an unknown or wrong one; the text names what was meant, or what exists.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in extra:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else "it knows " + ", ".join(known)
                raise _wrong(f"there is no setting {name!r}; {hint}")
        values = dict(extra)
        if isinstance(values.get("transports"), str):
            raise _wrong(f"transports is a list of names, not {values['transports']!r}")
        if values.get("transports") is not None:
            values["transports"] = tuple(values["transports"])
        return cls(**values)
