'use strict';
// The package on a cluster of two nodes.

const assert = require('node:assert/strict');
const { after, before, describe, test } = require('node:test');
const { Sluice } = require('../lib');
const { slotOf } = require('../lib/libraries');
const { connectAdmin, eventually, lossyProxy, sleep, unlessLate } = require('./support');

const PORT = Number(process.env.SLUICE_CLUSTER_PORT);
const noop = () => {};
const KEYS = ['bar', 'foo']; // one on each node

/** A map has other addresses for those that the cluster names. */
const nodeRedis = (name, RESP) => async (nodeAddressMap) => {
  const { createCluster } = require(name);
  const cluster = createCluster({ rootNodes: [{ socket: { port: PORT } }], nodeAddressMap, defaults: { RESP } }).on('error', noop);
  await cluster.connect();
  return { cluster, close: () => cluster.destroy() };
};

const ioredis = (name) => async (natMap) => {
  const cluster = new (require(name).Cluster)([{ host: '127.0.0.1', port: PORT }], { natMap }).on('error', noop);
  return { cluster, close: () => cluster.disconnect() };
};

const LIBRARIES = {
  'node-redis 6': nodeRedis('redis'),
  'node-redis 5': nodeRedis('redis5', 2),
  'ioredis 5': ioredis('ioredis'),
  'ioredis 6': ioredis('ioredis6'),
  'iovalkey': ioredis('iovalkey'),
};

/** The nodes of the cluster, by port. */
async function nodes() {
  const first = await connectAdmin(PORT);
  const lines = (await first.send('CLUSTER', 'NODES')).trim().split('\n').map((line) => line.split(' '));
  first.close();
  return Promise.all(lines.map(async ([id, address]) => {
    const port = Number(/:(\d+)@/.exec(address)[1]);
    return { id, port, ...await connectAdmin(port) };
  }));
}

/** The two nodes, the owner of the slot first. */
async function ownerFirst(all, key) {
  const owners = await Promise.all(all.map(async (node) => {
    const myself = (await node.send('CLUSTER', 'NODES')).split('\n').find((line) => line.includes('myself'));
    return myself.split(' ').slice(8).some((range) => {
      const [first, last = first] = range.split('-').map(Number);
      return slotOf(key) >= first && slotOf(key) <= last;
    });
  }));
  return owners[0] ? all : [...all].reverse();
}

/** Moves the slot of a key with all of its keys. */
async function move(all, key) {
  const [from, to] = await ownerFirst(all, key);
  const slot = slotOf(key);
  await to.send('CLUSTER', 'SETSLOT', slot, 'IMPORTING', from.id);
  await from.send('CLUSTER', 'SETSLOT', slot, 'MIGRATING', to.id);
  const keys = await from.send('CLUSTER', 'GETKEYSINSLOT', slot, 100);
  if (keys.length) await from.send('MIGRATE', '127.0.0.1', to.port, '', 0, 5000, 'KEYS', ...keys);
  for (const node of [to, from]) await node.send('CLUSTER', 'SETSLOT', slot, 'NODE', to.id);
}

/** A proxy before each node, by the port of the node. */
async function proxiesOf(all) {
  const proxies = new Map();
  for (const { port } of all) proxies.set(port, await lossyProxy(port));
  return proxies;
}

/** The map that lets a client find the proxies at the addresses that the cluster names. */
const addresses = (proxies) =>
  Object.fromEntries([...proxies].map(([port, proxy]) => [`127.0.0.1:${port}`, { host: '127.0.0.1', port: proxy.port }]));

test('hash slots are those of the server', async () => {
  const admin = await connectAdmin(PORT);
  for (const key of ['foo', '{user}:1', '{}x', 'a{b}{c}', '{open', Buffer.from([0, 255])]) {
    const slot = Buffer.isBuffer(key) ? null : await admin.send('CLUSTER', 'KEYSLOT', key);
    if (slot !== null) assert.equal(slotOf(key), slot, key);
  }
  admin.close();
});

