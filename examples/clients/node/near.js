// A near cache: a bounded map of cached entries in the process, which the server invalidates by `CLIENT TRACKING`.
//
// `node near.js [redis://...]` tries it on a server with Sluice. Copy what you need.

import { createClient, createClientPool } from 'redis';
import { fileURLToPath } from 'node:url';
import { LoaderFailed, cached } from './shop.js';

/**
 * A map of the values for these replies of CACHE.FETCH. `load(keys)` returns a map, or a promise of one; it is called once for
 * all keys with a lease.
 */
async function settle(pool, keys, replies, load, fresh) {
  const values = new Map(), leases = new Map(), waiting = [];
  let failed;
  keys.forEach((key, index) => {
    const [state, value, n] = replies[index];
    if (state === 'LEASE') leases.set(key, n);
    else if (state === 'WAIT' || state === 'MISS') waiting.push(key); // another caller loads it, or a replica replied
    else if (state === 'DOWN' && value === null) failed ??= new LoaderFailed(key);
    else values.set(key, value);
  });
  if (leases.size) {
    let loaded;
    try {
      loaded = await load([...leases.keys()]);
    } catch (error) {
      await Promise.all([...leases].map(([key, token]) =>
        pool.sendCommand(['CACHE.FAIL', key, `${token}`, 'BACKOFF', '1000'])));
      throw error;
    }
    await Promise.all([...leases].map(([key, token]) => {
      const value = loaded.get(key) ?? null;
      values.set(key, value);
      return pool.sendCommand(value === null
        ? ['CACHE.SETNULL', key, 'PX', '5000', 'TOKEN', `${token}`]
        : ['CACHE.SET', key, value, 'PX', `${fresh}`, 'JITTER', '10', 'TOKEN', `${token}`]);
    }));
  }
  // The second round blocks. No lease waits for it.
  await Promise.all(waiting.map(async (key) => {
    values.set(key, await cached(pool, key, async () => (await load([key])).get(key), fresh));
  }));
  if (failed) throw failed;
  return values;
}

/** A map of the values of many keys, in one round trip if all are cached; `load(keys)` returns a map. */
export async function getMany(pool, keys, load, fresh = 60_000) {
  keys = [...new Set(keys)];
  const replies = await pool.execute((client) => // one connection: the commands are pipelined
    Promise.all(keys.map((key) => client.sendCommand(['CACHE.FETCH', key, 'LEASE', '3000']))));
  return settle(pool, keys, replies, load, fresh);
}

/**
 * Entries of `CACHE.*` in this process. A hit costs no round trip. After a lost connection the map is empty. If nothing has come
 * from the server for `check` ms, a hit costs a `PING`, so that a silent connection is noticed.
 */
export class NearCache {
  hits = 0;
  entries = new Map(); // the name of a key: its value, and until when it is fresh
  #requests = new Map(); // the key of each request whose reply has not come: the requests
  #heard = 0;
  #turned = 0;

  /** `options` are those of `createClient`, `pool` a pool of connections for leases and waits. */
  static async connect(options, pool, { size = 10_000, check = 1000 } = {}) {
    const near = new NearCache();
    Object.assign(near, { pool, size, check });
    near.client = createClient({ ...options, RESP: 3, emitInvalidate: true }); // sends CLIENT TRACKING ON
    near.client.on('invalidate', (key) => near.invalidate(key));
    for (const event of ['error', 'end', 'reconnecting', 'ready']) near.client.on(event, () => near.invalidate(null));
    await near.client.connect();
    return near;
  }

  /** The value, or null if there is none; `load(key)` is called by one caller at a time. */
  async get(key, load, fresh = 60_000) {
    const one = async () => new Map([[key, await load(key)]]);
    return (await this.getMany([key], one, fresh)).get(key);
  }

  /** A map of the values of many keys; `load(keys)` returns a map. */
  async getMany(keys, load, fresh = 60_000) {
    keys = [...new Set(keys)];
    await this.#listen();
    const values = new Map(), missing = [], now = performance.now();
    for (const key of keys) {
      const entry = this.entries.get(key);
      if (entry && now < entry.until) {
        values.set(key, entry.value);
        this.hits += 1;
      } else {
        missing.push(key);
      }
    }
    if (missing.length) {
      const replies = await this.#fetch(missing);
      for (const [key, value] of await settle(this.pool, missing, replies, load, fresh)) values.set(key, value);
    }
    return values;
  }

  close() {
    return this.client.close();
  }

  /** `null`: the connection is lost, or the server says that anything may have changed. */
  invalidate(key) {
    if (key === null) this.entries.clear();
    else this.entries.delete(`${key}`);
    const requests = key === null ? [...this.#requests.values()] : [this.#requests.get(`${key}`) ?? []];
    for (const request of requests.flatMap((some) => [...some])) request.isTold = true;
  }

  /** Lets the event loop read the invalidations that have arrived. */
  async #listen() {
    const now = performance.now();
    if (now - this.#heard > this.check && this.entries.size) {
      await this.client.sendCommand(['PING']).catch(() => this.invalidate(null));
      this.#heard = this.#turned = performance.now();
    } else if (now - this.#turned > 1) {
      await new Promise(setImmediate);
      this.#turned = performance.now();
    }
  }

  /** The replies for these keys, in one round trip. */
  #fetch(keys) {
    return Promise.all(keys.map(async (key) => {
      const request = { isTold: false }, asked = performance.now();
      if (!this.#requests.has(key)) this.#requests.set(key, new Set());
      const requests = this.#requests.get(key).add(request);
      try {
        const reply = await this.client.sendCommand(['CACHE.FETCH', key, 'LEASE', '3000']);
        const [state, value, n] = reply;
        // The other states change without an invalidation. One that came before the reply may be of this value.
        if ((state === 'HIT' || state === 'NULL') && !request.isTold) {
          if (this.entries.size >= this.size) this.entries.delete(this.entries.keys().next().value);
          this.entries.set(key, { value, until: asked + Number(n) });
        }
        return reply;
      } finally {
        if (requests.delete(request) && !requests.size) this.#requests.delete(key);
        this.#heard = performance.now();
      }
    }));
  }
}

async function main(url = 'redis://localhost') {
  const pool = await createClientPool({ url }).connect();
  const near = await NearCache.connect({ url }, pool);
  const database = new Map([['user:ann', 'Ann'], ['user:bob', 'Bob']]);
  const load = async (keys) => new Map(keys.map((key) => [key, database.get(key)]));
  console.log('loaded:', await near.getMany(['user:ann', 'user:bob', 'user:eve'], load));
  await near.getMany(['user:ann', 'user:bob', 'user:eve'], load); // fills the map
  const start = performance.now();
  for (let hit = 0; hit < 100_000; hit++) await near.get('user:ann', (key) => database.get(key));
  console.log('hits a second:', Math.round(100_000_000 / (performance.now() - start)));
  database.set('user:ann', 'Anne');
  await pool.sendCommand(['CACHE.DEL', 'user:ann']);
  await new Promise((resolve) => setTimeout(resolve, 100));
  console.log('invalidated:', await near.get('user:ann', (key) => database.get(key)));
  await Promise.all([near.close(), pool.close()]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(process.argv[2]);
