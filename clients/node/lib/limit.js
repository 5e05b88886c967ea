'use strict';
// Rate limits. A lost reply is an error: the commands are not repeated, because a repetition counts twice.

const { COUNT, FLAG, MS, NAME, POSITIVE, POSITIVE_MS, checkOptions, oneOf, pairs, required, signature } = require('./options');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

/**
 * @typedef {object} Limited
 * @property {boolean} allowed
 * @property {number} limit The largest number of requests at once.
 * @property {number} remaining
 * @property {number | null} retryMs Milliseconds to wait: before the next try, or, with `ahead`, before acting. 0: no wait is
 *   needed; null: the cost never fits.
 * @property {number} resetMs Milliseconds until the limit is as if never used.
 * @property {number} [index] Of several limits, the one that binds.
 */

/**
 * @typedef {object} Rate `count` requests in `period` milliseconds, evenly, and `burst` more at once.
 * @property {number} count
 * @property {number} period
 * @property {number} [burst] By default 0.
 */

/**
 * @typedef {object} CostOptions
 * @property {number} [cost] By default 1.
 * @property {boolean} [peek] Asks only, and takes nothing.
 */

/** @typedef {CostOptions & { ahead?: number }} GcraOptions `ahead`: allows what fits within so many milliseconds; wait `retryMs`. */

/** @param {number[]} reply @returns {Limited} */
function limited([isLimited, limit, remaining, retry, reset, index]) {
  const retryMs = retry >= 0 ? retry : isLimited ? null : 0;
  const result = { allowed: !isLimited, limit, remaining, retryMs, resetMs: reset };
  return index === undefined ? result : { ...result, index };
}

/** @param {Rate} rate @returns {Word[]} */
const rateWords = ({ burst = 0, count, period }) => [burst, count, period];

/** @param {GcraOptions} options @returns {Word[]} */
const costWords = ({ cost, peek, ahead }) => [
  ...(cost === undefined ? [] : ['COST', cost]), ...(peek ? ['PEEK'] : []), ...(ahead === undefined ? [] : ['AHEAD', ahead])];

const RATE = { burst: COUNT, count: required(POSITIVE), period: required(POSITIVE_MS) };
const COST = { cost: COUNT, peek: FLAG };
const AHEAD = { ...COST, ahead: MS };
const RATES = { is: 'a list of rates', test: Array.isArray };
const CALLS = {
  gcra: signature('limit.gcra', { key: NAME }, { ...RATE, ...AHEAD }),
  window: signature('limit.window', { key: NAME }, {
    limit: required(COUNT), window: required(POSITIVE_MS), kind: oneOf('SLIDING', 'EXACT'), ...COST,
  }),
  tiers: signature('limit.tiers', { key: NAME, rates: RATES }, AHEAD),
  gcraMany: signature('limit.gcraMany', { rates: pairs('rate') }, AHEAD),
  charge: signature('limit.charge', { key: NAME, cost: COUNT }),
  refund: signature('limit.refund', { key: NAME, cost: COUNT }),
  once: signature('limit.once', { key: NAME, ttl: POSITIVE_MS }),
};

/** @param {string} method @param {Rate[]} rates */
const checkRates = (method, rates) => rates.forEach((rate, at) => checkOptions(`${method}, rates[${at}]`, RATE, rate));

class Limit {
  #client;

  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    this.#client = client;
  }

  /** A steady rate with a burst. @param {Bytes} key @param {Rate & GcraOptions} options @returns {Promise<Limited>} */
  async gcra(key, options) {
    CALLS.gcra([key], options ?? {});
    return limited(await this.#client.call('RATE.GCRA', [key, ...rateWords(options), ...costWords(options)]));
  }

  /**
   * `limit` requests in a window of `window` milliseconds.
   *
   * @param {Bytes} key
   * @param {{ limit: number, window: number, kind?: 'SLIDING' | 'EXACT' } & CostOptions} options By default the window begins
   *   with its first request. SLIDING weighs the window before; EXACT never allows more than `limit` in any span.
   * @returns {Promise<Limited>}
   */
  async window(key, options) {
    CALLS.window([key], options ?? {});
    const { kind, limit, window } = options;
    return limited(await this.#client.call('RATE.WINDOW', [key, limit, window, ...costWords(options), ...(kind ? [kind] : [])]));
  }

  /** Several rates at once, all or none, on one key. @param {Bytes} key @param {Rate[]} rates @param {GcraOptions} [options] @returns {Promise<Limited>} */
  async tiers(key, rates, options = {}) {
    CALLS.tiers([key, rates], options);
    checkRates('limit.tiers', rates);
    return limited(await this.#client.call('RATE.TIERS', [key, rates.length, ...rates.flatMap(rateWords), ...costWords(options)]));
  }

  /** Rates of several keys of one hash slot, all or none. @param {[key: Bytes, rate: Rate][]} rates @param {GcraOptions} [options] @returns {Promise<Limited>} */
  async gcraMany(rates, options = {}) {
    CALLS.gcraMany([rates], options);
    checkRates('limit.gcraMany', rates.map(([, rate]) => rate));
    const each = rates.flatMap(([key, rate]) => [key, ...rateWords(rate)]);
    return limited(await this.#client.call('RATE.MGCRA', [rates.length, ...each, ...costWords(options)]));
  }

  /** Adds a cost that is known only afterwards. @param {Bytes} key @param {number} cost @returns {Promise<boolean>} false: no such key. */
  async charge(key, cost) {
    CALLS.charge([key, cost]);
    return this.#client.call('RATE.CHARGE', [key, cost]);
  }

  /** Returns an unused cost to the limit. @param {Bytes} key @param {number} cost @returns {Promise<boolean>} false: no such key. */
  async refund(key, cost) {
    CALLS.refund([key, cost]);
    return this.#client.call('RATE.REFUND', [key, cost]);
  }

  /** True for the first caller within `ttl` milliseconds. @param {Bytes} key @param {number} ttl @returns {Promise<boolean>} */
  async once(key, ttl) {
    CALLS.once([key, ttl]);
    return this.#client.call('RATE.ONCE', [key, 'PX', ttl]);
  }
}

module.exports = { Limit };
