'use strict';
// The near cache under random reads and writes of several processes. Its workers are this file, too.

const assert = require('node:assert/strict');
const { fork } = require('node:child_process');
const { once } = require('node:events');
const { Sluice, text } = require('../lib');
const { ALL, connectAdmin, disconnect, sleep } = require('./support');

const PROCESSES = 4;
const STEPS = Number(process.env.SLUICE_NEAR_STEPS ?? 300);
const KEYS = Array.from({ length: 20 }, (_, number) => `key:${number}`);

const choice = (list) => list[Math.floor(Math.random() * list.length)];

/** Reads and writes at random, then reads everything when all are quiet. The database is a hash. */
async function work(library, number, isDeaf) {
  const client = await ALL[library]();
  const admin = await connectAdmin();
  const sluice = new Sluice(client, { codec: text });
  const near = sluice.near({ check: 600_000 });
  const options = { lease: 100 }; // that of a killed connection is nobody's until it ends
  if (isDeaf) near.invalidate = () => {}; // it misses all invalidations: the checker must find it
  const load = (key) => admin.send('HGET', 'database', key);
  const loadMany = async (keys) => new Map(await Promise.all(keys.map(async (key) => [key, await load(key)])));
  for (let step = 0; step < STEPS; step++) {
    const key = choice(KEYS);
    if (Math.random() < 0.2) {
      if (Math.random() < 0.2) await admin.send('HDEL', 'database', key);
      else await admin.send('HSET', 'database', key, `${number}:${step}`);
      await choice([() => sluice.cache.delete(key), () => admin.send('DEL', key), () => sluice.cache.delete(key, { grace: 5 })])();
    } else if (Math.random() < 0.1) {
      await near.getMany(KEYS, loadMany, options);
    } else if (Math.random() < 0.01) {
      const clients = (await admin.send('CLIENT', 'LIST')).split('\n').filter((line) => / flags=(t|P) /.test(line));
      if (clients.length) await admin.send('CLIENT', 'KILL', 'ID', /id=(\d+)/.exec(choice(clients))[1]);
    } else {
      await Promise.all([near.get(key, load, options), near.get(choice(KEYS), load, options)]);
    }
  }
  process.send('quiet');
  await once(process, 'message');
  await sleep(500);
  const stale = [];
  for (let round = 0; round < 2; round++) {
    for (const key of KEYS) if (await near.get(key, load) !== await load(key)) stale.push(key);
  }
  process.send({ stale, hits: near.hits });
  process.disconnect();
  await sluice.close();
  disconnect(client);
  admin.close();
}

/** The keys of which a process has an old value. */
async function staleReads(library, isDeaf) {
  const admin = await connectAdmin();
  await admin.send('FLUSHALL');
  admin.close();
  const workers = Array.from({ length: PROCESSES }, (_, number) =>
    fork(__filename, { env: { ...process.env, SLUICE_WORKER: JSON.stringify([library, number, isDeaf]) }, execArgv: [] }));
  const message = (worker) => new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('exit', (code) => reject(new Error(`a worker ended: ${code}`)));
  });
  await Promise.all(workers.map(message));
  const found = workers.map(message);
  for (const worker of workers) worker.send('check');
  const reports = await Promise.all(found);
  assert(reports.every(({ hits }) => hits > 0));
  return reports.flatMap(({ stale }) => stale);
}

if (process.env.SLUICE_WORKER) {
  work(...JSON.parse(process.env.SLUICE_WORKER));
} else {
  const { test } = require('node:test');
  for (const library of ['node-redis 6, RESP3', 'ioredis 5']) {
    test(`after random writes of four processes, none serves an old value with ${library}`, async () => {
      assert.deepEqual(await staleReads(library, false), []);
    });
  }

  test('a near cache that hears no invalidation is found', async () => {
    assert.notDeepEqual(await staleReads('ioredis 5', true), []);
  });
}
