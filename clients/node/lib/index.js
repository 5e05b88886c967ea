'use strict';
// All families of Sluice over one client of node-redis, ioredis or iovalkey.

const { Cache } = require('./cache');
const { Client } = require('./client');
const { buffer, json, text } = require('./codecs');
const { Delay } = require('./delay');
const {
  Conflict, ConnectionBroken, Deadlock, FilterError, LeaseLost, LoaderFailed, LockLost, LockTimeout, NoSuchQueue, OutcomeUnknown,
  ServerError, SluiceError, TooManyWaiting, WaitTimeout, WrongType,
} = require('./errors');
const { Bloom, Cuckoo } = require('./filters');
const { Limit } = require('./limit');
const { Hold, Links, Lock, checkLock } = require('./locks');
const { NearCache } = require('./near');
const { Once } = require('./once');
const { CODEC, INTEGER, NAME, POSITIVE, POSITIVE_MS, checkOptions, signature } = require('./options');
const { Stock } = require('./stock');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */
/** @typedef {import('./locks').LockOptions} LockOptions */
/** @typedef {import('./cache').CacheOptions} CacheOptions */
/** @typedef {import('./once').OnceOptions} OnceOptions */
/** @typedef {import('./stock').Refusal} Refusal */
/** @typedef {import('./stock').Taken} Taken */
/** @typedef {import('./stock').Settled} Settled */
/** @typedef {import('./limit').Limited} Limited */
/** @typedef {import('./limit').Rate} Rate */

/**
 * @template T
 * @typedef {import('./codecs').Codec<T>} Codec
 */

/** A cluster finds the node by text or bytes. @param {Bytes} key */
const keyOf = (key) => (typeof key === 'number' ? String(key) : key);

const CALLS = {
  guard: signature('sluice.guard', { key: NAME, fence: INTEGER }, { ttl: POSITIVE_MS }),
  limit: signature('sluice.semaphore', { limit: POSITIVE }),
  near: signature('sluice.near', {}, { size: POSITIVE, check: POSITIVE_MS }),
};

/**
 * All command families over one client. Create one for each process and client.
 *
 * @example
 * const sluice = new Sluice(await createClient().connect());
 * await sluice.lock('report').run(async (hold) => write(report, hold.fence));
 */
class Sluice {
  #client;
  #links;
  #codec;
  /** @type {Set<NearCache>} */
  #near = new Set();

