// What examples/clients/node promises: node node.mjs <server> <lossy proxy> <protocol>. Run by tests/clients.rs.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLost, LockTimeout, withLock, withRenewedLock } from '../../examples/clients/node/lock.js';
import { LoaderFailed, cached, mayExist, retryAfter, sell } from '../../examples/clients/node/shop.js';
import { createClient, createClientPool } from '../../examples/clients/node/node_modules/redis/dist/index.js';

const [server, lossy, protocol] = process.argv.slice(2);
const LEASE = 1000;

async function connect(port, create = createClient) {
  const client = create({ socket: { port: Number(port) }, RESP: Number(protocol) });
  client.on('error', () => {}); // it connects again by itself
  return client.connect();
}

const client = await connect(server);
const admin = await connect(server);
const pool = await connect(server, createClientPool);

async function eventually(condition) {
  const deadline = Date.now() + 20_000;
  while (!await condition()) {
    assert(Date.now() < deadline);
    await sleep(5);
  }
}

const isFree = async () => await admin.exists('key') === 0;
const waiting = async () => /sluice_lock_waiting:(\d+)/.exec(await admin.info('sluice'))[1];
const aborted = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve));
const tryToHold = (hold, options) => hold(client, 'key', async ({ fence }) => fence, options);

async function two_holders_exclude_each_other() {
  for (const hold of [withLock, withRenewedLock]) {
    let next;
    const first = await hold(client, 'key', async ({ fence, check }) => {
      for (const other of [withLock, withRenewedLock]) await assert.rejects(tryToHold(other, { wait: 20 }), LockTimeout);
      next = tryToHold(withLock);
      await eventually(async () => await waiting() === '1');
      await check();
      return fence;
    });
    assert(await next > first);
    await eventually(isFree);
  }
}

async function work_that_fails_leaves_no_hold() {
  for (const hold of [withLock, withRenewedLock]) {
    await assert.rejects(hold(client, 'key', async () => { throw new RangeError('no'); }), RangeError);
    await eventually(isFree);
  }
}

async function a_killed_connection_frees_the_lock_and_the_holder_is_told() {
  const hold = withLock(client, 'key', async ({ fence, signal, check }) => {
    await check();
    const told = aborted(signal);
    await admin.sendCommand(['CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes']);
    await told;
    assert(signal.reason instanceof LockLost);
    await assert.rejects(check(), LockLost);
    await eventually(isFree);
    assert(await tryToHold(withLock) > fence);
  });
  await assert.rejects(hold, LockLost);
  await client.ping(); // it has connected again
}

async function a_connection_that_breaks_before_the_release_is_a_loss() {
  const hold = withLock(client, 'key', () => admin.sendCommand(['CLIENT', 'PAUSE', '60000', 'WRITE']));
  const told = assert.rejects(hold, LockLost);
  await eventually(async () => / cmd=lock.release /.test(await admin.sendCommand(['CLIENT', 'LIST']))); // and waits
  await admin.sendCommand(['CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes']);
  await told;
  await admin.sendCommand(['CLIENT', 'UNPAUSE']);
  await eventually(isFree);
  await client.ping(); // it has connected again
}

async function a_lock_that_is_taken_away_is_told() {
  const hold = withLock(client, 'key', async ({ check }) => {
    await admin.del('key');
    await check();
  });
  await assert.rejects(hold, LockLost);
  const renewed = withRenewedLock(client, 'key', async ({ signal }) => {
    const told = aborted(signal);
    await admin.del('key');
    await told;
  }, { lease: LEASE });
  await assert.rejects(renewed, LockLost);
}

async function renewal_outlasts_the_lease() {
  await withRenewedLock(client, 'key', async ({ check }) => {
    for (const until = Date.now() + 2 * LEASE; Date.now() < until;) {
      check();
      await assert.rejects(tryToHold(withLock, { wait: 20 }), LockTimeout);
    }
  }, { lease: LEASE });
  await eventually(isFree);
  // What is lost after the last renewal is told at the end.
  const lost = withRenewedLock(client, 'key', () => admin.sendCommand(['DEL', 'key']), { lease: 60_000 });
  await assert.rejects(lost, LockLost);
}

async function a_renewed_lock_of_a_silent_server_is_not_believed_in_past_its_lease() {
  const hold = withRenewedLock(client, 'key', async ({ signal }) => {
    const told = aborted(signal);
    const start = Date.now();
    await admin.sendCommand(['CLIENT', 'PAUSE', `${LEASE + 500}`, 'ALL']);
    await told;
    assert(Date.now() - start < LEASE + 500);
  }, { lease: LEASE });
  await assert.rejects(hold, LockLost);
}

