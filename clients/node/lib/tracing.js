'use strict';
// Spans of OpenTelemetry, if its API is installed. Without it, `span` only calls its function.

/** @type {typeof import('@opentelemetry/api') | undefined} */
let api;
try {
  api = require('@opentelemetry/api');
} catch {
  // It is an optional peer dependency.
}

/**
 * Calls `work` in a span. Keys and values are not recorded.
 *
 * @template T
 * @param {string} name
 * @param {Record<string, string | number | boolean>} attributes
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
function span(name, attributes, work) {
  if (!api) return work();
  const { SpanKind, SpanStatusCode, trace } = api;
  const kind = 'db.operation.name' in attributes ? SpanKind.CLIENT : SpanKind.INTERNAL;
  return trace.getTracer('sluice').startActiveSpan(name, { kind, attributes }, async (active) => {
    try {
      return await work();
    } catch (error) {
      active.recordException(/** @type {Error} */ (error));
      active.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      active.end();
    }
  });
}

module.exports = { span };