  /**
   * @param {any} client A connected client: `createClient`, `createClientPool`, `createCluster` or `createSentinel` of
   *   node-redis, or `Redis` or `Cluster` of ioredis or iovalkey. The caller closes it, after `close`.
   * @param {object} [options]
   * @param {Codec<any>} [options.codec] How cached values and results become bytes: `json` (by default), `text` or `buffer`.
   * @param {number} [options.timeout] The longest time, in milliseconds, for a new connection and for the answer to a request on
   *   the connections of locks, which none blocks. By default 5000. The timeouts of `client` are its own.
   */
  constructor(client, options = {}) {
    checkOptions('new Sluice', { codec: CODEC, timeout: POSITIVE_MS }, options);
    const { codec = json, timeout = 5000 } = options;
    this.#client = new Client(client, timeout);
    this.#links = new Links(this.#client);
    this.#codec = codec;
    /** Cached values. */
    this.cache = new Cache(this.#client, codec);
    /** Inventory. */
    this.stock = new Stock(this.#client);
    /** Rate limits. */
    this.limit = new Limit(this.#client);
    /** Idempotency keys. */
    this.once = new Once(this.#client, codec);
    /** Delay queues. */
    this.delay = new Delay(this.#client);
    /** Bloom filters. */
    this.bloom = new Bloom(this.#client);
    /** Cuckoo filters. */
    this.cuckoo = new Cuckoo(this.#client);
  }

  /**
   * A lock, or several that are acquired together: all or none, of one hash slot.
   *
   * @param {Bytes | Bytes[]} key
   * @param {LockOptions} [options]
   */
  lock(key, options = {}) {
    const isMany = Array.isArray(key);
    const keys = isMany ? key : [key];
    checkLock('sluice.lock', keys, options);
    return new Lock(this.#links, { family: 'LOCK', keys: keys.map(keyOf), isMany }, options);
  }

  /**
   * A shared hold of a lock: it excludes only `lock`.
   *
   * @param {Bytes} key
   * @param {LockOptions} [options]
   */
  readLock(key, options = {}) {
    checkLock('sluice.readLock', [key], options);
    return new Lock(this.#links, { family: 'LOCK', keys: [keyOf(key)], isMany: false, isShared: true }, options);
  }

  /**
   * A semaphore: at most `limit` permits are held at the same time.
   *
   * @overload
   * @param {Bytes} key
   * @param {number} limit
   * @param {LockOptions & { permits?: number }} [options] `permits`: how many permits this hold has, by default 1.
   * @returns {Lock}
   */
  /**
   * Several semaphores that are acquired together: all or none, of one hash slot.
   *
   * @overload
   * @param {[key: Bytes, limit: number][]} keys
   * @param {LockOptions & { permits?: number }} [options]
   * @returns {Lock}
   */
  /**
   * @param {Bytes | [key: Bytes, limit: number][]} key
   * @param {any} [limit]
   * @param {any} [options]
   */
  semaphore(key, limit, options) {
    const isMany = Array.isArray(key);
    const pairs = isMany ? key : [[key, limit]];
    const all = (isMany ? limit : options) ?? {};
    const limits = pairs.map(([, one]) => /** @type {number} */ (one));
    checkLock('sluice.semaphore', pairs.map(([one]) => one), all, { permits: POSITIVE });
    for (const one of limits) CALLS.limit([one]);
    const { permits, ...rest } = all;
    const keys = pairs.map(([one]) => keyOf(one));
    return new Lock(this.#links, { family: 'SEM', keys, limits, permits, isMany }, rest);
  }

  /**
   * The check of a protected resource that cannot compare fences itself.
   *
   * @param {Bytes} key Of the resource, not of the lock.
   * @param {number} fence
   * @param {{ ttl?: number }} [options] Milliseconds for which the largest fence is remembered. By default without limit.
   * @returns {Promise<boolean>} false: a later holder was here; stop.
   */
  async guard(key, fence, options = {}) {
    CALLS.guard([key, fence], options);
    const { ttl } = options;
    return this.#client.call('LOCK.GUARD', [key, fence, ...(ttl === undefined ? [] : ['PX', ttl])]);
  }

  /**
   * A cache in this process in front of `cache`: hits cost no round trip. It has a connection of its own.
   *
   * @param {{ size?: number, check?: number }} [options] The largest number of entries, by default 10 000; after so many
   *   milliseconds without a word from the server, by default 1000, a hit costs a `PING`.
   */
  near(options = {}) {
    CALLS.near([], options);
    const near = new NearCache(this.#client, this.cache, this.#codec, options);
    this.#near.add(near);
    return near;
  }

  /**
   * Sends any command of Sluice where its key is. Bulk strings are Buffers, except in maps.
   *
   * @param {string} name
   * @param {Word[]} args
   * @returns {Promise<any>}
   */
  send(name, ...args) {
    return this.#client.call(name.toUpperCase(), args);
  }

  /** Releases all locks, and closes the connections of this object. The client stays open. */
  async close() {
    for (const near of this.#near) near.close();
    await this.#links.close();
    this.#client.close();
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }
}

module.exports = {
  Sluice,
  Bloom,
  Cache,
  Cuckoo,
  Delay,
  Hold,
  Limit,
  Lock,
  NearCache,
  Once,
  Stock,
  buffer,
  json,
  text,
  Conflict,
  ConnectionBroken,
  Deadlock,
  FilterError,
  LeaseLost,
  LoaderFailed,
  LockLost,
  LockTimeout,
  NoSuchQueue,
  OutcomeUnknown,
  ServerError,
  SluiceError,
  TooManyWaiting,
  WaitTimeout,
  WrongType,
};
