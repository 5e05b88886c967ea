"""Spans of OpenTelemetry, if its API is installed. Without it, `span` does nothing."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]


def span(command: str) -> ContextManager[Any]:
    """Returns a client span for a command. It records neither keys nor values."""
    if trace is None:
        return contextlib.nullcontext()
    return trace.get_tracer("sluice").start_as_current_span(
        command, kind=trace.SpanKind.CLIENT, attributes={"db.system.name": "redis", "db.operation.name": command})
