"""Spans of registrations, links and transfers for OpenTelemetry; needs ``cachefw[otel]``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from cachefw.errors import CacheError
from cachefw.hookspecs import hookimpl
from cachefw.links.link import Link, LinkState
from cachefw.memory import MemoryRegion
from cachefw.reports import TransferReport
from cachefw.transport import RegisteredMemory, Transport
from cachefw.version import VERSION

__all__ = ["Spans"]


class Spans:
    """A plugin that makes spans: ``Node(..., plugins=[Spans()])``. One for each node, or one for several.

    ``cachefw.register`` covers one native registration, ``cachefw.link`` a link from coming up to its end,
    ``cachefw.transfer`` a transfer from being posted until it had settled. Spans of registrations and transfers are
    children of the span that was current for their caller.

    Args:
        provider: Whose spans they are; None takes the global one.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer("cachefw", VERSION, provider)
        self._links: dict[Link, Span] = {}

    @hookimpl(wrapper=True)
    def cachefw_register_memory(
        self, region: MemoryRegion, transport: Transport
    ) -> Generator[None, RegisteredMemory, RegisteredMemory]:
        """As the hook of that name."""
        with self._tracer.start_as_current_span("cachefw.register", record_exception=False) as span:
            span.set_attributes(
                {
                    "cachefw.transport": transport.info.name,
                    "cachefw.kind": region.kind.value,
                    "cachefw.bytes": region.length,
                }
            )
            try:
                return (yield)
            except CacheError as error:
                _fail(span, error.code, error.message)
                raise

    @hookimpl
    def cachefw_link_changed(self, link: Link) -> None:
        """As the hook of that name."""
        if link.state is LinkState.UP:
            self._links[link] = self._tracer.start_span(
                "cachefw.link",
                Context(),
                SpanKind.CLIENT,
                {
                    "cachefw.cluster_id": str(link.cluster_id),
                    "cachefw.peer": link.peer_name,
                    "cachefw.transport": link.transport,
                    "cachefw.security": link.security,
                },
            )
            return
        span = self._links.pop(link, None)
        if span is not None:
            span.set_attribute("cachefw.state", link.state.value)
            if link.state is LinkState.BROKEN:
                _fail(span, "link.broken", link.reason)
            span.end()

    @hookimpl
    def cachefw_transfer_finished(self, report: TransferReport) -> None:
        """As the hook of that name."""
        # In the context of whoever posted it, which is where the current span is found.
        if report.context is None:
            self._transfer(report)
        else:
            report.context.copy().run(self._transfer, report)

    def _transfer(self, report: TransferReport) -> None:
        end = int(report.ended * 1e9)
        attributes: dict[str, Any] = {
            "cachefw.transfer": report.number,
            "cachefw.cluster_id": str(report.cluster_id),
            "cachefw.peer": report.peer,
            "cachefw.transport": report.transport,
            "cachefw.path": report.path,
            "cachefw.operation": report.operation,
            "cachefw.bytes": report.nbytes,
            "cachefw.pieces": report.pieces,
            "cachefw.staged": report.staged,
            "cachefw.outcome": report.outcome,
        }
        span = self._tracer.start_span(
            "cachefw.transfer", None, SpanKind.CLIENT, attributes, start_time=end - int(report.seconds * 1e9)
        )
        if report.code:
            _fail(span, report.code, f"the {report.operation} {report.outcome}")
        span.end(end)


def _fail(span: Span, code: str, text: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, text))
