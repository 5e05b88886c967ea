// What examples/clients/node/shop.js promises: node node.mjs <server> <lossy proxy> <protocol>. Run by tests/clients/main.rs.

import assert from 'node:assert/strict';
import { createClient } from '../../examples/clients/node/node_modules/redis/dist/index.js';
import { LockLost, Sluice } from '../../clients/node/lib/index.js';
import { findUser, retryAfter, sell, withdraw, write } from '../../examples/clients/node/shop.js';

const [server, lossy, protocol] = process.argv.slice(2);

async function connect(port) {
  const client = createClient({ socket: { port: Number(port) }, RESP: Number(protocol) });
  client.on('error', () => {}); // it connects again by itself
  return client.connect();
}

const client = await connect(server);
const sluice = new Sluice(client);

async function a_stale_fence_is_refused() {
  const accounts = new Map([['ann', { balance: 100, fence: 0 }]]);
  await Promise.all([withdraw(sluice, accounts, 'ann', 30), withdraw(sluice, accounts, 'ann', 20)]);
  const { balance, fence } = accounts.get('ann');
  assert.equal(balance, 50);
  assert.throws(() => write(accounts, 'ann', 0, fence - 1), LockLost);
  assert.equal(accounts.get('ann').balance, 50);
}

async function a_sale_whose_reply_is_lost_sells_once() {
  const behind = await connect(lossy);
  await sluice.stock.create('sku', 10, { perUser: 1 });
  assert.equal(await sell(new Sluice(behind), 'sku', 'order-1', 'ann'), 'sold, 9 available');
  assert.equal(await sell(sluice, 'sku', 'order-2', 'ann'), 'refused: OVER_USER_LIMIT');
  const once = behind.sendCommand(['STOCK.DEDUCT', 'sku', '1', 'ORDER', 'order-3', 'USER', 'bob']);
  await assert.rejects(once, /Socket closed/); // the reply was lost, and node-redis does not ask again
  assert.equal(await sluice.stock.available('sku'), 8);
  await behind.ping(); // until it has connected again
  await behind.close();
}

async function filters_caches_and_limits_answer() {
  const unexpected = () => assert.fail('it was asked');
  assert.equal(await findUser(sluice, 'ann', unexpected), null);
  await sluice.bloom.add('names', 'ann');
  for (const load of [() => 'Ann', unexpected]) assert.equal(await findUser(sluice, 'ann', load), 'Ann');
  assert.equal(await retryAfter(sluice, 'ann'), 0);
  let wait = 0;
  for (let call = 0; call < 1000 && wait === 0; call++) wait = await retryAfter(sluice, 'ann');
  assert(wait > 0); // sooner or later, on a slow machine
}

const TESTS = [
  a_stale_fence_is_refused,
  a_sale_whose_reply_is_lost_sells_once,
  filters_caches_and_limits_answer,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await sluice.close();
await client.close();
