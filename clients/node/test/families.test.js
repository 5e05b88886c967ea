'use strict';
// Inventory, limits, idempotency keys, delay queues, filters and cached values on a real server, with each library.

const assert = require('node:assert/strict');
const { after, before, beforeEach, describe, test } = require('node:test');
const {
  Conflict, ConnectionBroken, FilterError, LeaseLost, LoaderFailed, NoSuchQueue, OutcomeUnknown, ServerError, Sluice, WaitTimeout, buffer, json, text,
} = require('../lib');
const { LIBRARIES, connectAdmin, disconnect, eventually, killConnections, lossyProxy, sleep, unlessLate } = require('./support');

const BYTES = Buffer.from([0, 255, 13, 10, 128]);

for (const [library, connect] of Object.entries(LIBRARIES)) {
  describe(`families with ${library}`, () => {
    let admin;
    let client;
    let sluice;

    before(async () => {
      admin = await connectAdmin();
      client = await connect();
      sluice = new Sluice(client);
    });

    beforeEach(() => admin.send('FLUSHALL'));

    after(async () => {
      await sluice.close();
      disconnect(client);
      admin.close();
    });

    /** Calls `work` with a client behind a network that loses replies. */
    async function withLossy(work, options) {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind, options);
      await work(other, proxy);
      await other.close();
      disconnect(behind);
      proxy.close();
    }

    test('stock: sales, reservations and refusals', async () => {
      const { stock } = sluice;
      assert.deepEqual(await stock.deduct('sku', 1), { ok: false, refusal: 'UNKNOWN' });
      assert.equal(await stock.create('sku', 10, { perUser: 5, events: 'events', maxLength: 100 }), true);
      assert.equal(await stock.create('sku', 99), false);
      const sale = { order: BYTES, user: 'ann' };
      for (let call = 0; call < 2; call++) assert.deepEqual(await stock.deduct('sku', 4, sale), { ok: true, available: 6 });
      assert.deepEqual(await stock.deduct('sku', 2, { user: 'ann' }), { ok: false, refusal: 'OVER_USER_LIMIT' });
      assert.deepEqual(await stock.deduct('sku', 7, { user: 'bob' }), { ok: false, refusal: 'SOLD_OUT' });
      await assert.rejects(stock.deduct('sku', 3, sale), Conflict);
      const reservation = { order: 'r', user: 'bob', hold: 60_000 };
      assert.deepEqual(await stock.reserve('sku', 2, reservation), { ok: true, available: 4 });
      assert.equal((await stock.order('sku', 'r')).state, 'reserved');
      assert.deepEqual(await stock.confirm('sku', 'r'), { ok: true, quantity: 2 });
      assert.deepEqual(await stock.cancel('sku', 'r'), { ok: true, quantity: 2 });
      assert.deepEqual(await stock.reserve('sku', 2, reservation), { ok: false, refusal: 'CLOSED' });
      assert.deepEqual(await stock.add('sku', 3, { order: 'more' }), { ok: true, available: 9 });
      assert.equal(await stock.available('sku'), 9);
      assert.equal((await stock.info('sku')).sold, 4);
      assert.equal(Number(await admin.send('XLEN', 'events')), 6);
      await stock.create('sku', 2, { replace: true });
      assert.equal(await stock.available('sku'), 2);
    });

    test('stock: several keys', async () => {
      const { stock } = sluice;
      await Promise.all([stock.create('a', 5), stock.create('b', 1)]);
      const items = [['a', 2], ['b', 1]];
      assert.deepEqual(await stock.deductMany(items, { order: 'o' }), {
        ok: true, results: [{ ok: true, available: 3 }, { ok: true, available: 0 }],
      });
      assert.deepEqual(await stock.deductMany(items), {
        ok: false, results: [{ ok: true, available: 3 }, { ok: false, refusal: 'SOLD_OUT' }],
      });
      assert.equal((await stock.cancelMany(['a', 'b'], 'o')).ok, true);
      assert.equal((await stock.reserveMany(items, { order: 'p', hold: 60_000 })).ok, true);
      assert.deepEqual((await stock.confirmMany(['a', 'b'], 'p')).results, [{ ok: true, quantity: 2 }, { ok: true, quantity: 1 }]);
      assert.deepEqual(await stock.availableMany(['a', 'none', 'b']), [3, null, 0]);
    });

    test('an unknown option is a TypeError', async () => {
      const { bloom, cache, cuckoo, delay, limit, once, stock } = sluice;
      const unexpected = () => assert.fail('it was called');
      const near = sluice.near();
      const rate = { count: 1, period: 1000 };
      /** @type {Record<string, [option: string, call: () => unknown]>} */
      const calls = {
        'stock.create': ['peruser', () => stock.create('k', 10, { peruser: 2 })],
        'stock.add': ['user', () => stock.add('k', 1, { user: 'ann' })],
        'stock.deduct': ['id', () => stock.deduct('k', 1, { id: 'o' })],
        'stock.reserve': ['px', () => stock.reserve('k', 1, { order: 'o', hold: 1000, px: 1 })],
        'stock.deductMany': ['id', () => stock.deductMany([['k', 1]], { id: 'o' })],
        'stock.reserveMany': ['px', () => stock.reserveMany([['k', 1]], { order: 'o', hold: 1000, px: 1 })],
        'once.run': ['ttl', () => once.run('k', unexpected, { ttl: 1000 })],
        'once.begin': ['remember', () => once.begin('k', { remember: 1000 })],
        'cache.get': ['ttl', () => cache.get('k', unexpected, { ttl: 1000 })],
        'cache.getMany': ['ttl', () => cache.getMany(['k'], unexpected, { ttl: 1000 })],
        'cache.fetch': ['fresh', () => cache.fetch('k', { fresh: 1000 })],
        'cache.set': ['ttl', () => cache.set('k', 1, { ttl: 1000 })],
        'cache.delete': ['delay', () => cache.delete('k', { delay: 1000 })],
        'cache.peek': ['raw', () => cache.peek('k', { raw: true })],
        'near.get': ['ttl', () => near.get('k', unexpected, { ttl: 1000 })],
        'near.getMany': ['ttl', () => near.getMany(['k'], unexpected, { ttl: 1000 })],
        'limit.gcra': ['bursts', () => limit.gcra('k', { ...rate, bursts: 5 })],
        'limit.window': ['type', () => limit.window('k', { limit: 1, window: 1000, type: 'EXACT' })],
        'limit.tiers': ['costs', () => limit.tiers('k', [rate], { costs: 5 })],
        'limit.tiers, rates[0]': ['bursts', () => limit.tiers('k', [{ ...rate, bursts: 1 }])],
        'limit.gcraMany': ['costs', () => limit.gcraMany([['k', rate]], { costs: 5 })],
        'limit.gcraMany, rates[0]': ['bursts', () => limit.gcraMany([['k', { ...rate, bursts: 1 }]])],
        'delay.create': ['maxlen', () => delay.create('k', 's', { maxlen: 5 })],
        'delay.add': ['in', () => delay.add('k', 'id', { n: 1 }, { after: 0, in: 5 })],
        'bloom.create': ['rate', () => bloom.create('k', { capacity: 9, rate: 0.1 })],
        'cuckoo.create': ['error', () => cuckoo.create('k', { capacity: 9, error: 0.1 })],
        'sluice.guard': ['px', () => sluice.guard('k', 1, { px: 1 })],
        'sluice.near': ['max', async () => sluice.near({ max: 1 })],
        'sluice.lock': ['ttl', async () => sluice.lock('k', { ttl: 1000 })],
        'sluice.readLock': ['ttl', async () => sluice.readLock('k', { ttl: 1000 })],
        'sluice.semaphore': ['count', async () => sluice.semaphore('k', 1, { count: 2 })],
        'new Sluice': ['lease', async () => new Sluice(client, { lease: 1000 })],
        'cache.get, breaker': ['ttl', () => cache.get('k', unexpected, { breaker: { name: 'b', failures: 1, open: 1000, ttl: 1 } })],
      };
      for (const [method, [option, call]] of Object.entries(calls)) {
        const message = new RegExp(`^${method.replace(/[[\]]/g, '\\$&')}: the option \`${option}\` is unknown\\. The options are \\w+`);
        await assert.rejects(call(), { name: 'TypeError', message }, method);
      }
      await assert.rejects(stock.create('k', 10, { peruser: 2 }), { message: /are replace, perUser, retain, events and maxLength$/ });
      assert.equal(await admin.send('EXISTS', 'k'), 0);
    });

    test('a missing or wrong argument is named', async () => {
      const { bloom, cache, delay, limit, once, stock } = sluice;
      const near = sluice.near();
      /** @type {[string, string, () => unknown][]} */
      const calls = [
        ['TypeError', 'stock.create: the argument `total` is missing', () => stock.create('k')],
        ['TypeError', 'stock.create: the argument `total` must be a whole number from 0 on, not "10"', () => stock.create('k', '10')],
        ['TypeError', 'stock.create: the options must be an object, not 2', () => stock.create('k', 10, 2)],
        ['RangeError', 'stock.create: the option `perUser` must be a whole number from 1 on, not 0', () => stock.create('k', 10, { perUser: 0 })],
        ['TypeError', 'stock.reserve: the option `hold` is missing', () => stock.reserve('k', 1, { order: 'o' })],
        ['TypeError', 'stock.reserve: the option `order` is missing', () => stock.reserve('k', 1, { hold: 1000 })],
        ['TypeError', 'stock.reserve: the option `order` is missing', () => stock.reserve('k', 1)],
        ['TypeError', 'stock.reserve: the option `hold` must be a whole number of milliseconds from 1 on, not "20s"', () => stock.reserve('k', 1, { order: 'o', hold: '20s' })],
        ['RangeError', 'stock.reserve: the argument `quantity` must be a whole number from 1 on, not 1.5', () => stock.reserve('k', 1.5, { order: 'o', hold: 1000 })],
        ['TypeError', 'stock.deduct: the option `user` must be a string, bytes or a whole number, not null', () => stock.deduct('k', 1, { user: null })],
        ['TypeError', 'stock.confirm: the argument `order` is missing', () => stock.confirm('k')],
        ['TypeError', 'stock.deductMany: the argument `items` must be a list of [key, quantity], not an object', () => stock.deductMany({ k: 1 })],
        ['TypeError', 'stock.deductMany: the argument `items` must be a list of [key, quantity], not a list', () => stock.deductMany([['k', 1.5]])],
        ['TypeError', 'limit.gcra: the option `period` is missing', () => limit.gcra('k', { count: 1 })],
        ['TypeError', 'limit.gcra: the option `count` is missing', () => limit.gcra('k')],
        ['TypeError', 'limit.tiers, rates[1]: the option `period` is missing', () => limit.tiers('k', [{ count: 1, period: 1000 }, { count: 1 }])],
        ['TypeError', 'limit.window: the option `window` is missing', () => limit.window('k', { limit: 1 })],
        ['TypeError', 'limit.window: the option `kind` must be SLIDING or EXACT, not "LOG"', () => limit.window('k', { limit: 1, window: 1, kind: 'LOG' })],
        ['TypeError', 'limit.once: the argument `ttl` is missing', () => limit.once('k')],
        ['TypeError', 'once.run: the argument `work` must be a function, not an object', () => once.run('k', {})],
        ['TypeError', 'once.run: the argument `key` is missing', () => once.run(undefined, () => 1)],
        ['RangeError', 'once.run: the option `wait` must be a number of milliseconds from 0 on, not NaN', () => once.run('k', () => 1, { wait: NaN })],
        ['TypeError', 'cache.get: the argument `loader` is missing', () => cache.get('k')],
        ['TypeError', 'cache.get: the argument `key` must be a string, bytes or a whole number, not an object', () => cache.get({}, () => 1)],
        ['TypeError', 'cache.get: the option `codec` must be a codec, not "json"', () => cache.get('k', () => 1, { codec: 'json' })],
        ['TypeError', 'near.get: the argument `loader` is missing', () => near.get('k')],
        ['TypeError', 'delay.add: the option `after` is missing', () => delay.add('q', 'id', { n: 1 })],
        ['TypeError', 'bloom.create: the option `capacity` is missing', () => bloom.create('k')],
        ['TypeError', 'sluice.lock: the option `wait` must be a number of milliseconds from 0 on, not "long"', async () => sluice.lock('k', { wait: 'long' })],
        ['TypeError', 'sluice.semaphore: the argument `limit` is missing', async () => sluice.semaphore('k')],
        ['TypeError', 'STOCK.ADD: argument 2 must be a string, bytes or a number, not undefined', async () => sluice.send('STOCK.ADD', 'k', undefined)],
      ];
      for (const [name, message, call] of calls) await assert.rejects(call(), { name, message }, message);
      assert.equal(await admin.send('EXISTS', 'k'), 0);
    });

    test('keys and ids are also whole numbers', async () => {
      const { cache, once, stock } = sluice;
      assert.equal(await cache.get(17, (key) => key + 1), 18);
      assert.equal(await cache.get('17', () => assert.fail('it is cached')), 18);
      assert.deepEqual(await cache.getMany([17], () => assert.fail()), new Map([[17, 18]]));
      await stock.create(18, 5, { perUser: 2 });
      assert.deepEqual(await stock.reserve(18, 2, { order: 7, user: 8, hold: 60_000 }), { ok: true, available: 3 });
      assert.equal((await stock.order('18', '7')).user, '8');
      assert.equal(await once.run(19, () => 'done'), 'done');
      assert.equal(await sluice.near().get(17, () => assert.fail('it is cached')), 18);
      assert.equal(await sluice.lock(20).run(async (hold) => hold.keys.length), 1);
    });

    test('a sale whose reply is lost sells once', () => withLossy(async (other, proxy) => {
      await sluice.stock.create('sku', 10);
      proxy.lose('STOCK.DEDUCT');
      assert.deepEqual(await other.stock.deduct('sku', 1, { order: 'o' }), { ok: true, available: 9 });
      assert(proxy.isDone());
      assert.equal(await sluice.stock.available('sku'), 9);
    }));

    test('limits', async () => {
      const { limit } = sluice;
      const rate = { burst: 1, count: 1, period: 60_000 };
      const first = await limit.gcra('user', rate);
      assert.deepEqual([first.allowed, first.limit, first.remaining, first.retryMs], [true, 2, 1, 0]);
      assert.equal((await limit.gcra('user', { ...rate, peek: true })).remaining, 1);
      await limit.gcra('user', rate);
      const refused = await limit.gcra('user', rate);
      assert(!refused.allowed && refused.retryMs > 0 && refused.retryMs <= 60_000);
      assert.equal((await limit.gcra('user', { ...rate, cost: 9 })).retryMs, null);
      const ahead = await limit.gcra('user', { ...rate, ahead: 120_000 });
      assert(ahead.allowed && ahead.retryMs > 0);
      assert.equal(await limit.refund('user', 2), true);
      assert.equal(await limit.charge('none', 1), false);
      for (const kind of [undefined, 'SLIDING', 'EXACT']) {
        const calls = [0, 1, 2].map(() => limit.window(`window:${kind}`, { limit: 2, window: 600_000, kind }));
        // The connections of a pool keep no order.
        const refusals = (await Promise.all(calls)).filter(({ allowed }) => !allowed);
        assert.equal(refusals.length, 1, kind);
      }
      const tiers = [rate, { count: 5, period: 600_000 }];
      assert.equal((await limit.tiers('tiers', tiers)).allowed, true);
      assert.equal((await limit.tiers('tiers', tiers)).index, 1);
      const many = [['{u}:user', rate], ['{u}:all', { ...rate, burst: 0 }]];
      await limit.gcraMany(many);
      assert.deepEqual([(await limit.gcraMany(many)).allowed, (await limit.gcraMany(many)).index], [false, 1]);
      assert.deepEqual([await limit.once('once', 60_000), await limit.once('once', 60_000)], [true, false]);
    });

    test('once: work whose outcome is unknown is not begun again', async () => {
      const { once } = sluice;
      const controller = new AbortController();
      controller.abort();
      const unknown = [
        ['OutcomeUnknown', () => { throw new OutcomeUnknown('no answer'); }],
        ['TimeoutError', () => new Promise((_, reject) => {
          AbortSignal.timeout(1).addEventListener('abort', ({ target }) => reject(target.reason));
        })],
        ['AbortError', () => fetch('http://localhost:1', { signal: controller.signal })],
      ];
      for (const [name, work] of unknown) {
        await assert.rejects(once.run(name, work, { lease: 600_000 }), { name });
        await assert.rejects(once.run(name, () => assert.fail('it can have been done'), { lease: 600_000, wait: 0 }), WaitTimeout);
      }
      await assert.rejects(once.run('free', () => { throw new ConnectionBroken('of another server'); }), ConnectionBroken);
      assert.equal(await once.info('free'), null);
    });

    test('once: work is done once, and all get its result', async () => {
      let works = 0;
      const work = async (token) => {
        works += 1;
        await eventually(async () => await admin.info('sluice_once_waiting') > 0);
        return { token };
      };
      const results = await Promise.all(Array.from({ length: 20 }, () => sluice.once.run('pay', work, { fingerprint: 'f' })));
      assert.equal(works, 1);
      for (const result of results) assert.deepEqual(result, results[0]);
      await assert.rejects(sluice.once.run('pay', work, { fingerprint: 'g' }), Conflict);
      await assert.rejects(sluice.once.run('fails', async () => { throw new RangeError('no'); }), RangeError);
      assert.equal(await sluice.once.run('fails', async () => undefined), null); // the next caller did it
      assert.deepEqual(await sluice.once.run('bytes', () => BYTES, { codec: buffer }), BYTES);
      assert.deepEqual(await sluice.once.run('bytes', () => assert.fail(), { codec: buffer }), BYTES);
      for (const [key, codec, value, reason] of [
        ['bigint', json, { id: 1n }, 'The codec `json` cannot store this value: Do not know how to serialize a BigInt'],
        ['symbol', json, Symbol('s'), 'The codec `json` stores no symbol'],
        ['number', text, 7, 'The codec `text` stores strings only'],
      ]) {
        const message = `once.run: the work on ${key} is done, but its result cannot be stored. The key is busy until its lease ends: ${reason}`;
        await assert.rejects(sluice.once.run(key, async () => value, { codec }), { name: 'TypeError', message });
        assert.equal((await sluice.once.info(key)).state, 'busy');
      }
      await assert.rejects(sluice.cache.set('bigint in cache', [1n]), { name: 'TypeError', message: 'The codec `json` cannot store this value: Do not know how to serialize a BigInt' });
      await assert.rejects(sluice.once.run('lost', () => admin.send('DEL', 'lost')), LeaseLost);
      const { state, token } = await sluice.once.begin('by hand');
      assert.equal(state, 'NEW');
      await assert.rejects(sluice.once.run('by hand', work, { wait: 20 }), WaitTimeout);
      assert.equal((await sluice.once.info('by hand')).state, 'busy');
      assert.equal(await sluice.once.done('by hand', token, BYTES), true);
      assert.deepEqual(await sluice.once.begin('by hand'), { state: 'DONE', result: BYTES });
      assert.equal(await sluice.once.fail('by hand', token), false);
    });

    test('delay queues', async () => {
      const { delay } = sluice;
      await assert.rejects(delay.add('none', 'id', { a: 1 }, { after: 1000 }), NoSuchQueue);
      await delay.create('queue', 'stream', { maxLength: 1000 });
      assert.equal(await delay.add('queue', 'soon', { order: BYTES, n: 7 }, { after: 60_000 }), true);
      assert.equal(await delay.add('queue', 'soon', { order: BYTES, n: 8 }, { after: 60_000 }), false);
      assert.equal(await delay.add('queue', 'soon', { n: 9 }, { after: 0, only: 'NX' }), null);
      assert.equal(await delay.add('queue', BYTES, { n: 9 }, { at: new Date(Date.now() + 3_600_000) }), true);
      assert.deepEqual((await delay.get('queue', 'soon')).values, { order: BYTES, n: '8' });
      assert.deepEqual((await delay.range('queue', 9)).map(({ id }) => id), ['soon', BYTES]);
      assert.equal(await delay.cancel('queue', BYTES, 'none'), 1);
      assert.equal((await delay.info('queue')).messages, 1);
      await delay.add('queue', 'soon', { n: 10 }, { after: 0, only: 'XX' });
      await eventually(async () => await admin.send('XLEN', 'stream') === 1);
      assert.equal(await delay.get('queue', 'soon'), null);
    });

    test('filters', async () => {
      const { bloom, cuckoo } = sluice;
      await bloom.create('bloom', { capacity: 1000, error: 0.001 });
      await assert.rejects(bloom.create('bloom', { capacity: 1 }), FilterError);
      await assert.rejects(bloom.create('bad', { capacity: 0 }), FilterError);
      await assert.rejects(bloom.create('bad', { capacity: 1, error: 2 }), FilterError);
      await assert.rejects(bloom.merge('bloom', ['none']), FilterError);
      await assert.rejects(bloom.info('none'), FilterError);
      await bloom.create('full', { capacity: 1, expansion: 0 });
      await assert.rejects(bloom.addMany('full', Array.from({ length: 500 }, (_, item) => `${item}`)), FilterError);
      assert.deepEqual([await bloom.add('bloom', BYTES), await bloom.add('bloom', BYTES)], [true, false]);
      assert.deepEqual(await bloom.addMany('bloom', ['a', 'b', BYTES]), [true, true, false]);
      assert.deepEqual(await bloom.existsMany('bloom', ['a', 'none']), [true, false]);
      assert.deepEqual([await bloom.exists('bloom', BYTES), await bloom.exists('bloom', 'none')], [true, false]);
      await bloom.create('like', { like: 'bloom' });
      await bloom.merge('like', ['bloom']);
      assert.deepEqual([await bloom.count('like'), (await bloom.info('bloom')).Capacity], [3, 1000]);
      await cuckoo.create('cuckoo', { capacity: 1000, bits: 32 });
      await assert.rejects(cuckoo.create('cuckoo', { capacity: 1000 }), FilterError);
      await assert.rejects(cuckoo.delete('none', 'a'), FilterError);
      assert.deepEqual([await cuckoo.add('cuckoo', 'a'), await cuckoo.addNew('cuckoo', 'a')], [true, false]);
      await cuckoo.add('cuckoo', 'a');
      assert.equal(await cuckoo.count('cuckoo', 'a'), 2);
      assert.deepEqual([await cuckoo.delete('cuckoo', 'a'), await cuckoo.delete('cuckoo', 'none')], [true, false]);
      assert.deepEqual(await cuckoo.existsMany('cuckoo', ['a', 'none']), [true, false]);
      assert.equal((await cuckoo.info('cuckoo'))['Number of items deleted'], 1);
    });

    test('cache: one caller loads, in all processes', async () => {
      const loads = [];
      const load = async (key) => {
        loads.push(key);
        await eventually(async () => await admin.info('sluice_cache_waiters_now') > 0);
        return { name: 'Ann' };
      };
      const other = new Sluice(client); // as another process
      const gets = [sluice, other].flatMap(({ cache }) => Array.from({ length: 50 }, () => cache.get('user:1', load)));
      for (const value of await Promise.all(gets)) assert.deepEqual(value, { name: 'Ann' });
      assert.deepEqual(loads, ['user:1']);
      await other.close();
    });

    test('cache: no value, failures and breakers', async () => {
      const { cache } = sluice;
      const unexpected = () => assert.fail('it was asked');
      for (const [key, none] of [['null', null], ['undefined', undefined]]) {
        assert.equal(await cache.get(key, () => none), null);
        assert.equal(await cache.get(key, unexpected), null);
      }
      const breaker = { name: `db ${library}`, failures: 1, open: 60_000 };
      await assert.rejects(cache.get('fails', () => { throw new RangeError('no'); }, { breaker, backoff: 600_000 }), RangeError);
      await assert.rejects(cache.get('fails', unexpected), LoaderFailed);
      await assert.rejects(cache.get('other', unexpected, { breaker }), (error) => error.retryMs > 0);
      assert.equal((await cache.breaker(breaker.name)).state, 'open');
      assert.equal(await cache.resetBreaker(breaker.name), true);
      await sluice.bloom.add('names', 'ann');
      assert.equal(await cache.get('user:bob', unexpected, { guard: { filter: 'names', item: 'bob' } }), null);
      await admin.send('CACHE.FETCH', 'busy', 'LEASE', '600000');
      await assert.rejects(cache.get('busy', unexpected, { wait: 20 }), WaitTimeout);
    });

    test('cache: a value that is not stored is returned', async () => {
      const { cache } = sluice;
      const value = 'v'.repeat(2000);
      const options = { lease: 600_000, early: 600_000 };
      for (const [option, refusal] of [['sluice.cache-max-bytes', 1000], ['maxmemory', 1], ['min-replicas-to-write', 1]]) {
        await cache.set('old', 'old');
        await admin.send('CONFIG', 'SET', option, refusal);
        try {
          for (const key of ['new', 'old']) assert.equal(await cache.get(key, () => value, options), value);
          const values = await cache.getMany(['a', 'b'], (keys) => new Map(keys.map((key) => [key, value])), options);
          assert.deepEqual(values, new Map([['a', value], ['b', value]]));
          assert.deepEqual([await cache.peek('new'), await cache.peek('old')], [null, 'old']);
          assert.equal(await admin.info('sluice_cache_leases_now'), 0);
        } finally {
          await admin.send('CONFIG', 'SET', option, 0);
        }
      }
    });

    test('cache: a change ends the share in older loads', async () => {
      const { cache } = sluice;
      for (const change of [() => cache.delete('k'), () => cache.set('k', 'new')]) {
        await cache.delete('k');
        let finish;
        const older = cache.get('k', () => new Promise((resolve) => { finish = () => resolve('old'); }));
        await eventually(() => finish);
        await change();
        assert.equal(await cache.get('k', () => 'new'), 'new');
        finish();
        assert.equal(await older, 'old');
        assert.equal(await cache.get('k', () => assert.fail()), 'new');
      }
    });

    test('cache: codecs keep values, and bytes are unharmed', async () => {
      const { cache } = sluice;
      for (const [codec, value, wrong] of [[json, { a: [1, null] }, BYTES], [text, 'Änn', 7], [buffer, BYTES, 7]]) {
        const key = Buffer.from([255, value.length ?? 0]);
        assert.deepEqual(await cache.get(key, () => value, { codec }), value);
        assert.deepEqual(await cache.get(key, () => assert.fail(), { codec }), value);
        assert.deepEqual(await cache.peek(key, { codec }), value);
        await assert.rejects(cache.set('wrong', wrong, { codec }), TypeError);
        await assert.rejects(cache.get('wrong', () => wrong, { codec, backoff: 0 }), TypeError);
      }
      await admin.send('CACHE.SET', 'raw', 'no JSON', 'PX', '10000');
      await assert.rejects(cache.get('raw', () => 1), SyntaxError);
    });

    test('cache: writes end loads, versions and stale values', async () => {
      const { cache } = sluice;
      assert.equal(await cache.get('k', async () => {
        await cache.delete('k', { grace: 100 });
        return 'old';
      }), 'old');
      assert.equal(await cache.peek('k'), null); // it was not stored
      assert.equal(await cache.set('v', 'new', { version: 2 }), true);
      assert.equal(await cache.set('v', 'old', { version: 1 }), false);
      assert.deepEqual([await cache.get('v', () => assert.fail()), (await cache.info('v')).ver], ['new', 2]);
      await cache.set('s', 'old', { fresh: 60_000 });
      await cache.delete('s', { stale: 60_000 });
      const reload = cache.get('s', async () => {
        const other = new Sluice(client);
        assert.equal(await other.cache.get('s', () => assert.fail()), 'old');
        return 'new';
      });
      assert.equal(await reload, 'new');
      await cache.set('none', null);
      assert.equal(await cache.get('none', () => assert.fail()), null);
    });

    test('cache: many keys', async () => {
      const { cache } = sluice;
      await cache.set('a', 1);
      const loads = [];
      const load = (keys) => {
        loads.push(keys);
        return new Map(keys.map((key) => [key, key === 'none' ? null : key]));
      };
      const keys = ['a', 'b', 'none', 'b'];
      for (let call = 0; call < 2; call++) {
        assert.deepEqual(await cache.getMany(keys, load), new Map([['a', 1], ['b', 'b'], ['none', null]]));
      }
      assert.deepEqual(loads, [['b', 'none']]);
    });

    test('cache: an error of one key gives the other leases back', async () => {
      await admin.send('LOCK.ACQUIRE', 'lock', 'me');
      const near = sluice.near();
      for (const cache of [sluice.cache, near]) {
        await assert.rejects(cache.getMany(['a', 'lock', 'b'], () => assert.fail(), { lease: 600_000 }), /WRONGTYPE/);
        assert.equal(await admin.info('sluice_cache_leases_now'), 0);
      }
      near.close();
    });

    test('cache: a value that cannot be decoded gives the other leases back', async () => {
      await admin.send('CACHE.SET', 'raw', 'no JSON', 'PX', 600_000);
      const near = sluice.near();
      for (const cache of [sluice.cache, near]) {
        await assert.rejects(cache.getMany(['a', 'raw', 'b'], () => assert.fail(), { lease: 600_000 }), SyntaxError);
        assert.equal(await admin.info('sluice_cache_leases_now'), 0);
      }
      near.close();
    });

    test('near cache: a lease that is granted after the timeout is given back', () => withLossy(async (other, proxy) => {
      const near = other.near();
      await other.cache.peek('k'); // the client is connected
      let deliver;
      proxy.lose('TRACKING');
      proxy.delay('CACHE.FETCH', () => new Promise((resolve) => { deliver = resolve; }));
      await assert.rejects(near.get('k', () => assert.fail(), { lease: 600_000 }), ConnectionBroken);
      await eventually(() => deliver);
      assert.equal(await admin.info('sluice_cache_leases_now'), 1);
      deliver();
      await eventually(async () => await admin.info('sluice_cache_leases_now') === 0);
      near.close();
    }, { timeout: 300 }));

    test('near cache: hits cost no round trip, and changes arrive', async () => {
      const near = sluice.near({ size: 2, check: 600_000 });
      const none = () => assert.fail('it is cached');
      await near.get('k', () => 'v');
      await near.get('n', () => null, { negative: 600_000 });
      await eventually(async () => await near.get('k', none) === 'v' && await near.get('n', none) === null && near.size === 2);
      const { hits } = near;
      const before = await admin.info('total_commands_processed');
      for (let call = 0; call < 500; call++) {
        assert.equal(await near.get('k', none), 'v');
        assert.equal(await near.get('n', none), null);
      }
      assert.equal(near.hits - hits, 1000);
      assert(await admin.info('total_commands_processed') - before < 20);
      for (const [change, expected] of [
        [() => sluice.cache.set('k', 'new'), 'new'],
        [() => admin.send('DEL', 'k'), 'loaded'],
        [() => admin.send('FLUSHALL'), 'loaded'],
      ]) {
        await eventually(async () => { await near.get('k', () => 'loaded'); return near.size > 0; });
        await change();
        await eventually(async () => await near.get('k', () => 'loaded') === expected);
      }
      await near.getMany(['1', '2', '3'], (keys) => new Map(keys.map((key) => [key, key])));
      assert(near.size <= 2);
      const key = Buffer.from([255]);
      await eventually(async () => { await near.get(key, () => 1); return await near.get(key, () => 1) === 1 && near.hits > hits + 1000; });
      near.close();
    });

    test('near cache: a broken or silent connection empties it', async () => {
      await withLossy(async (other, proxy) => {
        const near = other.near({ check: 100 });
        const fill = () => eventually(async () => { await near.get('k', () => 'v').catch(unlessLate); return near.size === 1; });
        await fill();
        await killConnections(admin, sluice, client);
        await eventually(() => near.size === 0);
        await fill(); // it has connected again
        proxy.fallSilent();
        await sluice.cache.set('k', 'new');
        await sleep(150);
        await assert.rejects(near.get('k', () => 'v'), ConnectionBroken);
        assert.equal(near.size, 0);
        await assert.rejects(near.get('k', () => 'v'), ConnectionBroken); // and without an entry
        near.close();
      }, { timeout: 300 });
    });

    test('near cache: a silent connection for invalidations is found while reads continue', () => withLossy(async (other, proxy) => {
      const near = other.near({ check: 100 });
      await sluice.cache.set('k', 'v'); // no message about it is under way
      await eventually(async () => { await near.get('k', () => assert.fail()).catch(unlessLate); return near.size === 1; });
      proxy.fallSilent(library.startsWith('node-redis') ? 'tracking' : 'subscribe');
      await sluice.cache.set('k', 'new');
      let read = 0;
      await eventually(async () => {
        await near.get(`other ${read++}`, () => 'v', { lease: 100 }).catch(unlessLate); // one lease is lost
        return await near.get('k', () => 'v').catch(unlessLate) === 'new';
      });
      near.close();
    }, { timeout: 300 }));

    test('what is not safe to repeat is not repeated, except by ioredis', async () => {
      if (!library.startsWith('node-redis')) return;
      await withLossy(async (other, proxy) => {
        proxy.lose('RATE.ONCE');
        await assert.rejects(other.limit.once('once', 60_000), ConnectionBroken);
        assert.equal(await sluice.limit.once('once', 60_000), false);
      });
    });

    test('a silent server ends no wait too late, and an error keeps its connection', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind, { timeout: 1000 });
      await sluice.once.begin('k', { fingerprint: 'f' });
      await other.once.info('k');
      const connected = await admin.info('connected_clients');
      for (let call = 0; call < 3; call++) {
        await assert.rejects(other.once.begin('k', { fingerprint: 'g', block: 50 }), Conflict);
      }
      assert.equal(await admin.info('connected_clients'), connected + 1);
      const wait = other.once.begin('k', { block: 60 });
      proxy.fallSilent();
      await assert.rejects(wait, ConnectionBroken);
      proxy.close();
      await other.close();
      disconnect(behind);
    });

    test('any command can be sent', async () => {
      await sluice.stock.create('sku', 5);
      assert.equal(await sluice.send('stock.get', 'sku'), 5);
      assert.equal(String(await sluice.send('GET', 'none')), 'null');
      await assert.rejects(sluice.send('STOCK.GET'), ServerError);
      assert.throws(() => new Sluice({}), TypeError);
    });
  });
}
