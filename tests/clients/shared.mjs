// What examples/clients/node/shared.js promises: node shared.mjs <server>. Run by tests/clients.rs.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { LostError, SharedLocks } from '../../examples/clients/node/shared.js';
import { createClient } from '../../examples/clients/node/node_modules/redis/dist/index.js';

const url = `redis://127.0.0.1:${process.argv[2]}`;
const admin = await createClient({ url }).connect();
const locks = await SharedLocks.connect(url);

async function eventually(condition) {
  const deadline = Date.now() + 20_000;
  while (!await condition()) {
    assert(Date.now() < deadline);
    await sleep(5);
  }
}

const waiting = async () => Number(/sluice_lock_waiting:(\d+)/.exec(await admin.info('sluice'))[1]);

async function a_thousand_tasks_share_one_connection() {
  let count = 0;
  const fences = [];
  const increment = () =>
    locks.withLock('counter', async (fence) => {
      fences.push(fence);
      const before = count;
      await new Promise(setImmediate); // another task would count here, too
      count = before + 1;
    }, { waitMs: 60_000 });
  await Promise.all(Array.from({ length: 1000 }, increment));
  assert.equal(count, 1000);
  assert.deepEqual(fences, [...fences].sort((one, other) => one - other));
  // One connection for commands, one for messages, and this test's.
  assert.equal((await admin.sendCommand(['CLIENT', 'LIST'])).trim().split('\n').length, 3);
}

async function a_lock_that_stays_busy_times_out() {
  await admin.sendCommand(['LOCK.ACQUIRE', 'busy', 'other', 'PX', '600000']);
  await assert.rejects(locks.withLock('busy', () => assert.fail('it is not free'), { waitMs: 50 }), /not free/);
  assert.equal(await waiting(), 0);
}

async function work_that_fails_releases_the_lock() {
  await assert.rejects(locks.withLock('key', async () => { throw new RangeError('no'); }), RangeError);
  assert.equal(await admin.exists('key'), 0);
}

async function a_holder_hears_of_a_loss() {
  const hold = locks.withLock('key', async (fence, signal) => {
    const aborted = new Promise((resolve) => signal.addEventListener('abort', resolve));
    await admin.del('key');
    await aborted;
  });
  await assert.rejects(hold, LostError);
}

async function a_killed_subscription_leaves_no_task_stuck() {
  await admin.sendCommand(['LOCK.ACQUIRE', 'key', 'other', 'PX', '600000']);
  const fences = [];
  const tasks = [1, 2, 3].map(() =>
    locks.withLock('key', async (fence) => fences.push(fence), { waitMs: 1000 }).catch(() => {}));
  await eventually(async () => await waiting() === 3);
  await admin.sendCommand(['CLIENT', 'KILL', 'TYPE', 'pubsub']);
  await admin.sendCommand(['LOCK.RELEASE', 'key', 'other']);
  await Promise.all(tasks);
  // Whether a task was granted the lock or gave up, nothing is left of it.
  assert.equal(await waiting(), 0);
  assert.equal(await admin.exists('key'), 0);
  await eventually(async () => (await admin.sendCommand(['PUBSUB', 'CHANNELS'])).length === 1);
  await locks.withLock('key', async () => {});
}

const TESTS = [
  a_thousand_tasks_share_one_connection,
  a_lock_that_stays_busy_times_out,
  work_that_fails_releases_the_lock,
  a_holder_hears_of_a_loss,
  a_killed_subscription_leaves_no_task_stuck,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await locks.close();
await admin.close();
