'use strict';
// The package on a master that Sentinel names, before and after a failover.

const assert = require('node:assert/strict');
const { after, before, test } = require('node:test');
const { Sluice, text } = require('../lib');
const { connectAdmin, disconnect, eventually } = require('./support');

const MASTER = process.env.SLUICE_MASTER_NAME;
const SENTINELS = [{ host: '127.0.0.1', port: Number(process.env.SLUICE_SENTINEL_PORT) }];
const noop = () => {};

const nodeRedis = (name) => async () =>
  require(name).createSentinel({ name: MASTER, sentinelRootNodes: SENTINELS }).on('error', noop).connect();

const ioredis = (name) => async () => new (require(name).Redis)({ sentinels: SENTINELS, name: MASTER }).on('error', noop);

const LIBRARIES = {
  'node-redis 6': nodeRedis('redis'),
  'node-redis 5': nodeRedis('redis5'),
  'ioredis 5': ioredis('ioredis'),
  'ioredis 6': ioredis('ioredis6'),
  'iovalkey': ioredis('iovalkey'),
};

/** @type {{ library: string, client: any, sluice: Sluice, lock?: any, near?: any, value: string }[]} */
const all = [];

before(async () => {
  for (const [library, connect] of Object.entries(LIBRARIES)) {
    const client = await connect();
    all.push({ library, client, sluice: new Sluice(client, { codec: text }), value: 'old' });
  }
});

after(async () => {
  for (const { client, sluice } of all) {
    await sluice.close();
    disconnect(client);
  }
});

const isIn = async (near, key, load, value) => {
  try {
    return await near.get(key, load) === value;
  } catch {
    return false; // a broken connection
  }
};

test('locks, waiting callers and near caches find the master', async () => {
  for (const one of all) {
    const { library, sluice } = one;
    one.lock = await sluice.lock(`lock:${library}`, { lease: 600_000 }).acquire();
    assert(one.lock, library);
    assert.equal(await sluice.lock(`lock:${library}`, { wait: 20 }).acquire(), null, library);
    one.near = sluice.near();
    assert.equal(await one.near.get(`user:${library}`, async () => one.value), 'old', library);
    const loads = [1, 2].map(() => sluice.cache.get(`shared:${library}`, async () => 'loaded'));
    assert.deepEqual(await Promise.all(loads), ['loaded', 'loaded'], library);
  }
});

test('after a failover they find the new master', async () => {
  const sentinel = await connectAdmin(SENTINELS[0].port);
  const address = async () => String((await sentinel.send('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER))[1]);
  const old = await address();
  const admin = await connectAdmin(Number(old));
  await admin.send('SET', 'before', 'failover');
  await admin.send('WAIT', '1', '0'); // the locks are replicated, too
  await sentinel.send('SENTINEL', 'FAILOVER', MASTER);
  await eventually(async () => await address() !== old);
  // Until it is a replica, the old master accepts writes, and loses them.
  await eventually(() => admin.send('ROLE').then(([role]) => String(role) === 'slave', () => false));
  sentinel.close();
  admin.close();
  for (const { library, lock, sluice } of all) {
    await eventually(() => lock.check().then(() => true, () => false));
    assert.equal(await sluice.lock(`lock:${library}`, { wait: 20 }).acquire(), null, library);
    const { fence } = lock;
    await lock.release();
    const next = await sluice.lock(`lock:${library}`, { wait: 20_000 }).acquire();
    assert(next.fence > fence, library);
    await next.release();
  }
});

test('after a failover a near cache serves nothing old', async () => {
  for (const one of all) {
    const { library, near, sluice } = one;
    const load = async () => one.value;
    await eventually(() => isIn(near, `user:${library}`, load, 'old'));
    one.value = 'new';
    await sluice.cache.delete(`user:${library}`);
    await eventually(() => isIn(near, `user:${library}`, load, 'new'));
    const { hits } = near;
    await eventually(async () => await isIn(near, `user:${library}`, load, 'new') && near.hits > hits);
  }
});
