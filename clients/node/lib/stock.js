'use strict';
// Inventory that never oversells.

const { COUNT, FLAG, INTEGER, NAME, NAMES, POSITIVE, POSITIVE_MS, pairs, required, signature } = require('./options');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

/**
 * Why nothing was taken: the stock is sold out, the user has the largest allowed quantity, the order was canceled or has
 * expired, or there is no such stock or order.
 *
 * @typedef {'SOLD_OUT' | 'OVER_USER_LIMIT' | 'CLOSED' | 'UNKNOWN'} Refusal
 */

/** @typedef {{ ok: true, available: number } | { ok: false, refusal: Refusal }} Taken The available quantity afterwards. */
/** @typedef {{ ok: true, quantity: number } | { ok: false, refusal: Refusal }} Settled The quantity of the order. */

/**
 * The result for each key. If `ok` is false nothing was applied, and the keys that would have been fine show their quantity.
 *
 * @template T
 * @typedef {{ ok: boolean, results: T[] }} All
 */

/**
 * @typedef {object} SaleOptions
 * @property {Bytes} [order] The order id: with it, a repetition sells once. Without it, this package does not repeat the
 *   command after a lost reply (ioredis does, see the README).
 * @property {Bytes} [user] The user, for stocks with `perUser`.
 */

/** @typedef {[key: Bytes, quantity: number]} Item */

/** @type {Record<number, Refusal>} */
const REFUSALS = { [-1]: 'SOLD_OUT', [-2]: 'OVER_USER_LIMIT', [-3]: 'CLOSED', [-4]: 'UNKNOWN' };

/** @param {number} reply @returns {Taken} */
const taken = (reply) => (reply < 0 ? { ok: false, refusal: REFUSALS[reply] } : { ok: true, available: reply });

/** @param {number} reply @returns {Settled} */
const settled = (reply) => (reply < 0 ? { ok: false, refusal: REFUSALS[reply] } : { ok: true, quantity: reply });

/**
 * @template T
 * @param {number[]} replies
 * @param {(reply: number) => T} read
 * @returns {All<T>}
 */
const all = (replies, read) => ({ ok: replies.every((reply) => reply >= 0), results: replies.map(read) });

const SALE = { order: NAME, user: NAME };
const RESERVATION = { order: required(NAME), user: NAME, hold: required(POSITIVE_MS) };
const ITEMS = pairs('quantity');
const CALLS = {
  create: signature('stock.create', { key: NAME, total: COUNT }, {
    replace: FLAG, perUser: POSITIVE, retain: POSITIVE_MS, events: NAME, maxLength: POSITIVE,
  }),
  add: signature('stock.add', { key: NAME, delta: INTEGER }, { order: NAME }),
  deduct: signature('stock.deduct', { key: NAME, quantity: POSITIVE }, SALE),
  reserve: signature('stock.reserve', { key: NAME, quantity: POSITIVE }, RESERVATION),
  confirm: signature('stock.confirm', { key: NAME, order: NAME }),
  cancel: signature('stock.cancel', { key: NAME, order: NAME }),
  deductMany: signature('stock.deductMany', { items: ITEMS }, SALE),
  reserveMany: signature('stock.reserveMany', { items: ITEMS }, RESERVATION),
  confirmMany: signature('stock.confirmMany', { keys: NAMES, order: NAME }),
  cancelMany: signature('stock.cancelMany', { keys: NAMES, order: NAME }),
  available: signature('stock.available', { key: NAME }),
  availableMany: signature('stock.availableMany', { keys: NAMES }),
  order: signature('stock.order', { key: NAME, order: NAME }),
  info: signature('stock.info', { key: NAME }),
};

/** @param {SaleOptions} options @returns {Word[]} */
const words = ({ order, user }) => [
  ...(order === undefined ? [] : ['ORDER', order]), ...(user === undefined ? [] : ['USER', user])];

