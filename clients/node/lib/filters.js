'use strict';
// Bloom and cuckoo filters: "certainly not" or "probably". A filter is made by `create`, or by its first addition.

const { COUNT, NAME, NUMBER, oneOf, required, signature } = require('./options');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

const CALLS = {
  bloom: signature('bloom.create', { key: NAME }, { capacity: required(COUNT), error: NUMBER, expansion: COUNT }),
  like: signature('bloom.create', { key: NAME }, { like: required(NAME) }),
  cuckoo: signature('cuckoo.create', { key: NAME }, { capacity: required(COUNT), bits: oneOf(8, 16, 32), expansion: COUNT }),
};

class Filter {
  /** @internal */
  _client;
  /** @internal */
  _family;

  /**
   * @internal
   * @param {import('./client').Client} client
   * @param {'BF' | 'CF'} family
   */
  constructor(client, family) {
    this._client = client;
    this._family = family;
  }

  /** Whether the filter has probably seen the item. false: certainly not. @param {Bytes} key @param {Bytes} item @returns {Promise<boolean>} */
  exists(key, item) {
    return this._client.call(`${this._family}.EXISTS`, [key, item]);
  }

  /** As `exists`, for many items. @param {Bytes} key @param {Bytes[]} items @returns {Promise<boolean[]>} */
  existsMany(key, items) {
    return this._client.call(`${this._family}.MEXISTS`, [key, ...items]);
  }

  /** The map of `BF.INFO` or `CF.INFO`. @param {Bytes} key @returns {Promise<Record<string, any>>} */
  info(key) {
    return this._client.call(`${this._family}.INFO`, [key]);
  }
}

class Bloom extends Filter {
  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    super(client, 'BF');
  }

  /**
   * Creates a filter.
   *
   * @param {Bytes} key
   * @param {{ capacity: number, error?: number, expansion?: number } | { like: Bytes }} options The number of items; the false
   *   positive rate, by default 0.01; the growth of further layers, 0: none. Or `like` another filter, to merge them later.
   * @throws {FilterError} The filter exists, or an option is out of range.
   */
  async create(key, options) {
    const isLike = Object.hasOwn(options ?? {}, 'like');
    (isLike ? CALLS.like : CALLS.bloom)([key], options ?? {});
    if ('like' in options) return void await this._client.call('BF.RESERVE', [key, 'LIKE', options.like]);
    const { capacity, error = 0.01, expansion } = options;
    await this._client.call('BF.RESERVE', [key, error, capacity, ...(expansion === undefined ? [] : ['EXPANSION', expansion])]);
  }

  /** Adds an item. @param {Bytes} key @param {Bytes} item @returns {Promise<boolean>} false: it was probably there. */
  add(key, item) {
    return this._client.call('BF.ADD', [key, item]);
  }

  /** Adds items. @param {Bytes} key @param {Bytes[]} items @returns {Promise<boolean[]>} */
  addMany(key, items) {
    return this._client.call('BF.MADD', [key, ...items]);
  }

  /** The number of items. @param {Bytes} key @returns {Promise<number>} */
  count(key) {
    return this._client.call('BF.CARD', [key]);
  }

  /** Merges filters that were created `like` each other. @param {Bytes} destination @param {Bytes[]} keys */
  async merge(destination, keys) {
    await this._client.call('BF.MERGE', [destination, keys.length, ...keys]);
  }
}

/** A filter whose items can be deleted. */
class Cuckoo extends Filter {
  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    super(client, 'CF');
  }

  /**
   * Creates a filter.
   *
   * @param {Bytes} key
   * @param {{ capacity: number, bits?: 8 | 16 | 32, expansion?: number }} options The number of items; the bits of a fingerprint,
   *   by default 16; the growth of further layers.
   * @throws {FilterError} The filter exists, or an option is out of range.
   */
  async create(key, options) {
    CALLS.cuckoo([key], options ?? {});
    const { capacity, bits, expansion } = options;
    const words = [...(bits === undefined ? [] : ['BITS', bits]), ...(expansion === undefined ? [] : ['EXPANSION', expansion])];
    await this._client.call('CF.RESERVE', [key, capacity, ...words]);
  }

  /** Adds an item, once more if it is there. Not repeated after a lost reply. @param {Bytes} key @param {Bytes} item @returns {Promise<boolean>} */
  add(key, item) {
    return this._client.call('CF.ADD', [key, item]);
  }

  /**
   * Adds an item if it is not there. Not repeated after a lost reply, because another client may delete the item meanwhile.
   *
   * @param {Bytes} key
   * @param {Bytes} item
   * @returns {Promise<boolean>} false: it was probably there.
   */
  addNew(key, item) {
    return this._client.call('CF.ADDNX', [key, item]);
  }

  /**
   * Deletes an item that was added. An item that was never added can delete another one. Not repeated after a lost reply.
   *
   * @param {Bytes} key
   * @param {Bytes} item
   * @returns {Promise<boolean>} false: it is not there.
   */
  delete(key, item) {
    return this._client.call('CF.DEL', [key, item]);
  }

  /** How often an item was added, or more. @param {Bytes} key @param {Bytes} item @returns {Promise<number>} */
  count(key, item) {
    return this._client.call('CF.COUNT', [key, item]);
  }
}

module.exports = { Bloom, Cuckoo };