async function a_lost_reply_to_an_acquisition_costs_nothing() {
  const behind = await connect(lossy);
  await withRenewedLock(behind, 'key', async ({ check }) => {
    check();
    const info = await admin.sendCommand(['LOCK.INFO', 'key']); // a map in RESP3, a flat array in RESP2
    const [holder] = protocol === '3' ? info.holders : info[3];
    assert.equal(protocol === '3' ? holder.count : holder[3], 1);
  }, { lease: 60_000, wait: 20_000 });
  // A lock whose own connection breaks before it has it is nobody's.
  await assert.rejects(withLock(behind, 'key', async () => assert.fail('it was not acquired')), /Socket closed/);
  await eventually(isFree);
  await behind.ping(); // until it has connected again
  await behind.close();
}

async function a_sale_whose_reply_is_lost_sells_once() {
  const behind = await connect(lossy);
  await admin.sendCommand(['STOCK.SET', 'sku', '10']);
  assert.equal(await sell(behind, 'sku', 1, 'order-1', 'ann'), 9);
  assert.equal(await admin.sendCommand(['STOCK.GET', 'sku']), 9);
  const once = behind.sendCommand(['STOCK.DEDUCT', 'sku', '1', 'ORDER', 'order-2']);
  await assert.rejects(once, /Socket closed/); // the reply was lost, and node-redis does not ask again
  assert.equal(await admin.sendCommand(['STOCK.GET', 'sku']), 8);
  await behind.ping(); // until it has connected again
  await behind.close();
}

async function a_stale_fence_is_refused() {
  const guard = (fence) => admin.sendCommand(['LOCK.GUARD', 'guard', `${fence}`]);
  const hold = withLock(client, 'key', async (slow) => {
    assert.equal(await guard(slow.fence), 1);
    await admin.del('key');
    await withLock(client, 'key', async (fast) => assert.equal(await guard(fast.fence), 1));
    assert.equal(await guard(slow.fence), 0);
  });
  await assert.rejects(hold, LockLost);
}

async function one_caller_loads_and_the_others_wait() {
  const loads = [];
  const load = async (key) => {
    loads.push(key);
    await eventually(async () => /sluice_cache_waiters_now:9/.test(await admin.info('sluice')));
    return 'Ann';
  };
  const values = await Promise.all(Array.from({ length: 10 }, () => cached(pool, 'user:1', load)));
  assert.deepEqual([loads, values], [['user:1'], Array(10).fill('Ann')]);
  const unexpected = async () => assert.fail('it was asked');
  assert.equal(await cached(pool, 'user:2', async () => null), null);
  assert.equal(await cached(pool, 'user:2', unexpected), null); // remembered: there is none
  assert.equal(await cached(pool, 'user:4', async () => undefined), null);
  assert.equal(await cached(pool, 'user:4', unexpected), null);
  await assert.rejects(cached(pool, 'user:3', async () => { throw new RangeError('no'); }), RangeError);
  await assert.rejects(cached(pool, 'user:3', unexpected), LoaderFailed); // DOWN: nobody asks again so soon
}

async function filters_and_limits_answer() {
  await admin.sendCommand(['BF.ADD', 'names', 'ann']);
  assert.deepEqual([await mayExist(client, 'ann'), await mayExist(client, 'bob')], [true, false]);
  assert.equal(await retryAfter(client, 'ann'), 0);
  let wait = 0;
  for (let call = 0; call < 1000 && wait === 0; call++) wait = await retryAfter(client, 'ann');
  assert(wait > 0); // sooner or later, on a slow machine
}

const TESTS = [
  two_holders_exclude_each_other,
  work_that_fails_leaves_no_hold,
  a_killed_connection_frees_the_lock_and_the_holder_is_told,
  a_connection_that_breaks_before_the_release_is_a_loss,
  a_lock_that_is_taken_away_is_told,
  renewal_outlasts_the_lease,
  a_renewed_lock_of_a_silent_server_is_not_believed_in_past_its_lease,
  a_lost_reply_to_an_acquisition_costs_nothing,
  a_sale_whose_reply_is_lost_sells_once,
  a_stale_fence_is_refused,
  one_caller_loads_and_the_others_wait,
  filters_and_limits_answer,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await Promise.all([client, admin, pool].map((used) => used.close()));
