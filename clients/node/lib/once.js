'use strict';
// Idempotency keys: work that is done once, and whose result all callers get.

const { LeaseLost, OutcomeUnknown, WaitTimeout } = require('./errors');
const { CODEC, FUNCTION, INTEGER, NAME, POSITIVE_MS, WAIT_MS, signature } = require('./options');
const { span } = require('./tracing');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

/**
 * @typedef {object} OnceOptions
 * @property {number} [lease] Milliseconds that the work has before another caller begins. By default 30 000.
 * @property {number} [remember] Milliseconds for which the result is remembered. By default one day.
 * @property {Bytes} [fingerprint] The digest of the request: another request with this key is a `Conflict`.
 * @property {number} [wait] The longest wait for another caller's work, in milliseconds. By default 30 000.
 * @property {import('./codecs').Codec<any>} [codec] How results become bytes. By default that of `Sluice`.
 */

/**
 * What `begin` found: the caller does the work and has the token; another caller does it, for at most `retryMs`; or it is done.
 *
 * @typedef {{ state: 'NEW', token: number } | { state: 'BUSY', retryMs: number } | { state: 'DONE', result: Buffer }} Begun
 */

/** The longest BLOCK of one request, in milliseconds. */
const BLOCK_MS = 2000;

const DAY_MS = 86_400_000;

/**
 * Whether work that threw this may have had its effect: a timeout or an abort does not prove that it had none.
 *
 * @param {any} error
 */
const isOutcomeUnknown = (error) => error instanceof OutcomeUnknown || error?.name === 'TimeoutError' || error?.name === 'AbortError';

const CALLS = {
  run: signature('once.run', { key: NAME, work: FUNCTION }, {
    lease: POSITIVE_MS, wait: WAIT_MS, remember: POSITIVE_MS, fingerprint: NAME, codec: CODEC,
  }),
  begin: signature('once.begin', { key: NAME }, { lease: POSITIVE_MS, fingerprint: NAME, block: WAIT_MS }),
  done: signature('once.done', { key: NAME, token: INTEGER, result: NAME, remember: POSITIVE_MS }),
  fail: signature('once.fail', { key: NAME, token: INTEGER }),
  info: signature('once.info', { key: NAME }),
};

class Once {
  #client;
  #codec;

  /**
   * @internal
   * @param {import('./client').Client} client
   * @param {import('./codecs').Codec<any>} codec
   */
  constructor(client, codec) {
    this.#client = client;
    this.#codec = codec;
  }

  /**
   * Calls `work` once for this key, whichever process asks, and returns its result to each caller. If `work` fails, the next
   * caller does it. If the work is done and only its result cannot be encoded, the key is busy until the lease ends.
   *
   * After an `OutcomeUnknown`, and after an error with the name `TimeoutError` or `AbortError`, as those of an `AbortSignal`, `work` may
   * have had its effect: the key is busy until the lease ends. Convert the timeouts of other libraries into `OutcomeUnknown`.
   *
   * @template T
   * @param {Bytes} key
   * @param {(token: number) => T | Promise<T>} work The token is a fencing token: it grows with each new worker.
   * @param {OnceOptions} [options]
   * @returns {Promise<T>}
   * @throws {Conflict} The key was used with another fingerprint.
   * @throws {TypeError} The work is done, but the codec cannot store its result.
   * @throws {LeaseLost} `work` took longer than its lease, and another caller began.
   * @throws {WaitTimeout} Another caller works for longer than `wait`.
   */
  async run(key, work, options = {}) {
    CALLS.run([key, work], options);
    const { lease, fingerprint, remember = DAY_MS, wait = 30_000, codec = this.#codec } = options;
    const deadline = performance.now() + wait;
    let begun = await this.begin(key, { lease, fingerprint });
    while (begun.state === 'BUSY') {
      const left = deadline - performance.now();
      if (left <= 0) throw new WaitTimeout(`Another caller works on ${key}`);
      begun = await this.begin(key, { lease, fingerprint, block: Math.ceil(Math.min(left, BLOCK_MS)) });
    }
    if (begun.state === 'DONE') return codec.decode(begun.result);
    const { token } = begun;
    let result;
    try {
      result = await span('sluice.work', {}, async () => work(token));
    } catch (error) {
      if (!isOutcomeUnknown(error)) await this.fail(key, token).catch(() => {});
      throw error;
    }
    // The work is done: if its result cannot be stored, the key must not become free at once.
    let bytes;
    try {
      bytes = codec.encode(result === undefined ? null : result);
    } catch (error) {
      const what = `once.run: the work on ${key} is done, but its result cannot be stored. The key is busy until its lease ends`;
      throw new TypeError(`${what}: ${/** @type {Error} */ (error).message}`, { cause: error });
    }
    if (!await this.done(key, token, bytes, remember)) throw new LeaseLost(`The work on ${key} took longer than its lease`);
    return codec.decode(Buffer.from(bytes));
  }

  /**
   * Begins work.
   *
   * @param {Bytes} key
   * @param {{ lease?: number, fingerprint?: Bytes, block?: number }} [options] `block`: the longest wait in milliseconds.
   * @returns {Promise<Begun>}
   * @throws {Conflict} The key was used with another fingerprint.
   */
  async begin(key, options = {}) {
    CALLS.begin([key], options);
    const { lease = 30_000, fingerprint, block } = options;
    /** @type {Word[]} */
    const args = [key, 'LEASE', lease];
    if (fingerprint !== undefined) args.push('FINGERPRINT', fingerprint);
    const [state, result, n] = block
      ? await this.#client.callBlocking('ONCE.BEGIN', args, block)
      : await this.#client.call('ONCE.BEGIN', args);
    if (state === 'NEW') return { state, token: n };
    return state === 'BUSY' ? { state, retryMs: n } : { state, result };
  }

  /**
   * Stores the result.
   *
   * @param {Bytes} key
   * @param {number} token
   * @param {Bytes} result
   * @param {number} [remember] Milliseconds. By default one day.
   * @returns {Promise<boolean>} false: the lease ended, and the result is not stored.
   */
  async done(key, token, result, remember = DAY_MS) {
    CALLS.done([key, token, result, remember]);
    return this.#client.call('ONCE.DONE', [key, token, result, 'PX', remember]);
  }

  /** Frees the key: the next caller does the work. @param {Bytes} key @param {number} token @returns {Promise<boolean>} false: the lease ended. */
  async fail(key, token) {
    CALLS.fail([key, token]);
    return this.#client.call('ONCE.FAIL', [key, token]);
  }

  /** The map of `ONCE.INFO`; null: the key is free. @param {Bytes} key @returns {Promise<Record<string, any> | null>} */
  async info(key) {
    CALLS.info([key]);
    return this.#client.call('ONCE.INFO', [key]);
  }
}

module.exports = { Once };
