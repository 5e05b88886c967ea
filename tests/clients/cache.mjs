// The Node examples of docs/cache.md, run: node cache.mjs <server>. Run by tests/clients.rs.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createClient, createClientPool } from '../../examples/clients/node/node_modules/redis/dist/index.js';

const text = readFileSync(new URL('../../docs/cache.md', import.meta.url), 'utf8');
const [penetration, breakdown, avalanche, staleWrite, ...others] = [...text.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
assert.deepEqual(others, []);

const options = { socket: { port: Number(process.argv[2]) } };
const client = await createClient(options).connect();
const pool = await createClientPool(options).connect();

/** Runs an example with what it takes for granted. */
function run(code, { id = 7, load, value } = {}) {
  const { constructor: AsyncFunction } = async () => {};
  return new AsyncFunction('client', 'pool', 'id', 'load', 'value', code)(client, pool, id, load, value);
}

const fetch = (key) => client.sendCommand(['CACHE.FETCH', key, 'LEASE', '3000']);

async function what_does_not_exist_is_asked_for_once_or_never() {
  await client.sendCommand(['BF.ADD', 'users', '7']);
  const asked = [];
  const load = async (id) => { asked.push(id); return null; };
  await run(penetration, { id: -1, load });
  for (let call = 0; call < 2; call++) await run(penetration, { load });
  assert.deepEqual(asked, [7]);
  assert.equal((await fetch('user:7'))[0], 'NULL');
}

async function one_of_many_callers_loads() {
  let asked = 0;
  const load = async () => { asked += 1; return '<html>'; };
  await Promise.all(Array.from({ length: 10 }, () => run(breakdown, { load })));
  assert.equal(asked, 1);
  assert.equal((await fetch('front-page'))[1], '<html>');
}

async function entries_expire_at_different_times() {
  const left = new Set();
  for (let id = 0; id < 20; id++) {
    await run(avalanche, { id, value: 'x' });
    const minutes = Math.round(await client.pTTL(`item:${id}`) / 60_000);
    assert(minutes >= 54 && minutes <= 66);
    left.add(minutes);
  }
  assert(left.size > 1);
}

async function a_stale_write_is_refused() {
  await run(staleWrite, { load: async () => { await client.sendCommand(['CACHE.DEL', 'price:7']); return '10'; } });
  assert.equal(await client.exists('price:7'), 0);
  await run(staleWrite, { load: async () => '12' });
  assert.equal((await fetch('price:7'))[1], '12');
}

const TESTS = [
  what_does_not_exist_is_asked_for_once_or_never,
  one_of_many_callers_loads,
  entries_expire_at_different_times,
  a_stale_write_is_refused,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await Promise.all([client.close(), pool.close()]);
