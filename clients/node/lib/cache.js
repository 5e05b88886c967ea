'use strict';
// Cached values: one caller at a time loads a value, in all processes.

const { keyName } = require('./commands');
const { LoaderFailed, ServerError, WaitTimeout } = require('./errors');
const { CODEC, COUNT, FUNCTION, MS, NAME, NUMBER, POSITIVE, POSITIVE_MS, WAIT_MS, group, required, signature } = require('./options');
const { span } = require('./tracing');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

/**
 * @template T
 * @typedef {import('./codecs').Codec<T>} Codec
 */

/**
 * @typedef {object} StoreOptions
 * @property {number} [fresh] Milliseconds for which a value is fresh. By default 60 000.
 * @property {number} [stale] Milliseconds after that for which the old value is served while one caller loads. By default 0.
 * @property {number} [negative] Milliseconds for which "there is no value" is fresh. By default 5000.
 * @property {number} [jitter] Percent by which `fresh` varies, so that entries do not expire together. By default 10.
 * @property {number} [version] The version of the value in the database. An older version is not stored.
 * @property {Codec<any>} [codec] How values become bytes. By default that of `Sluice`.
 */

/**
 * @typedef {object} FetchOptions
 * @property {number} [lease] Milliseconds that the loader has before another caller loads. By default 10 000.
 * @property {number} [early] One caller loads again when less than this many milliseconds of fresh time are left.
 * @property {number} [beta] The same at random, sooner for slow loaders (XFetch); 1 is a good value.
 * @property {number} [slide] Milliseconds for which each hit keeps the entry fresh.
 * @property {{ filter: Bytes, item: Bytes }} [guard] Loads nothing if this Bloom or cuckoo filter has never seen the item.
 * @property {{ name: Bytes, failures: number, open: number }} [breaker] After so many failures in a row, no loader of this
 *   name runs for `open` milliseconds.
 */

/**
 * @typedef {object} WaitOptions
 * @property {number} [wait] The longest wait for another caller's load, in milliseconds. By default 30 000.
 * @property {number} [backoff] Milliseconds without another load after a loader failed. By default 1000.
 */

/** @typedef {StoreOptions & FetchOptions & WaitOptions} CacheOptions */

/** @typedef {'HIT' | 'NULL' | 'LEASE' | 'STALE' | 'WAIT' | 'ABSENT' | 'DOWN' | 'MISS'} State */

/** The longest BLOCK of one request, in milliseconds. */
const BLOCK_MS = 2000;

const STORE = { fresh: POSITIVE_MS, stale: MS, negative: POSITIVE_MS, jitter: COUNT, version: COUNT, codec: CODEC };
const FETCH = {
  lease: POSITIVE_MS,
  early: MS,
  beta: NUMBER,
  slide: POSITIVE_MS,
  guard: group({ filter: required(NAME), item: required(NAME) }),
  breaker: group({ name: required(NAME), failures: required(POSITIVE), open: required(POSITIVE_MS) }),
};
const ALL = { ...STORE, ...FETCH, wait: WAIT_MS, backoff: MS };
const { guard: _, ...MANY } = ALL;
const KEYS = { is: 'some keys', test: (/** @type {any} */ value) => typeof value !== 'string' && typeof value?.[Symbol.iterator] === 'function' };
const CALLS = {
  get: signature('cache.get', { key: NAME, loader: FUNCTION }, ALL),
  getMany: signature('cache.getMany', { keys: KEYS, loader: FUNCTION }, MANY),
  getNear: signature('near.get', { key: NAME, loader: FUNCTION }, ALL),
  getManyNear: signature('near.getMany', { keys: KEYS, loader: FUNCTION }, MANY),
  fetch: signature('cache.fetch', { key: NAME }, FETCH),
  set: signature('cache.set', { key: NAME }, STORE),
  delete: signature('cache.delete', { key: NAME }, { stale: MS, grace: MS, version: COUNT }),
  peek: signature('cache.peek', { key: NAME }, { codec: CODEC }),
  info: signature('cache.info', { key: NAME }),
  breaker: signature('cache.breaker', { name: NAME }),
  resetBreaker: signature('cache.resetBreaker', { name: NAME }),
};

/** The replies of a server that cannot store a value now, or never this one. */
const REFUSED_STORE = /^(OOM|NOREPLICAS|MISCONF|READONLY) |larger than cache-max-bytes/;

