'use strict';
// A near cache: a bounded map of cached entries in this process, which the server invalidates by CLIENT TRACKING.

const { CALLS } = require('./cache');
const { encode, keyName } = require('./commands');
const { ConnectionBroken, typed } = require('./errors');
const { answered } = require('./libraries');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./cache').CacheOptions} CacheOptions */
/** @typedef {import('./libraries').Tracked} Tracked */

const noop = () => {};

/** The connection to one node, whose server tells of each change of what it has read. */
class Feed {
  /** When a message or the reply to a PING last proved that messages arrive. Before the connection is open, there is no entry. */
  heard = Infinity;
  /** @type {Promise<void> | undefined} */
  #proof;

  /** @param {import('./libraries').Library} library @param {any} node @param {(key: Buffer | null) => void} invalidate */
  constructor(library, node, invalidate) {
    /** @type {Promise<Tracked>} */
    this.connection = library.track(node, (changed) => {
      this.heard = performance.now();
      invalidate(changed);
    });
    this.connection.then(() => { this.heard = performance.now(); }, noop);
  }

  /** Closes the connection if it does not answer a PING within `ms`. @param {number} ms */
  prove(ms) {
    return (this.#proof ??= this.#ping(ms).finally(() => { this.#proof = undefined; }));
  }

  /** @param {number} ms */
  async #ping(ms) {
    const { close, ping } = await this.connection;
    try {
      await answered(ping(), ms, close);
      this.heard = performance.now();
    } catch {
      close();
    }
  }

  close() {
    this.connection.then(({ close }) => close(), noop);
  }
}

/**
 * Entries of `CACHE.*` in this process: a hit costs no round trip. `sluice.near` returns it. A change of an entry by any
 * client removes it from the map. After a lost connection the map is empty.
 */
class NearCache {
  #client;
  #cache;
  #codec;
  #size;
  #check;
  /** @type {Map<string, { value: any, until: number }>} */
  #entries = new Map();
  /** @type {Map<string, Set<{ isOld: boolean }>>} The requests whose replies have not come, by key. */
  #requests = new Map();
  /** @type {Map<any, Feed>} By node. */
  #feeds = new Map();
  #turned = 0;
  #isClosed = false;

  /** The reads that were answered without a round trip. */
  hits = 0;

  /**
   * @internal
   * @param {import('./client').Client} client
   * @param {import('./cache').Cache} cache
   * @param {import('./codecs').Codec<any>} codec
   * @param {{ size?: number, check?: number }} options
   */
  constructor(client, cache, codec, { size = 10_000, check = 1000 }) {
    this.#client = client;
    this.#cache = cache;
    this.#codec = codec;
    this.#size = size;
    this.#check = check;
  }

  /** The number of entries in this process. */
  get size() {
    return this.#entries.size;
  }

