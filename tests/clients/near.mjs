// The near cache of examples/clients/node: node near.mjs <server>. Run by tests/clients/main.rs.

import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient, createClientPool } from '../../examples/clients/node/node_modules/redis/dist/index.js';
import { NearCache, getMany } from '../../examples/clients/node/near.js';
import { LoaderFailed } from '../../examples/clients/node/shop.js';

const options = { socket: { port: Number(process.argv[2]) } };
const PROCESSES = 8;
const STEPS = Number(process.env.SLUICE_NEAR_STEPS ?? 400);
const KEYS = Array.from({ length: 20 }, (_, number) => `key:${number}`);

const client = await createClient(options).on('error', () => {}).connect();
const pool = await createClientPool(options).on('error', () => {}).connect();

async function eventually(condition) {
  for (const deadline = Date.now() + 20_000; !await condition(); await sleep(5)) assert(Date.now() < deadline);
}

const commands = async () => Number(/total_commands_processed:(\d+)/.exec(await client.info('stats'))[1]);

/** One that misses all invalidations: the checker must find it. */
const deafen = (near) => { near.client.removeAllListeners('invalidate'); };

async function a_hit_costs_no_round_trip() {
  await client.flushAll();
  const near = await NearCache.connect(options, pool, { check: 600_000 });
  const loads = [];
  const load = (key) => { loads.push(key); return 'v'; }, none = (key) => { loads.push(key); };
  for (let call = 0; call < 3; call++) {
    assert.equal(await near.get('k', load), 'v');
    assert.equal(await near.get('none', none), null);
  }
  assert.deepEqual(loads, ['k', 'none']);
  const before = await commands();
  for (let call = 0; call < 1000; call++) {
    assert.equal(await near.get('k', load), 'v');
    assert.equal(await near.get('none', none), null);
  }
  assert(await commands() - before < 10 && near.hits >= 2000);
  await near.close();
}

async function an_invalidation_reaches_values_and_negative_entries() {
  const near = await NearCache.connect(options, pool);
  const database = new Map();
  const load = (key) => database.get(key);
  for (const change of [
    (key) => client.sendCommand(['CACHE.DEL', key]),
    (key) => client.del(key),
    () => client.flushAll(),
  ]) {
    for (const [key, old, now] of [['k', 'old', 'new'], ['n', undefined, 'now']]) {
      database.set(key, old);
      await client.flushAll();
      await eventually(async () => { await near.get(key, load); return near.entries.has(key); });
      database.set(key, now);
      await change(key);
      await eventually(async () => await near.get(key, load) === now);
    }
  }
  await near.close();
}

async function a_lost_connection_empties_the_map() {
  await client.flushAll();
  const near = await NearCache.connect(options, pool);
  let value = 'old';
  await eventually(async () => { await near.get('k', () => value); return near.entries.has('k'); });
  const id = await near.client.sendCommand(['CLIENT', 'ID']);
  value = 'new';
  await client.sendCommand(['CLIENT', 'KILL', 'ID', `${id}`]);
  await client.sendCommand(['CACHE.DEL', 'k']);
  await eventually(async () => await near.get('k', () => value).catch(() => null) === 'new');
  await eventually(async () => { await near.get('k', () => value); return near.entries.has('k'); });
  value = 'newer';
  await client.sendCommand(['CACHE.DEL', 'k']);
  await eventually(async () => await near.get('k', () => value) === 'newer'); // it is tracked again
  await near.close();
}

async function the_map_is_bounded() {
  await client.flushAll();
  const near = await NearCache.connect(options, pool, { size: 5 });
  const load = async (keys) => new Map(keys.map((key) => [key, key]));
  // The invalidation of a stored value may come after the value was read again.
  await eventually(async () => {
    await near.getMany(KEYS, load);
    assert.ok(near.entries.size <= 5);
    return near.entries.size === 5;
  });
  await near.close();
}