class Stock {
  #client;

  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    this.#client = client;
  }

  /**
   * Creates a stock. Not repeated after a lost reply: a repetition would delete the orders of the time between.
   *
   * @param {Bytes} key
   * @param {number} total
   * @param {object} [options]
   * @param {boolean} [options.replace] Whether to replace an existing stock. By default false.
   * @param {number} [options.perUser] The largest quantity that one user may have, reserved and sold together.
   * @param {number} [options.retain] Milliseconds for which order ids are remembered after their end. By default one day.
   * @param {Bytes} [options.events] The stream for all changes, in the hash slot of the key.
   * @param {number} [options.maxLength] The approximate length of the stream. By default 100 000.
   * @returns {Promise<boolean>} false: the stock exists.
   */
  async create(key, total, options = {}) {
    CALLS.create([key, total], options);
    const { replace = false, perUser, retain, events, maxLength } = options;
    /** @type {Word[]} */
    const args = [key, total];
    if (!replace) args.push('NX');
    if (perUser !== undefined) args.push('PERUSER', perUser);
    if (retain !== undefined) args.push('RETAIN', retain);
    if (events !== undefined) args.push('EVENTS', events, ...(maxLength === undefined ? [] : ['MAXLEN', maxLength]));
    return this.#client.call('STOCK.SET', args);
  }

  /**
   * Adds to the available quantity; a negative `delta` takes back what is available.
   *
   * @param {Bytes} key
   * @param {number} delta
   * @param {{ order?: Bytes }} [options] With an order id, a repetition adds once.
   * @returns {Promise<Taken>}
   */
  async add(key, delta, options = {}) {
    CALLS.add([key, delta], options);
    return taken(await this.#client.call('STOCK.ADD', [key, delta, ...words(options)], options.order !== undefined));
  }

  /**
   * Sells at once.
   *
   * @param {Bytes} key
   * @param {number} quantity
   * @param {SaleOptions} [options]
   * @returns {Promise<Taken>}
   * @throws {Conflict} The order id was used with other arguments.
   */
  async deduct(key, quantity, options = {}) {
    CALLS.deduct([key, quantity], options);
    return taken(await this.#client.call('STOCK.DEDUCT', [key, quantity, ...words(options)], options.order !== undefined));
  }

  /**
   * Reserves for a time. Without `confirm` the quantity returns to the stock by itself.
   *
   * @param {Bytes} key
   * @param {number} quantity
   * @param {SaleOptions & { order: Bytes, hold: number }} options `hold`: milliseconds of the reservation.
   * @returns {Promise<Taken>}
   * @throws {Conflict} The order id was used with other arguments.
   */
  async reserve(key, quantity, options) {
    CALLS.reserve([key, quantity], options ?? {});
    const { hold, ...sale } = options;
    return taken(await this.#client.call('STOCK.RESERVE', [key, quantity, ...words(sale), 'PX', hold]));
  }

  /** Sells what an order has reserved. @param {Bytes} key @param {Bytes} order @returns {Promise<Settled>} */
  async confirm(key, order) {
    CALLS.confirm([key, order]);
    return settled(await this.#client.call('STOCK.CONFIRM', [key, order]));
  }

  /** Returns the quantity of a reservation or a sale to the stock. @param {Bytes} key @param {Bytes} order @returns {Promise<Settled>} */
  async cancel(key, order) {
    CALLS.cancel([key, order]);
    return settled(await this.#client.call('STOCK.CANCEL', [key, order]));
  }

  /** As `deduct`, for several keys of one hash slot: all or none. @param {Item[]} items @param {SaleOptions} [options] @returns {Promise<All<Taken>>} */
  async deductMany(items, options = {}) {
    CALLS.deductMany([items], options);
    const args = [items.length, ...items.flat(), ...words(options)];
    return all(await this.#client.call('STOCK.MDEDUCT', args, options.order !== undefined), taken);
  }

  /**
   * As `reserve`, for several keys of one hash slot: all or none.
   *
   * @param {Item[]} items
   * @param {SaleOptions & { order: Bytes, hold: number }} options
   * @returns {Promise<All<Taken>>}
   */
  async reserveMany(items, options) {
    CALLS.reserveMany([items], options ?? {});
    const { hold, ...sale } = options;
    return all(await this.#client.call('STOCK.MRESERVE', [items.length, ...items.flat(), ...words(sale), 'PX', hold]), taken);
  }

  /** As `confirm`, for several keys: all or none. @param {Bytes[]} keys @param {Bytes} order @returns {Promise<All<Settled>>} */
  async confirmMany(keys, order) {
    CALLS.confirmMany([keys, order]);
    return all(await this.#client.call('STOCK.MCONFIRM', [keys.length, ...keys, order]), settled);
  }

  /** As `cancel`, for several keys: all or none. @param {Bytes[]} keys @param {Bytes} order @returns {Promise<All<Settled>>} */
  async cancelMany(keys, order) {
    CALLS.cancelMany([keys, order]);
    return all(await this.#client.call('STOCK.MCANCEL', [keys.length, ...keys, order]), settled);
  }

  /** The available quantity; null: no such stock. @param {Bytes} key @returns {Promise<number | null>} */
  async available(key) {
    CALLS.available([key]);
    return this.#client.call('STOCK.GET', [key]);
  }

  /** The available quantities of keys of one hash slot. @param {Bytes[]} keys @returns {Promise<(number | null)[]>} */
  async availableMany(keys) {
    CALLS.availableMany([keys]);
    return this.#client.call('STOCK.MGET', keys);
  }

  /** The map of `STOCK.ORDER`; null: no such order. @param {Bytes} key @param {Bytes} order @returns {Promise<Record<string, any> | null>} */
  async order(key, order) {
    CALLS.order([key, order]);
    return this.#client.call('STOCK.ORDER', [key, order]);
  }

  /** The map of `STOCK.INFO`; null: no such stock. @param {Bytes} key @returns {Promise<Record<string, any> | null>} */
  async info(key) {
    CALLS.info([key]);
    return this.#client.call('STOCK.INFO', [key]);
  }
}

module.exports = { Stock };
