'use strict';
// What the package repeats after a lost reply, while another client acts between the request and its repetition.

const assert = require('node:assert/strict');
const { after, before, beforeEach, describe, test } = require('node:test');
const { ConnectionBroken, Sluice, text } = require('../lib');
const { COMMANDS } = require('../lib/commands');
const { PLAIN, connectAdmin, disconnect, eventually, lossyProxy } = require('./support');

const HOUR = '3600000';
const rate = { burst: 9, count: 1, period: 86_400_000 };

/**
 * Requests that a repetition could carry out twice, or whose repetition could undo what another client did: `act` acts between
 * the lost reply and the repetition. `kept` says whether its effect is left.
 *
 * @type {[command: string, { arrange?: string[], ask: (sluice: any) => unknown, act?: string[], until?: string[], kept: [string[], unknown] }][]}
 */
const ONCE = [
  ['STOCK.SET', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.create('sku', 10, { replace: true }),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    kept: [['STOCK.GET sku'], 9],
  }],
  ['STOCK.SET', { ask: ({ stock }) => stock.create('sku', 10), act: ['DEL sku'], kept: [['EXISTS sku'], 0] }],
  ['STOCK.ADD', { arrange: ['STOCK.SET sku 9'], ask: ({ stock }) => stock.add('sku', 1), kept: [['STOCK.GET sku'], 10] }],
  ['STOCK.DEDUCT', { arrange: ['STOCK.SET sku 9'], ask: ({ stock }) => stock.deduct('sku', 1), kept: [['STOCK.GET sku'], 8] }],
  ['STOCK.MDEDUCT', { arrange: ['STOCK.SET sku 9'], ask: ({ stock }) => stock.deductMany([['sku', 1]]), kept: [['STOCK.GET sku'], 8] }],
  ['STOCK.IMPORT', { arrange: ['SET sku 9'], ask: (sluice) => sluice.send('STOCK.IMPORT', 'sku'), act: ['SET sku 5'], kept: [['GET sku'], '5'] }],
  ['CACHE.SET', { ask: ({ cache }) => cache.set('k', 'old'), act: ['CACHE.DEL k'], kept: [['CACHE.GET k'], null] }],
  ['CACHE.SET', { ask: ({ cache }) => cache.set('k', 'old', { version: 1 }), act: ['CACHE.DEL k VER 2'], kept: [['CACHE.GET k'], null] }],
  ['CACHE.SETNULL', { ask: ({ cache }) => cache.set('k', null), act: ['CACHE.SET k new PX 60000'], kept: [['CACHE.GET k'], 'new'] }],
  ['CACHE.BREAKER', {
    arrange: ['CACHE.FETCH k LEASE 1 BREAKER db 1 60000'],
    ask: ({ cache }) => cache.resetBreaker('db'),
    act: ['CACHE.DEL k', 'CACHE.FETCH k LEASE 1 BREAKER db 1 60000'],
    until: ['CACHE.BREAKER db', (reply) => reply.includes('open')],
    kept: [['CACHE.BREAKER db'], (reply) => reply.includes('open')],
  }],
  ['DELAY.SET', {
    ask: ({ delay }) => delay.create('q', 'old'),
    act: ['DELAY.SET q STREAM new'],
    kept: [['DELAY.INFO q'], (reply) => reply.includes('new')],
  }],
  ['DELAY.ADD', {
    arrange: ['DELAY.SET q STREAM st'],
    ask: ({ delay }) => delay.add('q', 'id', { n: 1 }, { after: 0 }),
    until: ['XLEN st', (reply) => reply === 1],
    kept: [['XLEN st'], 1],
  }],
  ['DELAY.ADD', {
    arrange: ['DELAY.SET q STREAM st'],
    ask: ({ delay }) => delay.add('q', 'id', { n: 1 }, { at: new Date(0) }),
    until: ['XLEN st', (reply) => reply === 1],
    kept: [['XLEN st'], 1],
  }],
  ['DELAY.ADD', {
    arrange: ['DELAY.SET q STREAM st'],
    ask: ({ delay }) => delay.add('q', 'id', { n: 1 }, { after: 3_600_000 }),
    act: ['DELAY.CANCEL q id'],
    kept: [['DELAY.RANGE q 1'], []],
  }],
  ['DELAY.CANCEL', {
    arrange: ['DELAY.SET q STREAM st', `DELAY.ADD q id PX ${HOUR} VALUES n 1`],
    ask: ({ delay }) => delay.cancel('q', 'id'),
    act: [`DELAY.ADD q id PX ${HOUR} VALUES n 2`],
    kept: [['DELAY.RANGE q 1'], (reply) => reply.length === 1],
  }],
  ['BF.RESERVE', { ask: ({ bloom }) => bloom.create('f', { capacity: 9 }), act: ['DEL f'], kept: [['EXISTS f'], 0] }],
  ['BF.MERGE', {
    arrange: ['BF.RESERVE f 0.01 9', 'BF.RESERVE g LIKE f', 'BF.ADD f x'],
    ask: ({ bloom }) => bloom.merge('g', ['f']),
    kept: [['BF.CARD g'], 1],
  }],
  ['CF.RESERVE', { ask: ({ cuckoo }) => cuckoo.create('f', { capacity: 9 }), act: ['DEL f'], kept: [['EXISTS f'], 0] }],
  ['CF.ADD', { ask: ({ cuckoo }) => cuckoo.add('f', 'x'), kept: [['CF.COUNT f x'], 1] }],
  ['CF.ADDNX', { ask: ({ cuckoo }) => cuckoo.addNew('f', 'x'), act: ['CF.DEL f x'], kept: [['CF.EXISTS f x'], 0] }],
  ['CF.DEL', { arrange: ['CF.ADD f x', 'CF.ADD f x'], ask: ({ cuckoo }) => cuckoo.delete('f', 'x'), kept: [['CF.COUNT f x'], 1] }],
  ['RATE.GCRA', { ask: ({ limit }) => limit.gcra('k', rate), kept: [['RATE.GCRA k 9 1 86400000 PEEK'], (reply) => reply[2] === 9] }],
  ['RATE.TIERS', { ask: ({ limit }) => limit.tiers('k', [rate]), kept: [['RATE.TIERS k 1 9 1 86400000 PEEK'], (reply) => reply[2] === 9] }],
  ['RATE.MGCRA', { ask: ({ limit }) => limit.gcraMany([['k', rate]]), kept: [['RATE.GCRA k 9 1 86400000 PEEK'], (reply) => reply[2] === 9] }],
  ['RATE.WINDOW', {
    ask: ({ limit }) => limit.window('k', { limit: 9, window: 86_400_000 }),
    kept: [['RATE.WINDOW k 9 86400000 PEEK'], (reply) => reply[2] === 8],
  }],
  ['RATE.CHARGE', {
    arrange: ['RATE.GCRA k 9 1 86400000'],
    ask: ({ limit }) => limit.charge('k', 1),
    kept: [['RATE.GCRA k 9 1 86400000 PEEK'], (reply) => reply[2] === 8],
  }],
  ['RATE.REFUND', {
    arrange: ['RATE.GCRA k 9 1 86400000 COST 5'],
    ask: ({ limit }) => limit.refund('k', 1),
    kept: [['RATE.GCRA k 9 1 86400000 PEEK'], (reply) => reply[2] === 6],
  }],
  ['RATE.ONCE', { ask: ({ limit }) => limit.once('k', 60_000), act: ['DEL k'], kept: [['EXISTS k'], 0] }],
];

