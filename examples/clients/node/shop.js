// A shop with node-redis: an idempotent sale, a filter, a cached read, a limit.
//
// `npm install && node shop.js [redis://...]` runs it on a server with Sluice. Copy the functions that you need.

import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { createClient, createClientPool } from 'redis';
import { again, withLock } from './lock.js';

/** Returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells once. */
export async function sell(client, sku, qty, order, user) {
  return again(() => client.sendCommand(['STOCK.DEDUCT', sku, `${qty}`, 'ORDER', order, 'USER', user]));
}

/** Returns false if the name certainly does not exist. True: query the database. */
export async function mayExist(client, name) {
  return Boolean(await client.sendCommand(['BF.EXISTS', 'names', name])); // 1 in RESP2, true in RESP3
}

/** The loader failed a moment ago, so it is unknown whether there is a value. */
export class LoaderFailed extends Error {}

/** Returns the value, or null if there is none. One caller at a time calls `load`. `pool`: other callers wait on connections of their own. */
export async function cached(pool, key, load, fresh = 60_000) {
  for (;;) {
    const [state, value, n] = await pool.sendCommand(['CACHE.FETCH', key, 'LEASE', '3000', 'BLOCK', '2000']);
    if (state === 'WAIT') continue; // another caller has been loading for more than two seconds
    if (state === 'DOWN' && value === null) throw new LoaderFailed(key);
    if (state !== 'LEASE') return value; // HIT, STALE, DOWN with an old value; null for NULL and ABSENT
    let loaded;
    try {
      loaded = await load(key) ?? null; // undefined also means that there is no value
    } catch (error) {
      await pool.sendCommand(['CACHE.FAIL', key, `${n}`, 'BACKOFF', '1000']);
      throw error;
    }
    await pool.sendCommand(loaded === null
      ? ['CACHE.SETNULL', key, 'PX', '5000', 'TOKEN', `${n}`]
      : ['CACHE.SET', key, loaded, 'PX', `${fresh}`, 'JITTER', '10', 'TOKEN', `${n}`]);
    return loaded;
  }
}

/** Returns 0 if the request is allowed, else the milliseconds to wait: 10 requests a second, 20 more after a quiet time. */
export async function retryAfter(client, user) {
  const [limited, , , retry] = await client.sendCommand(['RATE.GCRA', `limit:${user}`, '20', '10', '1000']);
  return limited ? retry : 0;
}

async function main(url = 'redis://localhost') {
  const client = createClient({ url });
  client.on('error', (error) => console.error(error.message));
  const pool = createClientPool({ url });
  await Promise.all([client.connect(), pool.connect()]);
  await withLock(client, 'account:ann', async ({ fence, signal, check }) => {
    await check(); // before each protected step
    // await fetch(bank, { signal, ... }), UPDATE accounts SET ..., fence = $fence WHERE id = 'ann' AND fence <= $fence
    console.log('holds the lock:', fence > 0 && !signal.aborted);
  });
  await client.sendCommand(['STOCK.SET', 'sku:1', '10', 'NX', 'PERUSER', '2']);
  const order = randomUUID();
  console.log('left:', await sell(client, 'sku:1', 1, order, 'ann'), await sell(client, 'sku:1', 1, order, 'ann'));
  await client.sendCommand(['BF.ADD', 'names', 'ann']);
  console.log('names:', await mayExist(client, 'ann'), await mayExist(client, 'bob'));
  const load = async () => 'Ann';
  console.log('cached:', await cached(pool, 'user:ann', load), await cached(pool, 'user:ann', load));
  console.log('retry after:', await retryAfter(client, 'ann'));
  await Promise.all([client.close(), pool.close()]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(process.argv[2]);