for (const [library, connect] of Object.entries(LIBRARIES)) {
  describe(`a cluster with ${library}`, () => {
    let all;
    let client;
    let sluice;

    before(async () => {
      all = await nodes();
      client = await connect();
      sluice = new Sluice(client.cluster);
      for (const node of all) await node.send('FLUSHALL');
    });

    after(async () => {
      await sluice.close();
      client.close();
      for (const node of all) node.close();
    });

    test('commands find the node of their key', async () => {
      for (const tag of KEYS) {
        const key = (name) => `{${tag}}:${name}`;
        await sluice.stock.create(key('a'), 5);
        await sluice.stock.create(key('b'), 5);
        assert.equal((await sluice.stock.deductMany([[key('a'), 1], [key('b'), 1]], { order: 'o' })).ok, true);
        assert.equal(await sluice.stock.available(key('b')), 4);
        assert.equal((await sluice.limit.gcra(key('g'), { count: 1, period: 1000 })).allowed, true);
        assert.equal(await sluice.bloom.add(key('f'), 'x'), true);
        assert.equal(await sluice.cache.get(key('c'), () => 7), 7);
        assert.equal(await sluice.once.run(key('o'), () => 7), 7);
        const near = sluice.near();
        await eventually(async () => { await near.get(key('c'), () => 8); return near.hits > 0; });
        await sluice.cache.set(key('c'), 9);
        await eventually(async () => await near.get(key('c'), () => 8) === 9);
        assert.equal(await near.get(17, () => 'number'), 'number'); // the node of its slot is found
        near.close();
      }
    });

    test('a near cache finds one silent node while it reads from the other one', async () => {
      const proxies = await proxiesOf(all);
      const behind = await connect(addresses(proxies));
      const other = new Sluice(behind.cluster, { timeout: 300 });
      const near = other.near({ check: 100 });
      const [key, another] = ['bar:near', 'foo:near'].map((name) => `{${name.slice(0, 3)}}${name}`);
      for (const one of [key, another]) await sluice.cache.set(one, 'v');
      await eventually(async () => { // a node may not know yet that a slot has moved, and a busy machine answers late
        for (const one of [key, another]) await near.get(one, () => assert.fail()).catch(unlessLate);
        return near.size === 2;
      });
      const [owner] = await ownerFirst(all, key);
      proxies.get(owner.port).fallSilent(library.startsWith('node-redis') ? 'tracking' : 'subscribe');
      await sluice.cache.set(key, 'new');
      let read = 0;
      await eventually(async () => {
        await near.get(`${another}${read++}`, () => 'v').catch(unlessLate);
        return await near.get(key, () => 'v').catch(unlessLate) === 'new';
      });
      await other.close();
      behind.close();
      for (const proxy of proxies.values()) proxy.close();
    });

    test('locks wait on the node of their key', async () => {
      for (const key of KEYS) {
        const lock = sluice.lock(key);
        let next;
        await lock.run(async (hold) => {
          next = lock.run((other) => other.fence);
          const [owner] = await ownerFirst(all, key);
          await eventually(async () => await owner.info('sluice_lock_waiting') === 1);
          await hold.check();
        });
        await next;
        await sluice.lock([`{${key}}1`, `{${key}}2`]).run((hold) => assert.equal(hold.fences.length, 2));
        await sluice.semaphore([[`{${key}}3`, 1], [`{${key}}4`, 1]]).run((hold) => hold.check());
      }
    });

    test('a waiting task follows a slot that moves', async () => {
      const [key] = KEYS;
      const [from, to] = await ownerFirst(all, key);
      await from.send('LOCK.ACQUIRE', key, 'other', 'PX', '600000');
      const wait = sluice.lock(key, { wait: 60_000 }).run((hold) => hold.check());
      const value = sluice.cache.get(`{${key}}:value`, () => 1);
      await value;
      await eventually(async () => await from.info('sluice_lock_waiting') === 1);
      await move(all, key);
      await eventually(async () => await to.info('sluice_lock_waiting') === 1);
      await to.send('LOCK.RELEASE', key, 'other');
      await wait;
      assert.equal(await sluice.cache.get(`{${key}}:value`, () => 2), 1);
    });

    const kinds = {
      'lock': () => sluice.lock(KEYS[0]),
      'shared lock': () => sluice.readLock(KEYS[0]),
      'semaphore': () => sluice.semaphore(KEYS[0], 2, { permits: 2 }),
      'lock of several keys': () => sluice.lock([KEYS[0], `{${KEYS[0]}}other`]),
      'lock of a named owner': () => sluice.lock(KEYS[0], { owner: 'ann' }),
    };
    for (const [kind, create] of Object.entries(kinds)) {
      test(`a ${kind} follows a slot that moves, and is watched there`, async () => {
        const [key] = KEYS;
        const [, to] = await ownerFirst(all, key);
        const info = async () => String(await to.send(`${kind === 'semaphore' ? 'SEM' : 'LOCK'}.INFO`, key));
        const hold = await create().acquire();
        const { fence } = hold;
        await move(all, key);
        if (kind !== 'lock of a named owner') await eventually(async () => /watchdog,1/.test(await info()));
        await hold.check();
        assert.equal(hold.fence, fence);
        assert.match(await info(), /count,[12],/);
        assert.equal(await hold.release(), true);
        assert.equal(await to.send('EXISTS', key), 0);
      });
    }

    test('a holder learns of a loss in a cluster, before and after its slot moves', async () => {
      const [key] = KEYS;
      for (const isMoved of [false, true]) {
        const hold = await sluice.lock(key, { lease: 600_000 }).acquire();
        if (isMoved) {
          await move(all, key);
          const [node] = await ownerFirst(all, key);
          await eventually(async () => /watchdog,1/.test(String(await node.send('LOCK.INFO', key))));
        }
        const [owner] = await ownerFirst(all, key);
        await owner.send('DEL', key);
        await eventually(() => hold.signal.aborted);
        assert.equal(await owner.send('EXISTS', key), 0);
        await assert.rejects(hold.check(), { name: 'LockLost' });
      }
    });

    for (const isUpgraded of [false, true]) {
      const name = isUpgraded ? 'an upgraded lock' : 'its lock';
      test(`a holder learns of a loss while ${name} follows a slot`, async () => {
        const [key] = KEYS;
        const proxies = await proxiesOf(all);
        const behind = await connect(addresses(proxies));
        const other = new Sluice(behind.cluster);
        const options = { lease: 600_000 };
        const hold = await (isUpgraded ? other.readLock(key, options) : other.lock(key, options)).acquire();
        if (isUpgraded) assert.equal(await hold.upgrade(), true);
        const [, to] = await ownerFirst(all, key);
        const proxy = proxies.get(to.port);
        proxy.delay('LOCK.ACQUIRE', async () => {
          await to.send('DEL', key);
          await sleep(100); // the message about the loss arrives before the reply
        });
        await move(all, key);
        await eventually(() => hold.signal.aborted);
        assert(proxy.isDone());
        await assert.rejects(hold.check(), { name: 'LockLost' });
        await other.close();
        behind.close();
        for (const one of proxies.values()) one.close();
      });
    }

    test('a lock is bound again after its connections broke', async () => {
      const [key] = KEYS;
      const [owner] = await ownerFirst(all, key);
      let hold;
      let found;
      await eventually(async () => { // a PING of the package may come after the request
        await hold?.release();
        hold = await sluice.lock(key, { lease: 600_000 }).acquire();
        found = /^id=(\d+).* cmd=lock.acquire /m.exec(await owner.send('CLIENT', 'LIST'));
        return found;
      });
      await owner.send('CLIENT', 'KILL', 'ID', found[1]);
      await eventually(async () => /watchdog,1/.test(String(await owner.send('LOCK.INFO', key))));
      assert.equal(await hold.release(), true);
    });
  });
}