/**
 * Requests that are repeated: whatever `act` did meanwhile is left, and the reply is that of the repetition.
 *
 * @type {[command: string, { arrange?: string[], ask: (sluice: any) => unknown, act?: string[], reply: unknown, kept: [string[], unknown] }][]}
 */
const AGAIN = [
  ['STOCK.ADD', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.add('sku', 1, { order: 'a' }),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    reply: { ok: true, available: 10 },
    kept: [['STOCK.GET sku'], 9],
  }],
  ['STOCK.DEDUCT', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.deduct('sku', 1, { order: 'a' }),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    reply: { ok: true, available: 8 },
    kept: [['STOCK.GET sku'], 7],
  }],
  ['STOCK.DEDUCT', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.deduct('sku', 1, { order: 'a' }),
    act: ['STOCK.CANCEL sku a'],
    reply: { ok: false, refusal: 'CLOSED' },
    kept: [['STOCK.GET sku'], 9],
  }],
  ['STOCK.MDEDUCT', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.deductMany([['sku', 1]], { order: 'a' }),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    reply: { ok: true, results: [{ ok: true, available: 8 }] },
    kept: [['STOCK.GET sku'], 7],
  }],
  ['STOCK.RESERVE', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.reserve('sku', 1, { order: 'a', hold: 3_600_000 }),
    act: ['STOCK.CANCEL sku a'],
    reply: { ok: false, refusal: 'CLOSED' },
    kept: [['STOCK.GET sku'], 9],
  }],
  ['STOCK.MRESERVE', {
    arrange: ['STOCK.SET sku 9'],
    ask: ({ stock }) => stock.reserveMany([['sku', 1]], { order: 'a', hold: 3_600_000 }),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    reply: { ok: true, results: [{ ok: true, available: 8 }] },
    kept: [['STOCK.GET sku'], 7],
  }],
  ['STOCK.CONFIRM', {
    arrange: ['STOCK.SET sku 9', `STOCK.RESERVE sku 1 ORDER a PX ${HOUR}`],
    ask: ({ stock }) => stock.confirm('sku', 'a'),
    act: ['STOCK.CANCEL sku a'],
    reply: { ok: false, refusal: 'CLOSED' },
    kept: [['STOCK.GET sku'], 9],
  }],
  ['STOCK.MCONFIRM', {
    arrange: ['STOCK.SET sku 9', `STOCK.RESERVE sku 1 ORDER a PX ${HOUR}`],
    ask: ({ stock }) => stock.confirmMany(['sku'], 'a'),
    reply: { ok: true, results: [{ ok: true, quantity: 1 }] },
    kept: [['STOCK.GET sku'], 8],
  }],
  ['STOCK.CANCEL', {
    arrange: ['STOCK.SET sku 9', 'STOCK.DEDUCT sku 1 ORDER a'],
    ask: ({ stock }) => stock.cancel('sku', 'a'),
    act: ['STOCK.DEDUCT sku 1 ORDER o'],
    reply: { ok: true, quantity: 1 },
    kept: [['STOCK.GET sku'], 8],
  }],
  ['STOCK.MCANCEL', {
    arrange: ['STOCK.SET sku 9', 'STOCK.DEDUCT sku 1 ORDER a'],
    ask: ({ stock }) => stock.cancelMany(['sku'], 'a'),
    reply: { ok: true, results: [{ ok: true, quantity: 1 }] },
    kept: [['STOCK.GET sku'], 9],
  }],
  // The value is loaded, but another client has removed the entry since.
  ['CACHE.SET', {
    ask: ({ cache }) => cache.get('k', () => 'old'),
    act: ['CACHE.DEL k'],
    reply: 'old',
    kept: [['CACHE.GET k'], null],
  }],
  ['CACHE.SETNULL', { ask: ({ cache }) => cache.get('k', () => null), act: ['CACHE.SET k new PX 60000'], reply: null, kept: [['CACHE.GET k'], 'new'] }],
  // A repetition removes what was stored meanwhile: the next reader loads it again.
  ['CACHE.DEL', { ask: ({ cache }) => cache.delete('k'), act: ['CACHE.SET k new PX 60000'], reply: true, kept: [['CACHE.GET k'], null] }],
  ['CACHE.FAIL', {
    ask: (sluice) => sluice.cache.fetch('k').then(([, , token]) => sluice.send('CACHE.FAIL', 'k', token)),
    act: ['CACHE.SET k new PX 60000'],
    reply: false,
    kept: [['CACHE.GET k'], 'new'],
  }],
  ['CACHE.FETCH', { ask: ({ cache }) => cache.fetch('k'), act: ['CACHE.SET k new PX 60000'], reply: ([state]) => state === 'HIT', kept: [['CACHE.GET k'], 'new'] }],
  ['ONCE.BEGIN', { ask: ({ once }) => once.begin('k'), reply: ({ state }) => state === 'BUSY', kept: [['EXISTS k'], 1] }],
  ['ONCE.DONE', { ask: ({ once }) => once.run('k', () => 'mine'), reply: 'mine', kept: [['EXISTS k'], 1] }],
  ['ONCE.FAIL', {
    ask: (sluice) => sluice.once.begin('k').then(({ token }) => sluice.once.fail('k', token)),
    act: ['ONCE.BEGIN k LEASE 60000'],
    reply: false,
    kept: [['EXISTS k'], 1],
  }],
  ['BF.ADD', { ask: ({ bloom }) => bloom.add('f', 'x'), act: ['BF.ADD f y'], reply: false, kept: [['BF.CARD f'], 2] }],
  ['BF.MADD', { ask: ({ bloom }) => bloom.addMany('f', ['x']), act: ['BF.ADD f y'], reply: [false], kept: [['BF.CARD f'], 2] }],
  ['LOCK.GUARD', { ask: (sluice) => sluice.guard('k', 5), act: ['LOCK.GUARD k 6'], reply: false, kept: [['GET k'], '6'] }],
  ['LOCK.RENEW', {
    arrange: ['LOCK.ACQUIRE k a PX 60000'],
    ask: (sluice) => sluice.send('LOCK.RENEW', 'k', 'a', 'PX', HOUR),
    act: ['LOCK.RELEASE k a', 'LOCK.ACQUIRE k b'],
    reply: null,
    kept: [['LOCK.HELD k b'], (fence) => fence > 0],
  }],
  ['SEM.RENEW', {
    arrange: ['SEM.ACQUIRE k a LIMIT 1 PX 60000'],
    ask: (sluice) => sluice.send('SEM.RENEW', 'k', 'a', 'PX', HOUR),
    act: ['SEM.RELEASE k a', 'SEM.ACQUIRE k b LIMIT 1'],
    reply: null,
    kept: [['SEM.RENEW k b'], (fence) => fence > 0],
  }],
  ['LOCK.UPGRADE', {
    arrange: ['LOCK.ACQUIRE k a SHARED'],
    ask: (sluice) => sluice.send('LOCK.UPGRADE', 'k', 'a'),
    act: ['LOCK.RELEASE k a', 'LOCK.ACQUIRE k b SHARED'],
    reply: null,
    kept: [['LOCK.HELD k b'], (fence) => fence > 0],
  }],
  ['LOCK.DOWNGRADE', {
    arrange: ['LOCK.ACQUIRE k a'],
    ask: (sluice) => sluice.send('LOCK.DOWNGRADE', 'k', 'a'),
    act: ['LOCK.ACQUIRE k b SHARED'],
    reply: (fence) => fence > 0,
    kept: [['LOCK.HELD k b'], (fence) => fence > 0],
  }],
];