  /**
   * As `cache.get`. Callers share the value, so do not change it.
   *
   * @template {Bytes} K
   * @template T
   * @param {K} key
   * @param {(key: K) => T | null | undefined | Promise<T | null | undefined>} loader
   * @param {CacheOptions} [options]
   * @returns {Promise<T | null>}
   */
  async get(key, loader, options = {}) {
    CALLS.getNear([key, loader], options);
    /** @type {(keys: K[]) => Promise<Map<K, any>>} */
    const load = async () => new Map([[key, await loader(key)]]);
    return (await this.#getMany([key], load, options)).get(key) ?? null;
  }

  /**
   * As `cache.getMany`.
   *
   * @template {Bytes} K
   * @template T
   * @param {Iterable<K>} keys
   * @param {(keys: K[]) => Map<K, T | null> | Promise<Map<K, T | null>>} loader
   * @param {CacheOptions} [options]
   * @returns {Promise<Map<K, T | null>>}
   */
  async getMany(keys, loader, options = {}) {
    CALLS.getManyNear([keys, loader], options);
    return this.#getMany(keys, loader, options);
  }

  /**
   * @template {Bytes} K
   * @template T
   * @param {Iterable<K>} keys
   * @param {(keys: K[]) => Map<K, T | null> | Promise<Map<K, T | null>>} loader
   * @param {CacheOptions} options
   * @returns {Promise<Map<K, T | null>>}
   */
  async #getMany(keys, loader, options) {
    await this.#listen();
    const values = new Map();
    /** @type {K[]} */
    const missing = [];
    const now = performance.now();
    for (const key of new Set(keys)) {
      const entry = this.#entries.get(keyName(key));
      if (entry && now < entry.until) {
        values.set(key, entry.value);
        this.hits += 1;
      } else {
        missing.push(key);
      }
    }
    if (!missing.length) return values;
    const replies = await this.#cache.repliesOf(missing, (key) => this.#fetch(key, options));
    for (const [key, value] of await this.#cache.settle(missing, replies, loader, options)) values.set(key, value);
    return values;
  }

  /** Removes an entry from this process alone; null: all entries. @param {Bytes | null} key */
  invalidate(key) {
    const name = key === null ? null : keyName(key);
    if (name === null) this.#entries.clear();
    else this.#entries.delete(name);
    const requests = name === null ? [...this.#requests.values()] : [this.#requests.get(name) ?? []];
    for (const request of requests.flatMap((some) => [...some])) request.isOld = true;
  }

  close() {
    this.#isClosed = true;
    for (const feed of this.#feeds.values()) feed.close();
    this.#feeds.clear();
    this.#entries.clear();
  }

  /** Lets the event loop read the messages that have arrived, and closes each connection that is silent and does not answer. */
  async #listen() {
    const now = performance.now();
    const silent = this.#entries.size ? [...this.#feeds.values()].filter(({ heard }) => now - heard > this.#check) : [];
    if (silent.length) {
      await Promise.all(silent.map((feed) => feed.prove(this.#check)));
      this.#turned = performance.now();
    } else if (now - this.#turned > 1) {
      await new Promise((resolve) => setImmediate(resolve));
      this.#turned = performance.now();
    }
  }

  /** @param {Bytes} key @returns {Promise<Tracked>} */
  async #connection(key) {
    const { library } = this.#client;
    const node = await library.node(key);
    let feed = this.#feeds.get(node);
    if (!feed) {
      const own = new Feed(library, node, (changed) => this.invalidate(changed));
      const forget = () => {
        if (this.#feeds.get(node) === own) this.#feeds.delete(node);
        this.invalidate(null);
      };
      own.connection.then((tracked) => {
        tracked.onClose(forget);
        if (this.#isClosed) tracked.close();
      }, forget);
      this.#feeds.set(node, feed = own);
    }
    return feed.connection;
  }

  /**
   * @param {Bytes} key
   * @param {CacheOptions} options
   * @returns {Promise<any>}
   */
  async #fetch(key, options) {
    const { timeout } = this.#client;
    const name = keyName(key);
    const request = { isOld: false };
    const requests = this.#requests.get(name) ?? new Set();
    this.#requests.set(name, requests.add(request));
    const asked = performance.now();
    try {
      /** @type {any[]} */
      let reply;
      try {
        if (this.#isClosed) throw new Error('The near cache is closed');
        const { close, send } = await this.#connection(key);
        const words = encode('CACHE.FETCH', [key, ...this.#cache.wordsOf(options)]);
        const [state, value, n] = await answered(send(words), timeout, close);
        reply = [String(state), value, Number(n)];
      } catch (error) {
        const failure = typed(error);
        if (!(failure instanceof ConnectionBroken) && !/^(MOVED|ASK) /.test(failure.message)) throw failure;
        // The value is not kept in this process, until it is connected again.
        const late = this.#cache.request(key, options);
        return await answered(late, timeout, () => { this.#cache.giveBackLate(key, late); });
      }
      const [state, value, n] = reply;
      // The other states change without a message. A message that came before the reply may be of this value.
      if ((state === 'HIT' || state === 'NULL') && !request.isOld) {
        const { codec = this.#codec } = options;
        if (this.#entries.size >= this.#size) this.#entries.delete(this.#entries.keys().next().value ?? '');
        this.#entries.set(name, { value: value === null ? null : codec.decode(value), until: asked + n });
      }
      return reply;
    } finally {
      requests.delete(request);
      if (!requests.size && this.#requests.get(name) === requests) this.#requests.delete(name);
    }
  }
}

module.exports = { NearCache };
