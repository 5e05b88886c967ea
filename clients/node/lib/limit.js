'use strict';
// Rate limits. A lost reply is an error: the commands are not repeated, because a repetition counts twice.

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

class Limit {
  #client;

  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    this.#client = client;
  }

  /** A steady rate with a burst. @param {Bytes} key @param {Rate & GcraOptions} options @returns {Promise<Limited>} */
  async gcra(key, options) {
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
    const { kind, limit, window } = options;
    return limited(await this.#client.call('RATE.WINDOW', [key, limit, window, ...costWords(options), ...(kind ? [kind] : [])]));
  }

  /** Several rates at once, all or none, on one key. @param {Bytes} key @param {Rate[]} rates @param {GcraOptions} [options] @returns {Promise<Limited>} */
  async tiers(key, rates, options = {}) {
    return limited(await this.#client.call('RATE.TIERS', [key, rates.length, ...rates.flatMap(rateWords), ...costWords(options)]));
  }

  /** Rates of several keys of one hash slot, all or none. @param {[key: Bytes, rate: Rate][]} rates @param {GcraOptions} [options] @returns {Promise<Limited>} */
  async gcraMany(rates, options = {}) {
    const each = rates.flatMap(([key, rate]) => [key, ...rateWords(rate)]);
    return limited(await this.#client.call('RATE.MGCRA', [rates.length, ...each, ...costWords(options)]));
  }

  /** Adds a cost that is known only afterwards. @param {Bytes} key @param {number} cost @returns {Promise<boolean>} false: no such key. */
  charge(key, cost) {
    return this.#client.call('RATE.CHARGE', [key, cost]);
  }

  /** Returns an unused cost to the limit. @param {Bytes} key @param {number} cost @returns {Promise<boolean>} false: no such key. */
  refund(key, cost) {
    return this.#client.call('RATE.REFUND', [key, cost]);
  }

  /** True for the first caller within `ttl` milliseconds. @param {Bytes} key @param {number} ttl @returns {Promise<boolean>} */
  once(key, ttl) {
    return this.#client.call('RATE.ONCE', [key, 'PX', ttl]);
  }
}

module.exports = { Limit };