/** They change nothing. */
const READS = [
  'LOCK.HELD', 'LOCK.INFO', 'SEM.INFO', 'STOCK.GET', 'STOCK.MGET', 'STOCK.ORDER', 'STOCK.INFO', 'CACHE.GET', 'CACHE.INFO', 'ONCE.INFO',
  'DELAY.GET', 'DELAY.RANGE', 'DELAY.INFO', 'BF.EXISTS', 'BF.MEXISTS', 'BF.CARD', 'BF.INFO', 'CF.EXISTS', 'CF.MEXISTS', 'CF.COUNT', 'CF.INFO',
];

/** The tests of locks lose their replies. Their ids are of one request: no other client has them. */
const BY_ID = [
  'LOCK.ACQUIRE', 'LOCK.RELEASE', 'LOCK.MACQUIRE', 'LOCK.MRELEASE', 'LOCK.CANCEL', 'SEM.ACQUIRE', 'SEM.RELEASE', 'SEM.MACQUIRE',
  'SEM.MRELEASE', 'SEM.CANCEL',
];

const assertIs = (reply, expected) => (typeof expected === 'function' ? assert(expected(reply), String(reply)) : assert.deepEqual(reply, expected));

test('each command has a case here', () => {
  const cases = new Set([...ONCE, ...AGAIN].map(([command]) => command));
  for (const command of [...READS, ...BY_ID]) cases.add(command);
  assert.deepEqual([...cases].sort(), Object.keys(COMMANDS).sort());
});