async function many_keys_are_loaded_at_once() {
  await client.flushAll();
  const asked = [];
  const load = async (keys) => {
    asked.push([...keys].sort());
    return new Map(keys.filter((key) => key !== 'b').map((key) => [key, key.toUpperCase()]));
  };
  const expected = new Map([['a', 'A'], ['b', null], ['c', 'C']]);
  for (let call = 0; call < 2; call++) assert.deepEqual(await getMany(pool, ['a', 'b', 'a', 'c'], load), expected);
  assert.deepEqual(asked, [['a', 'b', 'c']]);
  await client.sendCommand(['CACHE.FETCH', 'x', 'LEASE', '300']);
  const values = await getMany(pool, ['x', 'y'], load);
  assert.deepEqual([values.get('x'), values.get('y')], ['X', 'Y']);
  assert.deepEqual(asked.slice(1), [['y'], ['x']]);
  await assert.rejects(getMany(pool, ['d', 'e'], () => { throw new TypeError('down'); }), TypeError);
  await assert.rejects(getMany(pool, ['d', 'e'], load), LoaderFailed);
}

/** Reads and writes at random, then reads everything when all are quiet. The database is a hash. */
async function work(number, isDeaf) {
  const near = await NearCache.connect(options, pool, { check: 600_000 });
  if (isDeaf) deafen(near);
  const load = async (key) => await client.hGet('database', key) ?? null;
  const choice = (list) => list[Math.floor(Math.random() * list.length)];
  for (let step = 0; step < STEPS; step++) {
    const key = choice(KEYS);
    if (Math.random() < 0.2) {
      if (Math.random() < 0.2) await client.hDel('database', key);
      else await client.hSet('database', key, `${number}:${step}`);
      await client.sendCommand(choice([['CACHE.DEL', key], ['DEL', key], ['CACHE.DEL', key, 'GRACE', '5']]));
    } else if (Math.random() < 0.1) {
      await near.getMany(KEYS, async (keys) => new Map(await Promise.all(keys.map(async (key) => [key, await load(key)]))));
    } else {
      await Promise.all([near.get(key, load), near.get(choice(KEYS), load)]);
    }
  }
  process.send('quiet');
  await new Promise((resolve) => process.once('message', resolve));
  await sleep(500);
  const stale = [];
  for (let round = 0; round < 2; round++) {
    for (const key of KEYS) if (await near.get(key, load) !== await load(key)) stale.push(key);
  }
  process.send({ stale });
  process.disconnect();
  await Promise.all([near.close(), client.close(), pool.close()]);
}

async function staleReads(isDeaf) {
  await client.flushAll();
  const workers = Array.from({ length: PROCESSES }, (_, number) =>
    fork(process.argv[1], [process.argv[2], 'work', `${number}`, isDeaf ? 'deaf' : 'hears']));
  const message = (worker) => new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('exit', (code) => reject(new Error(`a worker ended: ${code}`)));
  });
  await Promise.all(workers.map(message));
  const found = workers.map(message);
  for (const worker of workers) worker.send('check');
  return (await Promise.all(found)).flatMap(({ stale }) => stale);
}

async function after_random_writes_of_eight_processes_nobody_serves_an_old_value() {
  assert.deepEqual(await staleReads(false), []);
}

async function a_near_cache_that_hears_no_invalidation_is_found() {
  assert.notDeepEqual(await staleReads(true), []);
}

const TESTS = [
  a_hit_costs_no_round_trip,
  an_invalidation_reaches_values_and_negative_entries,
  a_lost_connection_empties_the_map,
  the_map_is_bounded,
  many_keys_are_loaded_at_once,
  after_random_writes_of_eight_processes_nobody_serves_an_old_value,
  a_near_cache_that_hears_no_invalidation_is_found,
];

if (process.argv[3] === 'work') {
  await work(process.argv[4], process.argv[5] === 'deaf');
} else {
  for (const test of TESTS) {
    await test();
    console.log(test.name);
  }
  await Promise.all([client.close(), pool.close()]);
}
