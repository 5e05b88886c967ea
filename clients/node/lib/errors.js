'use strict';
// The errors of this package. A refusal, for example a sold-out stock, is a value and never an error.

/** The base class of all errors of this package. */
class SluiceError extends Error {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An error reply of the server. `code` is its first word, for example `WRONGTYPE`. */
class ServerError extends SluiceError {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    /** The first word of the reply. */
    this.code = message.split(' ', 1)[0];
  }
}

/** An order id or an idempotency key was used before with other arguments. */
class Conflict extends ServerError {}

/** The server refused to wait for a lock, because the wait would never end. */
class Deadlock extends ServerError {}

/** The key holds a value of another type. */
class WrongType extends ServerError {}

/** The delay queue does not exist. `delay.create` creates it. */
class NoSuchQueue extends ServerError {}

/** The filter is full, exists already, does not exist, or its parameters are not permitted. */
class FilterError extends ServerError {}

/** The server has too many waiting clients (`lock-max-waiters`). */
class TooManyWaiting extends ServerError {}

/** The connection broke. If a reply was lost, it is unknown whether the command ran. `cause` is the error of the client. */
class ConnectionBroken extends SluiceError {}

/** Another owner held the lock for the whole waiting time. */
class LockTimeout extends SluiceError {}

/** The lock was lost before its release. Another owner may hold it. */
class LockLost extends SluiceError {}

/** The lease of an idempotency key ended before the work did. Another caller may do the work again. */
class LeaseLost extends SluiceError {}

/**
 * Throw it in the work of `once.run` if the work may have had its effect, for example because a payment provider did not answer. The
 * key then stays busy until its lease ends, so no other caller begins meanwhile.
 */
class OutcomeUnknown extends SluiceError {}

/** Another caller still loads the value or does the work at the end of the waiting time. */
class WaitTimeout extends SluiceError {}

/** The loader failed a moment ago, or its breaker is open, and no older value exists. `retryMs` is the time until the next try. */
class LoaderFailed extends SluiceError {
  /**
   * @param {string} message
   * @param {number} retryMs
   */
  constructor(message, retryMs) {
    super(message);
    /** Milliseconds until a loader may try again. */
    this.retryMs = retryMs;
  }
}

/** @type {[RegExp, typeof ServerError][]} */
const KINDS = [
  [/^CONFLICT /, Conflict],
  [/^DEADLOCK /, Deadlock],
  [/^WRONGTYPE /, WrongType],
  [/^ERR no such delay queue/, NoSuchQueue],
  [/^ERR too many waiting clients/, TooManyWaiting],
  [/^ERR (filters? |non ?scaling |not enough memory for the filter|maximum expansions|item exists|not found|received bad data)/i, FilterError],
  [/^ERR (bad (capacity|error rate|expansion)|(capacity|error rate|expansion) must)/, FilterError],
];

/**
 * The typed error for an error of a client library. Error replies begin with a code in upper case; all other errors are
 * errors of the connection.
 *
 * @param {unknown} error
 * @returns {Error}
 */
function typed(error) {
  if (error instanceof SluiceError || error instanceof TypeError) return error; // a TypeError is a mistake in the program
  const message = error instanceof Error ? error.message : String(error);
  if (!/^[A-Z][A-Z0-9]+( |$)/.test(message)) return new ConnectionBroken(message, { cause: error });
  const [, Kind] = KINDS.find(([pattern]) => pattern.test(message)) ?? [null, ServerError];
  return new Kind(message, { cause: error });
}

module.exports = {
  SluiceError,
  ServerError,
  Conflict,
  Deadlock,
  WrongType,
  NoSuchQueue,
  FilterError,
  TooManyWaiting,
  ConnectionBroken,
  LockTimeout,
  LockLost,
  LeaseLost,
  OutcomeUnknown,
  WaitTimeout,
  LoaderFailed,
  typed,
};
