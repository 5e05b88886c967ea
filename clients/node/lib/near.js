'use strict';
// A near cache: a bounded map of cached entries in this process, which the server invalidates by CLIENT TRACKING.

const { encode, keyName } = require('./commands');
const { typed } = require('./errors');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./cache').CacheOptions} CacheOptions */
/** @typedef {import('./libraries').Tracked} Tracked */

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
  /** @type {Map<any, Promise<Tracked>>} By node. */
  #connections = new Map();
  #heard = 0;
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
    /** @type {(keys: K[]) => Promise<Map<K, any>>} */
    const load = async () => new Map([[key, await loader(key)]]);
    return (await this.getMany([key], load, options)).get(key) ?? null;
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
    const replies = await Promise.all(missing.map((key) => this.#fetch(key, options)));
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
    for (const connection of this.#connections.values()) connection.then(({ close }) => close(), () => {});
    this.#connections.clear();
    this.#entries.clear();
  }

  /** Lets the event loop read the messages that have arrived, and finds out whether a silent connection is dead. */
  async #listen() {
    const now = performance.now();
    if (now - this.#heard > this.#check && this.#entries.size) {
      const pings = [...this.#connections.values()].map(async (connection) => (await connection).ping());
      /** @type {NodeJS.Timeout | undefined} */
      let timer;
      const late = new Promise((_, reject) => { timer = setTimeout(reject, this.#check).unref(); });
      await Promise.race([Promise.all(pings), late]).catch(() => this.#drop());
      clearTimeout(timer);
      this.#heard = this.#turned = performance.now();
    } else if (now - this.#turned > 1) {
      await new Promise((resolve) => setImmediate(resolve));
      this.#turned = performance.now();
    }
  }

  #drop() {
    this.invalidate(null);
    for (const connection of this.#connections.values()) connection.then(({ close }) => close(), () => {});
    this.#connections.clear();
  }

  /** @param {Bytes} key */
  async #connection(key) {
    const node = await this.#client.library.node(key);
    let connection = this.#connections.get(node);
    if (!connection) {
      connection = this.#client.library.track(node, (changed) => this.invalidate(changed));
      const own = connection;
      const forget = () => {
        if (this.#connections.get(node) === own) this.#connections.delete(node);
        this.invalidate(null);
      };
      this.#connections.set(node, own);
      own.then((tracked) => {
        tracked.onClose(forget);
        if (this.#isClosed) tracked.close();
      }, forget);
    }
    return connection;
  }

  /**
   * @param {Bytes} key
   * @param {CacheOptions} options
   * @returns {Promise<any>}
   */
  async #fetch(key, options) {
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
        const connection = await this.#connection(key);
        const words = encode(['CACHE.FETCH', key, ...this.#cache.wordsOf(options)]);
        const [state, value, n] = await connection.send(words);
        reply = [String(state), value, Number(n)];
      } catch (error) {
        const { name: kind } = typed(error);
        if (kind !== 'ConnectionBroken' && !/^(MOVED|ASK) /.test(/** @type {Error} */ (error).message)) throw typed(error);
        return await this.#cache.fetch(key, options); // uncached in this process, until it is connected again
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
      this.#heard = performance.now();
    }
  }
}

module.exports = { NearCache };