/** @param {FetchOptions} options @returns {Word[]} */
function fetchWords({ lease = 10_000, early, beta, slide, guard, breaker }) {
  /** @type {Word[]} */
  const words = ['LEASE', lease];
  if (early !== undefined) words.push('EARLY', early);
  if (beta !== undefined) words.push('BETA', beta);
  if (slide !== undefined) words.push('SLIDE', slide);
  if (guard) words.push('GUARD', guard.filter, guard.item);
  if (breaker) words.push('BREAKER', breaker.name, breaker.failures, breaker.open);
  return words;
}

class Cache {
  #client;
  #codec;
  /** @type {Map<string, Promise<any>>} The loads and waits of this process, by key. */
  #flights = new Map();

  /**
   * @internal
   * @param {import('./client').Client} client
   * @param {Codec<any>} codec
   */
  constructor(client, codec) {
    this.#client = client;
    this.#codec = codec;
  }

  /**
   * The cached value. If it is missing, one caller of all processes calls `loader(key)`, and the others wait for its value.
   * Callers of this process that ask for the same key at the same time share one request, with the options of the first one. A
   * loaded value is also returned if the server refuses to store it, for example because its memory is full. The server and a
   * breaker then count a failed load.
   *
   * @template {Bytes} K
   * @template T
   * @param {K} key
   * @param {(key: K) => T | null | undefined | Promise<T | null | undefined>} loader null and undefined: there is no value.
   * @param {CacheOptions} [options]
   * @returns {Promise<T | null>} null: there is no value.
   * @throws {LoaderFailed} A loader failed a moment ago, and no older value exists.
   * @throws {WaitTimeout} Another caller loads for longer than `wait`.
   */
  async get(key, loader, options = {}) {
    CALLS.get([key, loader], options);
    const name = keyName(key);
    let flight = this.#flights.get(name);
    if (!flight) {
      flight = this.#get(key, loader, options).finally(() => {
        if (this.#flights.get(name) === flight) this.#flights.delete(name);
      });
      this.#flights.set(name, flight);
    }
    return flight;
  }

  /**
   * @param {any} key
   * @param {(key: any) => any} loader
   * @param {CacheOptions} options
   */
  async #get(key, loader, options) {
    const reply = await this.request(key, options);
    const load = async () => new Map([[key, await loader(key)]]);
    return (await this.settle([key], [reply], load, options)).get(key);
  }

  /**
   * The values of many keys, with one round trip if all are cached.
   *
   * @template {Bytes} K
   * @template T
   * @param {Iterable<K>} keys
   * @param {(keys: K[]) => Map<K, T | null> | Promise<Map<K, T | null>>} loader Loads the keys that this caller must load, in
   *   one call. A key that its map lacks has no value.
   * @param {CacheOptions} [options] Without `guard`.
   * @returns {Promise<Map<K, T | null>>}
   * @throws {LoaderFailed} A loader of one of the keys failed a moment ago.
   */
  async getMany(keys, loader, options = {}) {
    CALLS.getMany([keys, loader], options);
    const distinct = [...new Set(keys)];
    const replies = await this.repliesOf(distinct, (key) => this.request(key, options));
    return this.settle(distinct, replies, loader, options);
  }

  /**
   * `CACHE.FETCH`: what to do for this key. `get` does it.
   *
   * @param {Bytes} key
   * @param {FetchOptions} [options]
   * @returns {Promise<[state: State, value: Buffer | null, n: number]>}
   */
  async fetch(key, options = {}) {
    CALLS.fetch([key], options);
    return this.request(key, options);
  }

  /**
   * @internal As `fetch`, with options that are checked.
   * @param {Bytes} key
   * @param {FetchOptions} options
   * @returns {Promise<[state: State, value: Buffer | null, n: number]>}
   */
  request(key, options) {
    return this.#client.call('CACHE.FETCH', [key, ...fetchWords(options)]);
  }

  /** @internal @param {FetchOptions} options */
  wordsOf(options) {
    return fetchWords(options);
  }

  /**
   * @internal The replies of CACHE.FETCH. If that of one key is an error, gives the leases of the others back.
   * @param {any[]} keys
   * @param {(key: any) => Promise<[State, Buffer | null, number]>} request
   * @returns {Promise<[State, Buffer | null, number][]>}
   */
  async repliesOf(keys, request) {
    /** @type {[State, Buffer | null, number][]} */
    const replies = [];
    /** @type {Map<any, number>} */
    const leases = new Map();
    /** @type {unknown[]} */
    const errors = [];
    const settled = await Promise.allSettled(keys.map(request));
    settled.forEach((one, at) => {
      if (one.status === 'rejected') {
        errors.push(one.reason);
      } else {
        replies.push(one.value);
        if (one.value[0] === 'LEASE') leases.set(keys[at], one.value[2]);
      }
    });
    if (!errors.length) return replies;
    await this.#giveBack(leases);
    throw errors[0];
  }

  /**
   * @internal Gives a lease back that is granted to a caller that does not wait any more.
   * @param {any} key
   * @param {Promise<[State, Buffer | null, number]>} late
   */
  async giveBackLate(key, late) {
    const [state, , token] = await late.catch(() => ['MISS', null, 0]);
    if (state === 'LEASE') await this.#giveBack(new Map([[key, Number(token)]]));
  }

  /** Gives leases back whose values are not loaded. If that fails, they end by themselves. @param {Map<any, number>} leases The tokens. */
  async #giveBack(leases, backoff = 0) {
    await Promise.allSettled([...leases].map(([key, token]) =>
      this.#client.call('CACHE.FAIL', [key, token, ...(backoff ? ['BACKOFF', backoff] : [])])));
  }

  /**
   * @internal The values for these replies of CACHE.FETCH.
   * @param {any[]} keys
   * @param {[State, Buffer | null, number][]} replies
   * @param {(keys: any[]) => Map<any, any> | Promise<Map<any, any>>} loader
   * @param {CacheOptions} options
   * @returns {Promise<Map<any, any>>}
   */
  async settle(keys, replies, loader, options) {
    const { wait = 30_000, codec = this.#codec } = options;
    const deadline = performance.now() + wait;
    const values = new Map();
    /** @type {unknown} */
    let failed;
    let open = keys;
    while (open.length) {
      const leases = new Map();
      /** @type {any[]} */
      const waiting = [];
      /** @type {any[]} */
      const unleased = [];
      /** @type {[any, Buffer | null][]} */
      const found = [];
      open.forEach((key, at) => {
        const [state, value, n] = replies[at];
        if (state === 'LEASE') leases.set(key, n);
        else if (state === 'MISS') unleased.push(key); // a replica: it gives no leases, and stores nothing
        else if (state === 'WAIT') waiting.push(key);
        else if (state === 'DOWN' && value === null) failed ??= new LoaderFailed(`The loader of ${key} failed a moment ago`, n);
        else found.push([key, value]);
      });
      try {
        for (const [key, value] of found) values.set(key, value === null ? null : codec.decode(value));
      } catch (error) {
        await this.#giveBack(leases);
        throw error;
      }
      if (leases.size) for (const [key, value] of await this.#load(leases, loader, options)) values.set(key, value);
      if (unleased.length) {
        const loaded = await loader(unleased);
        for (const key of unleased) values.set(key, loaded.get(key) ?? null);
      }
      if (waiting.length && performance.now() >= deadline) throw new WaitTimeout(`Another caller loads ${waiting[0]}`);
      // No lease of this caller waits for these.
      const block = Math.ceil(Math.max(Math.min(deadline - performance.now(), BLOCK_MS), 1));
      replies = await this.repliesOf(waiting, (key) => this.#client.callBlocking('CACHE.FETCH', [key, ...fetchWords(options)], block));
      open = waiting;
    }
    if (failed) throw failed;
    return values;
  }

  /**
   * Loads keys with a lease and stores their values, or gives the leases back.
   *
   * @param {Map<any, number>} leases The tokens.
   * @param {(keys: any[]) => Map<any, any> | Promise<Map<any, any>>} loader
   * @param {CacheOptions} options
   */
  async #load(leases, loader, options) {
    const { backoff = 1000, codec = this.#codec } = options;
    const values = new Map();
    const encoded = new Map();
    try {
      const loaded = await span('sluice.load', {}, async () => loader([...leases.keys()]));
      for (const key of leases.keys()) {
        const value = loaded.get(key) ?? null;
        const bytes = value === null ? null : codec.encode(value);
        encoded.set(key, bytes);
        // All callers get the same, also this one.
        values.set(key, bytes === null ? null : codec.decode(Buffer.from(bytes)));
      }
    } catch (error) {
      await this.#giveBack(leases, backoff);
      throw error;
    }
    await Promise.all([...leases].map(([key, token]) => this.#storeLoaded(key, encoded.get(key), options, token)));
    return values;
  }

  /**
   * Stores a loaded value. If that fails, gives the lease back. Throws nothing if the server refuses to store a value now, for
   * example because its memory is full.
   *
   * @param {Bytes} key
   * @param {string | Buffer | null} value
   * @param {StoreOptions} options
   * @param {number} token
   */
  async #storeLoaded(key, value, options, token) {
    try {
      await this.#store(key, value, options, token);
    } catch (error) {
      await this.#client.call('CACHE.FAIL', [key, token]).catch(() => {}); // then the lease ends by itself
      if (!(error instanceof ServerError && REFUSED_STORE.test(error.message))) throw error;
    }
  }

  /**
   * @param {Bytes} key
   * @param {string | Buffer | null} value
   * @param {StoreOptions} options
   * @param {number} [token]
   * @returns {Promise<boolean>}
   */
  #store(key, value, { fresh = 60_000, stale, negative = 5000, jitter = 10, version }, token) {
    /** @type {Word[]} */
    const words = value === null ? [key, 'PX', negative] : [key, value, 'PX', fresh];
    if (stale) words.push('STALE', stale);
    if (jitter) words.push('JITTER', jitter);
    if (token !== undefined) words.push('TOKEN', token);
    if (version !== undefined) words.push('VER', version);
    return this.#client.call(value === null ? 'CACHE.SETNULL' : 'CACHE.SET', words, token !== undefined);
  }

  /**
   * Stores a value. Running loads of this key do not store theirs any more. Not repeated after a lost reply: a repetition would
   * undo a deletion of the time between.
   *
   * @param {Bytes} key
   * @param {unknown} value null: there is no value.
   * @param {StoreOptions} [options]
   * @returns {Promise<boolean>} false: a newer `version` is stored.
   */
  async set(key, value, options = {}) {
    CALLS.set([key], options);
    const { codec = this.#codec } = options;
    const bytes = value === null || value === undefined ? null : codec.encode(value);
    return this.#store(key, bytes, options).finally(() => this.#joinNoLoad(key));
  }

  /**
   * Removes an entry after its value changed in the database. A load that runs meanwhile does not store its value.
   *
   * @param {Bytes} key
   * @param {{ stale?: number, grace?: number, version?: number }} [options] Milliseconds for which the old value is served
   *   while one caller loads; milliseconds for which no loaded value is stored, for databases whose replicas lag; the version
   *   of the change.
   * @returns {Promise<boolean>} Whether there was an entry.
   */
  async delete(key, options = {}) {
    CALLS.delete([key], options);
    const { stale, grace, version } = options;
    /** @type {Word[]} */
    const words = [key];
    if (stale) words.push('STALE', stale);
    if (grace) words.push('GRACE', grace);
    if (version !== undefined) words.push('VER', version);
    return this.#client.call('CACHE.DEL', words).finally(() => this.#joinNoLoad(key));
  }

  /** The next `get` joins no load that may have begun before the change. @param {Bytes} key */
  #joinNoLoad(key) {
    this.#flights.delete(keyName(key));
  }

  /**
   * The value, if it is cached. Loads nothing.
   *
   * @param {Bytes} key
   * @param {{ codec?: Codec<any> }} [options]
   * @returns {Promise<any>} null: no value is cached.
   */
  async peek(key, options = {}) {
    CALLS.peek([key], options);
    const { codec = this.#codec } = options;
    const value = await this.#client.call('CACHE.GET', [key]);
    return value === null ? null : codec.decode(value);
  }

  /** The map of `CACHE.INFO`; null: there is no entry. @param {Bytes} key @returns {Promise<Record<string, any> | null>} */
  async info(key) {
    CALLS.info([key]);
    return this.#client.call('CACHE.INFO', [key]);
  }

  /** The map of `CACHE.BREAKER`; null: no loader of this name has run. @param {Bytes} name @returns {Promise<Record<string, any> | null>} */
  async breaker(name) {
    CALLS.breaker([name]);
    return this.#client.call('CACHE.BREAKER', [name], true);
  }

  /** Closes a breaker. @param {Bytes} name @returns {Promise<boolean>} false: it is not known. */
  async resetBreaker(name) {
    CALLS.resetBreaker([name]);
    return this.#client.call('CACHE.BREAKER', [name, 'RESET']);
  }
}

module.exports = { CALLS, Cache };
