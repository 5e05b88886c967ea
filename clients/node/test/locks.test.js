'use strict';
// Locks, read-write locks and semaphores on a real server, with each library.

const assert = require('node:assert/strict');
const { after, before, beforeEach, describe, test } = require('node:test');
const { Conflict, ConnectionBroken, Deadlock, LockLost, LockTimeout, Sluice, WrongType } = require('../lib');
const { ALL, FIRST, LIBRARIES, connectAdmin, disconnect, eventually, killConnections, lossyProxy, sleep } = require('./support');

const aborted = async (signal) => signal.aborted || new Promise((resolve) => signal.addEventListener('abort', resolve));

for (const [library, connect] of Object.entries(LIBRARIES)) {
  describe(`locks with ${library}`, () => {
    let admin;
    let client;
    let sluice;
    const waiting = () => admin.info('sluice_lock_waiting');
    const isFree = async (key = 'key') => await admin.send('EXISTS', key) === 0;
    const killAll = () => killConnections(admin, sluice, client);

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

    test('holders exclude each other and are served in their order', async () => {
      const fences = [];
      const lock = sluice.lock('key');
      await lock.run(async (hold) => {
        fences.push(hold.fence);
        await hold.check();
        assert(hold.isHeld);
        assert.equal(await sluice.lock('key', { wait: 0 }).acquire(), null);
        assert.equal(await sluice.lock('key', { wait: 20 }).acquire(), null);
        await assert.rejects(sluice.lock('key', { wait: 20 }).run(() => assert.fail('it is held')), LockTimeout);
        assert.equal(await waiting(), 0);
        for (const next of [1, 2]) {
          lock.run((other) => fences.push(other.fence));
          await eventually(async () => await waiting() === next);
        }
      });
      await eventually(async () => fences.length === 3 && await isFree());
      assert.deepEqual(fences, [...fences].sort((one, other) => one - other));
    });

    test('the result and the error of the work are those of run', async () => {
      assert.equal(await sluice.lock('key').run(() => 7), 7);
      await assert.rejects(sluice.lock('key').run(() => { throw new RangeError('no'); }), RangeError);
      assert(await isFree());
    });

    test('await using releases', async () => {
      const hold = await sluice.lock('key').acquire();
      assert(!await isFree());
      await hold[Symbol.asyncDispose]();
      assert(await isFree());
      assert.equal(await hold.release(), true); // again: no harm
    });

    test('bytes are keys and owners', async () => {
      const key = Buffer.from([0, 255, 254, 13, 10]);
      const owner = Buffer.from([255, 0]);
      await sluice.lock(key, { owner }).run(async (hold) => {
        const [info] = await sluice.lock(key).info();
        assert.deepEqual(info.holders[0].owner, owner);
        await hold.check();
      });
    });

    test('a named owner enters again', async () => {
      const lock = sluice.lock('key', { owner: 'me' });
      await lock.run(async (outer) => {
        await lock.run((inner) => assert.equal(inner.fence, outer.fence));
        await outer.check();
        assert.equal((await lock.info())[0].holders[0].count, 1);
      });
      assert(await isFree());
    });

    test('readers share, and exclude a writer', async () => {
      const read = sluice.readLock('key');
      const [one, other] = await Promise.all([read.acquire(), read.acquire()]);
      assert.equal(await sluice.lock('key', { wait: 0 }).acquire(), null);
      assert.equal(await one.upgrade({ wait: 10 }), false);
      await other.release();
      const before = one.fence;
      assert.equal(await one.upgrade(), true);
      assert(one.fence > before);
      await one.check();
      assert.equal(await sluice.readLock('key', { wait: 0 }).acquire(), null);
      assert.equal(await one.downgrade(), true);
      await read.run(() => one.check());
      assert.equal(await one.release(), true);
    });

    test('a semaphore counts permits', async () => {
      const one = await sluice.semaphore('key', 3, { permits: 2 }).acquire();
      const two = await sluice.semaphore('key', 3).acquire();
      await two.check();
      assert.equal(await sluice.semaphore('key', 3, { wait: 10 }).acquire(), null);
      await one.release();
      assert.equal((await sluice.semaphore('key', 3).info())[0].used, 1);
      await two.release();
      assert(await isFree());
      await assert.rejects(sluice.lock('key').run(() => sluice.semaphore('key', 1).acquire()), WrongType);
    });

    test('several keys are acquired together', async () => {
      const [hold, sems] = [await sluice.lock(['a', 'b']).acquire(), await sluice.semaphore([['s', 1], ['t', 5]]).acquire()];
      assert.equal(hold.fences.length, 2);
      await Promise.all([hold.check(), sems.check()]);
      const waits = [sluice.lock(['b', 'c']).acquire(), sluice.semaphore([['s', 1], ['u', 1]]).acquire()];
      await eventually(async () => await waiting() === 2);
      assert(await isFree('c') && await isFree('u'));
      await Promise.all([hold.release(), sems.release()]);
      for (const next of await Promise.all(waits)) {
        assert.equal(next.fences.length, 2);
        await next.check();
        await next.release();
      }
    });

    test('a deadlock is refused', async () => {
      const [one, other] = ['one', 'other'].map((owner) => (key) => sluice.lock(key, { owner }));
      await one('a').acquire();
      await other('b').acquire();
      const wait = one('b').acquire();
      await eventually(async () => await waiting() === 1);
      await assert.rejects(other('a').acquire(), Deadlock);
      await admin.send('DEL', 'b');
      await (await wait).release();
    });

    test('a lock whose reply is on its way when the wait is aborted is released', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      for (const options of [{}, { owner: 'me' }]) {
        const controller = new AbortController();
        let deliver;
        proxy.delay('LOCK.ACQUIRE', () => new Promise((resolve) => { deliver = resolve; }));
        const wait = other.lock('key', { ...options, lease: 600_000, signal: controller.signal }).acquire();
        await eventually(() => deliver);
        assert.equal(await isFree(), false);
        controller.abort(new RangeError('enough'));
        await assert.rejects(wait, RangeError); // at once
        deliver();
        await eventually(isFree);
      }
      await other.close();
      disconnect(behind);
      proxy.close();
    });

    test('an aborted wait leaves the queue', async () => {
      await sluice.lock('key').run(async () => {
        const controller = new AbortController();
        const wait = sluice.lock('key', { signal: controller.signal }).acquire();
        await eventually(async () => await waiting() === 1);
        controller.abort(new RangeError('enough'));
        await assert.rejects(wait, RangeError);
        await eventually(async () => await waiting() === 0);
        await assert.rejects(sluice.lock('key', { signal: controller.signal }).acquire(), RangeError);
      });
      assert(await isFree());
    });

    test('a holder hears of a loss', async () => {
      const lost = sluice.lock('key').run(async (hold) => {
        const heard = aborted(hold.signal);
        await admin.send('DEL', 'key');
        await heard;
        assert(hold.signal.reason instanceof LockLost && !hold.isHeld);
        await assert.rejects(hold.check(), LockLost);
      });
      await assert.rejects(lost, LockLost);
      // Lost before the holder looks: another owner has the lock, and keeps it.
      const late = sluice.lock('key').run(async () => {
        await admin.send('DEL', 'key');
        await admin.send('LOCK.ACQUIRE', 'key', 'other');
      });
      await assert.rejects(late, LockLost);
      assert(!await isFree());
    });

    if (library === FIRST) test('a lease without watchdog ends', async () => {
      const hold = await sluice.lock('key', { watchdog: false, lease: 600_000 }).acquire();
      assert.equal(await hold.renew(600_000), true);
      await hold.renew(500); // false if the end is known before the reply
      await aborted(hold.signal);
      assert.equal(await hold.release(), false);
    });

    if (library === FIRST) test('maxHold bounds a hold', async () => {
      const hold = await sluice.lock('key', { lease: 200, maxHold: 300 }).acquire();
      await aborted(hold.signal);
      await eventually(isFree);
    });

    test('holds and waits outlive killed connections', async () => {
      const lock = sluice.lock('key', { lease: 60_000 });
      await lock.run(async (hold) => {
        const next = lock.run((other) => other.fence);
        await eventually(async () => await waiting() === 1);
        await killAll();
        await admin.send('CLIENT', 'KILL', 'TYPE', 'pubsub');
        await eventually(async () => await waiting() === 1); // it has asked again
        await hold.check();
        next.then((fence) => assert(fence > hold.fence));
      });
      await eventually(isFree);
    });

    if (library === FIRST) test('this process renews after a broken connection', async () => {
      await sluice.lock('key', { lease: 18_000 }).run(async (hold) => {
        await killAll();
        const end = await admin.send('PEXPIRETIME', 'key');
        await eventually(async () => await admin.send('PEXPIRETIME', 'key') > end);
        await hold.check();
      });
    });

    test('without linger a broken connection is a loss', async () => {
      const lost = sluice.lock('key', { linger: false }).run(async (hold) => {
        const heard = aborted(hold.signal);
        await killAll();
        await heard;
      });
      await assert.rejects(lost, LockLost);
      await eventually(isFree);
    });

    test('a silent server is not believed past the lease', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      const hold = await other.lock('key', { lease: 300 }).acquire();
      const heard = aborted(hold.signal);
      proxy.fallSilent();
      await heard;
      proxy.close();
      await other.close();
      disconnect(behind);
    });

    test('a loss is heard of although the connection for messages is silent', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      const hold = await other.lock('key', { lease: 1500 }).acquire();
      const heard = aborted(hold.signal);
      proxy.fallSilent('subscribe');
      await admin.send('DEL', 'key');
      await heard;
      proxy.close();
      await other.close();
      disconnect(behind);
    });

    test('a holder learns of a loss before it has the reply to its upgrade', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      const hold = await other.readLock('key', { lease: 600_000 }).acquire();
      proxy.delay('LOCK.UPGRADE', async () => {
        await admin.send('DEL', 'key');
        await sleep(100); // the message about the loss arrives before the reply
      });
      await hold.upgrade();
      await eventually(() => hold.signal.aborted);
      assert(proxy.isDone());
      proxy.close();
      await other.close();
      disconnect(behind);
    });

    test('a holder that checks its lock during an upgrade keeps it', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      const hold = await other.readLock('key', { lease: 600_000 }).acquire();
      proxy.delay('LOCK.UPGRADE', () => hold.check());
      assert.equal(await hold.upgrade({ wait: 1000 }), true);
      assert(proxy.isDone() && hold.isHeld);
      await hold.check();
      await other.close();
      disconnect(behind);
      proxy.close();
    });

    test('several locks of which one was lost and granted again are held', async () => {
      const hold = await sluice.lock('{k}1').acquire();
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      const wait = other.lock(['{k}1', '{k}2'], { wait: 60_000 }).acquire();
      await eventually(async () => await admin.info('sluice_lock_waiting') === 1);
      proxy.before('LOCK.MACQUIRE', async () => {
        await admin.send('DEL', '{k}2');
        await sleep(100); // the message about the loss arrives before the reply
      });
      await hold.release();
      const both = await wait;
      assert(proxy.isDone() && both.isHeld);
      await both.check();
      await both.release();
      await other.close();
      disconnect(behind);
      proxy.close();
    });

    test('a silent server ends no wait too late', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind, { timeout: 1000 });
      await other.lock('key').run(() => {});
      proxy.fallSilent();
      const controller = new AbortController();
      const wait = other.lock('key', { wait: 600_000, signal: controller.signal }).acquire();
      setImmediate(() => controller.abort(new RangeError('enough')));
      await assert.rejects(wait, RangeError);
      await assert.rejects(other.lock('key', { wait: 0 }).acquire(), ConnectionBroken);
      proxy.close();
      await other.close();
      disconnect(behind);
    });

    test('lost replies cost nothing', async () => {
      const proxy = await lossyProxy();
      const behind = await connect(proxy.port);
      const other = new Sluice(behind);
      for (const name of ['LOCK.ACQUIRE', 'LOCK.RELEASE']) {
        proxy.lose(name);
        await other.lock('key', { lease: 60_000 }).run(async () => {
          assert.equal((await sluice.lock('key').info())[0].holders[0].count, 1);
        });
        assert(proxy.isDone() && await isFree());
      }
      proxy.lose('SEM.MACQUIRE', 'LOCK.GUARD');
      await (await other.semaphore([['s', 2], ['t', 2]]).acquire()).release();
      assert.equal(await other.guard('resource', 5), true);
      assert.equal(await other.guard('resource', 4), false);
      assert(proxy.isDone());
      await other.close();
      disconnect(behind);
      proxy.close();
    });

    test('a thousand tasks share two connections', async () => {
      const before = await admin.info('connected_clients');
      let count = 0;
      const lock = sluice.lock('counter', { wait: 600_000 });
      await Promise.all(Array.from({ length: 1000 }, () => lock.run(async () => {
        const read = count;
        await new Promise(setImmediate); // another task would count here, too
        count = read + 1;
      })));
      assert.equal(count, 1000);
      assert(await admin.info('connected_clients') <= before + 2);
    });
  });
}

test('errors are typed', async () => {
  const client = await ALL['ioredis 5']();
  await using_(new Sluice(client), async (sluice) => {
    await sluice.stock.create('errors', 5);
    await sluice.stock.deduct('errors', 1, { order: 'o' });
    await assert.rejects(sluice.stock.deduct('errors', 2, { order: 'o' }), Conflict);
  });
  disconnect(client);
});

/** `await using` of later Node versions. */
async function using_(resource, work) {
  try {
    await work(resource);
  } finally {
    await resource[Symbol.asyncDispose]();
  }
}
