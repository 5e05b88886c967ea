'use strict';
// The drop-in for the npm package `redlock`, on one server and on a quorum of three.

const assert = require('node:assert/strict');
const { after, before, beforeEach, describe, test } = require('node:test');
const { ExecutionError, default: Redlock, Lock, ResourceLockedError } = require('../lib/redlock');
const { LIBRARIES, connectAdmin, disconnect, eventually, lossyProxy, sleep } = require('./support');

const PORTS = process.env.SLUICE_PORTS.split(',').map(Number);
const QUICK = { retryCount: 2, retryDelay: 20, retryJitter: 10 };

for (const [library, connect] of Object.entries(LIBRARIES)) {
  for (const ports of [PORTS.slice(0, 1), PORTS]) {
    describe(`redlock with ${library} on ${ports.length} server(s)`, () => {
      let admins;
      let clients;
      let redlock;
      /** The number of these keys on each server: the last vote may come after the decision. */
      const becomes = (names, expected) => eventually(async () =>
        String(await Promise.all(admins.map((admin) => admin.send('EXISTS', ...names)))) === String(expected));
      const all = (count) => ports.map(() => count);
      /**
       * Returns the lock or its refusal, and the errors of the last attempt. Makes at most five attempts while votes are late: if a server
       * or this process stalls for two seconds, the vote of that server counts as a refusal.
       */
      const acquire = async (resources) => {
        for (let calls = 1; ; calls++) {
          const errors = [];
          const addError = (error) => errors.push(error);
          redlock.on('error', addError);
          const result = await redlock.acquire(resources, 60_000).catch((refusal) => refusal);
          await Promise.all(result.attempts ?? []); // the last votes may come after the decision
          redlock.off('error', addError);
          if (calls === 5 || !errors.some(({ message }) => message.includes('did not answer'))) return [result, errors];
          if (result instanceof Lock) await result.release();
        }
      };

      before(async () => {
        admins = await Promise.all(ports.map((port) => connectAdmin(port)));
        clients = await Promise.all(ports.map((port) => connect(port)));
        redlock = new Redlock(clients, QUICK);
      });

      beforeEach(() => Promise.all(admins.map((admin) => admin.send('FLUSHALL'))));

      after(async () => {
        await redlock.quit();
        for (const admin of admins) admin.close();
      });

      test('acquires, extends and releases', async () => {
        const start = Date.now();
        let [lock] = await acquire(['{r}a', '{r}b']);
        assert(lock instanceof Lock && lock.expiration > start && lock.expiration <= Date.now() + 60_000 * 0.99);
        assert.equal(lock.fences.length, 2);
        await becomes(['{r}a', '{r}b'], all(2));
        const [{ votesFor, votesAgainst, membershipSize, quorumSize }] = await Promise.all(lock.attempts);
        assert.deepEqual([votesFor.size, votesAgainst.size, membershipSize], [ports.length, 0, ports.length]);
        assert.equal(quorumSize, Math.floor(ports.length / 2) + 1);
        const first = lock;
        lock = await lock.extend(120_000);
        assert(first.expiration === 0 && lock.value === first.value);
        for (const admin of admins) await eventually(async () => await admin.send('PTTL', '{r}a') > 60_000);
        await assert.rejects(first.extend(1000), /already-expired/);
        await lock.release();
        assert.equal(lock.expiration, 0);
        await becomes(['{r}a', '{r}b'], all(0));
      });

      test('refuses what another lock has', async () => {
        const [lock] = await acquire(['{r}a', '{r}b']);
        for (const resources of [['{r}a'], ['{r}b', '{r}c']]) {
          const [error, errors] = await acquire(resources);
          assert(error instanceof ExecutionError && error.attempts.length === 3);
          for (const { votesAgainst } of await Promise.all(error.attempts)) {
            for (const vote of votesAgainst.values()) assert(vote instanceof ResourceLockedError);
          }
          assert(errors.length > 0 && errors.every((one) => one instanceof ResourceLockedError));
        }
        await becomes(['{r}a', '{r}b', '{r}c'], all(2));
        await lock.release();
        await assert.rejects(redlock.acquire(['a'], 0.5), /must be an integer/);
        assert.throws(() => new Redlock([]), /at least one/);
      });

      test('a lock of the original redlock is respected', async () => {
        await Promise.all(admins.map((admin) => admin.send('SET', 'a', 'value', 'PX', '60000')));
        await assert.rejects(redlock.acquire(['a'], 1000, { retryCount: 0 }), ExecutionError);
        assert.deepEqual(await Promise.all(admins.map((admin) => admin.send('GET', 'a'))), ports.map(() => 'value'));
      });

      test('waits for its turn', async () => {
        const patient = { retryCount: -1, retryDelay: 20, retryJitter: 0 };
        const lock = await redlock.acquire(['a'], 60_000);
        const next = redlock.acquire(['a'], 60_000, patient);
        await sleep(50);
        await lock.release();
        await (await next).release();
        await becomes(['a'], all(0));
      });

      test('a lost lock cannot be extended or released', async () => {
        const lock = await redlock.acquire(['a'], 60_000);
        await Promise.all(admins.map((admin) => admin.send('DEL', 'a')));
        await assert.rejects(lock.extend(60_000), ExecutionError);
        await assert.rejects(lock.release(), ExecutionError);
      });

      test('using extends, and its locks exclude each other', async () => {
        let isHeld = false;
        const settings = { automaticExtensionThreshold: 59_000, retryCount: -1, retryDelay: 20 };
        const work = async (signal) => {
          assert(!isHeld && !signal.aborted);
          isHeld = true;
          const until = Date.now() + 300;
          let last = 0;
          await eventually(async () => { // extended: its end moves
            const ttl = await admins[0].send('PTTL', 'a');
            const isLonger = ttl > last && last > 0;
            last = ttl;
            return isLonger;
          });
          while (Date.now() < until) await sleep(20);
          assert(!signal.aborted);
          isHeld = false;
          return 7;
        };
        assert.deepEqual(await Promise.all([redlock.using(['a'], 60_000, settings, work), redlock.using(['a'], 60_000, settings, work)]), [7, 7]);
        await becomes(['a'], all(0));
        await assert.rejects(redlock.using(['a'], 500, async () => {}), /at least 100ms greater/);
        await assert.rejects(redlock.using(['a'], 5000, async () => { throw new RangeError('no'); }), RangeError);
        await becomes(['a'], all(0));
      });

      test('using aborts when the lock is lost', async () => {
        const lost = redlock.using(['a'], 60_000, async (signal) => {
          await Promise.all(admins.map((admin) => admin.send('DEL', 'a')));
          await eventually(() => signal.aborted);
          assert(signal.error instanceof Error);
        });
        await assert.rejects(lost, ExecutionError);
      });

      if (ports.length > 1) {
        test('a minority of servers does not matter', async () => {
          await admins[2].send('SET', 'a', 'other');
          const lock = await (await redlock.acquire(['a'], 60_000)).extend(60_000);
          await becomes(['a'], [1, 1, 1]);
          await lock.release();
          await becomes(['a'], [0, 0, 1]);
          await admins[1].send('SET', 'a', 'other');
          await assert.rejects(redlock.acquire(['a'], 60_000), ExecutionError);
          await becomes(['a'], [0, 1, 1]); // what it had is withdrawn
        });
      }
    });
  }
}

test('a server that does not answer does not delay the others', async () => {
  const [connect] = Object.values(LIBRARIES);
  const proxy = await lossyProxy(PORTS[2]);
  const clients = await Promise.all([PORTS[0], PORTS[1], proxy.port].map((port) => connect(port)));
  const redlock = new Redlock(clients, QUICK);
  await (await redlock.acquire(['before'], 60_000)).release();
  proxy.fallSilent();
  const lock = await (await redlock.acquire(['gone'], 60_000)).extend(60_000);
  const { votesFor, votesAgainst } = await lock.attempts.at(-1); // only the last attempt: an earlier one can have failed because this process stalled
  assert.deepEqual([votesFor.size, votesAgainst.size], [2, 1]);
  await lock.release();
  await redlock.acquire(['after'], 60_000);
  proxy.close();
  for (const client of clients) disconnect(client);
  await redlock.close();
});
