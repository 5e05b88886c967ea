// A shop with the package clients/node: a write with a fencing token, an idempotent sale, a filter, a cached read, a limit.
//
// `npm install && node shop.js [redis://...]` runs it on a server with Sluice.

import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { createClient } from 'redis';
import { LockLost, Sluice } from 'sluice';

/** The check in the database: it refuses the write of a holder that lost the lock, however late the write arrives. */
export function write(accounts, id, balance, fence) {
  // UPDATE accounts SET balance = ..., fence = $fence WHERE id = ... AND fence <= $fence
  if (fence < (accounts.get(id)?.fence ?? 0)) throw new LockLost(id);
  accounts.set(id, { balance, fence });
}

/** Changes the balance under a lock, which the server renews. */
export async function withdraw(sluice, accounts, id, amount) {
  await sluice.lock(`account:${id}`).run(async (hold) => {
    const { balance } = accounts.get(id); // await fetch(bank, { signal: hold.signal }) ends when the lock is lost
    await hold.check();
    write(accounts, id, balance - amount, hold.fence);
  });
}

/** Returns a text for the buyer. A repetition with the same order sells once: create the id before the first attempt. */
export async function sell(sluice, sku, order, user) {
  const reply = await sluice.stock.deduct(sku, 1, { order, user });
  return reply.ok ? `sold, ${reply.available} available` : `refused: ${reply.refusal}`;
}

/** Returns a user, or null. The filter answers for most names that do not exist, the cache for the others. */
export async function findUser(sluice, name, load) {
  if (!await sluice.bloom.exists('names', name)) return null;
  return sluice.cache.get(`user:${name}`, load); // one caller at a time asks the database
}

/** Returns 0 if the request is allowed, else the milliseconds to wait: 10 requests a second, 20 more after a quiet time. */
export async function retryAfter(sluice, name) {
  const { allowed, retryMs } = await sluice.limit.gcra(`limit:${name}`, { burst: 20, count: 10, period: 1000 });
  return allowed ? 0 : retryMs;
}

async function main(url = 'redis://localhost') {
  const client = await createClient({ url }).on('error', (error) => console.error(error.message)).connect();
  const sluice = new Sluice(client);
  const accounts = new Map([['ann', { balance: 100, fence: 0 }]]);
  await withdraw(sluice, accounts, 'ann', 30);
  console.log('balance:', accounts.get('ann').balance);
  await sluice.stock.create('sku:1', 10, { perUser: 2 });
  const order = randomUUID();
  console.log(await sell(sluice, 'sku:1', order, 'ann'), '/', await sell(sluice, 'sku:1', order, 'ann'));
  await sluice.bloom.add('names', 'ann');
  const load = async () => ({ name: 'Ann' });
  console.log('users:', await findUser(sluice, 'ann', load), await findUser(sluice, 'bob', load));
  console.log('retry after:', await retryAfter(sluice, 'ann'));
  await sluice.close();
  await client.close();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(process.argv[2]);