for (const [library, connect] of Object.entries(PLAIN)) {
  describe(`after a lost reply with ${library}`, () => {
    let admin;
    let proxy;
    let client;
    let sluice;
    const run = async (commands = []) => {
      let reply;
      for (const command of commands) reply = await admin.send(...command.split(' '));
      return reply;
    };

    before(async () => {
      admin = await connectAdmin();
      proxy = await lossyProxy();
      client = await connect(proxy.port);
      sluice = new Sluice(client, { codec: text });
    });

    beforeEach(() => admin.send('FLUSHALL'));

    after(async () => {
      await sluice.close();
      disconnect(client);
      proxy.close();
      admin.close();
    });

    for (const [at, [command, { arrange, ask, act, until, kept: [check, expected] }]] of ONCE.entries()) {
      test(`${command} is not repeated (${at})`, async () => {
        await run(arrange);
        proxy.loseAfter(command, async () => {
          await run(act);
          if (until) await eventually(async () => until[1](await run([until[0]])));
        });
        await assert.rejects(Promise.resolve(ask(sluice)), ConnectionBroken);
        assert(proxy.isDone());
        assertIs(await run(check), expected);
      });
    }

    for (const [at, [command, { arrange, ask, act, reply, kept: [check, expected] }]] of AGAIN.entries()) {
      test(`${command} is repeated (${at})`, async () => {
        await run(arrange);
        proxy.loseAfter(command, () => run(act));
        assertIs(await ask(sluice), reply);
        assert(proxy.isDone());
        assertIs(await run(check), expected);
      });
    }
  });
}
