// Locks of many tasks over one connection and one subscription, with node-redis.
// Run: npm install && node shared.js redis://localhost:6390

import { createClient } from 'redis';
import { randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';

/** The lock was lost before it was released. */
export class LostError extends Error {}

/** All tasks share one connection for commands and one subscription for messages. */
export class SharedLocks {
  #client;
  #subscriber;
  #channel = `locks:${randomUUID()}`;
  #waiting = new Map(); // what to call with the message for a request, by its id
  #held = new Map(); // what to call when a hold is lost, by the id of its request

  static async connect(url) {
    const locks = new SharedLocks();
    locks.#client = await createClient({ url }).on('error', () => {}).connect();
    locks.#subscriber = await locks.#client.duplicate().on('error', () => {}).connect();
    await locks.#subscriber.subscribe(locks.#channel, (message) => locks.#hear(message));
    return locks;
  }

  async close() {
    await this.#subscriber.close();
    await this.#client.close();
  }

  #hear(message) {
    const [, what, fence, request] = /^(\S+) (\d+) (.*)$/s.exec(message);
    const listeners = what === 'lost' ? this.#held : this.#waiting;
    listeners.get(request)?.(what, Number(fence));
  }

  /** Runs `work` with the lock. `work` receives the fence, and a signal that aborts when the lock is lost. */
  async withLock(key, work, { waitMs = 10_000, leaseMs = 30_000 } = {}) {
    const request = randomUUID(); // the owner of this hold, and the id of its request
    const fence = await this.#acquire(key, request, waitMs, leaseMs);
    const lost = new AbortController();
    this.#held.set(request, () => lost.abort(new LostError(key)));
    let released;
    let result;
    try {
      result = await work(fence, lost.signal);
    } finally {
      this.#held.delete(request);
      released = await this.#send('LOCK.RELEASE', key, request, 'ALL');
    }
    if (released === null) throw new LostError(key);
    return result;
  }

  async #acquire(key, request, waitMs, leaseMs) {
    const deadline = Date.now() + waitMs;
    try {
      for (;;) {
        const left = Math.max(deadline - Date.now(), 1);
        const message = this.#next(request, left + 500);
        const fence = await this.#send(
          'LOCK.ACQUIRE', key, request, 'PX', leaseMs, 'BLOCK', left,
          'WATCHDOG', 'LINGER', 'ID', request, 'NOTIFY', this.#channel);
        if (fence !== null) return Number(fence);
        const [what, granted] = await message; // nothing: the message may be lost, ask again with the same id
        if (what === 'granted') return granted;
        if (what === 'deadlock') throw new Error('DEADLOCK waiting for this lock would never end');
        if (what === 'timeout' || Date.now() > deadline + 1000) {
          throw new Error(`${key} was not free within ${waitMs} ms`);
        }
      }
    } catch (error) {
      await this.#send('LOCK.CANCEL', key, request).catch(() => {});
      await this.#send('LOCK.RELEASE', key, request, 'ALL').catch(() => {});
      throw error;
    } finally {
      this.#waiting.get(request)?.('done', 0);
      this.#waiting.delete(request);
    }
  }

  /** The next message for a request. */
  #next(request, ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(['nothing', 0]), ms);
      this.#waiting.set(request, (what, fence) => {
        clearTimeout(timer);
        resolve([what, fence]);
      });
    });
  }

  #send(...words) {
    return this.#client.sendCommand(words.map(String));
  }
}

/** 1000 tasks count, one after the other. */
async function main(url = 'redis://localhost:6379', tasks = 1000) {
  const locks = await SharedLocks.connect(url);
  let count = 0;
  const increment = () =>
    locks.withLock('counter', async () => {
      const before = count;
      await new Promise(setImmediate); // another task would count here, too
      count = before + 1;
    }, { waitMs: 60_000 });
  await Promise.all(Array.from({ length: tasks }, increment));
  console.log(`${count} of ${tasks} tasks counted`);
  await locks.close();
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await main(process.argv[2]);
}
