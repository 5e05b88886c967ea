// Locks for node-redis: one that the server renews (withLock), and one that a timer renews (withRenewedLock).
//
// Both call work({ fence, signal, check }) while the lock is held: `signal` is aborted with a LockLost the moment we learn
// that it is lost, and check() asks. Copy this file; docs/clients.md says what to watch.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ErrorReply } from 'redis';

export class LockTimeout extends Error {}

export class LockLost extends Error {}

/** Holds `key` while `work` runs and a connection of its own lives. The server renews the lease. */
export async function withLock(client, key, work, { lease = 30_000, wait = 10_000 } = {}) {
  const owner = randomUUID(); // of this hold, not of this process
  const lost = new AbortController();
  // A connection for this hold alone, which is not made again when it breaks: the hold goes with it.
  const own = client.duplicate({ socket: { ...client.options.socket, reconnectStrategy: false, socketTimeout: 0 } });
  own.on('error', (cause) => lost.abort(new LockLost(key, { cause })));
  await own.connect();
  try {
    const words = ['PX', `${lease}`, 'BLOCK', `${wait}`, 'WATCHDOG', 'ID', owner];
    const fence = await own.sendCommand(['LOCK.ACQUIRE', key, owner, ...words]);
    if (fence === null) throw new LockTimeout(key);
    const ask = (...command) => own.sendCommand(command).catch((cause) => {
      throw cause instanceof ErrorReply ? cause : new LockLost(key, { cause }); // an ErrorReply is an answer
    });
    const check = async () => {
      lost.signal.throwIfAborted();
      if (await ask('LOCK.HELD', key, owner) !== fence) lost.abort(new LockLost(key));
      lost.signal.throwIfAborted();
    };
    const result = await work({ fence, signal: lost.signal, check });
    lost.signal.throwIfAborted();
    if (await ask('LOCK.RELEASE', key, owner, 'ALL') === null) throw new LockLost(key);
    return result;
  } finally {
    if (own.isOpen) own.destroy(); // whatever went wrong, the hold goes with its connection
  }
}

/** Holds `key` while `work` runs and a timer renews it, over whatever connection `client` or a pool has. */
export async function withRenewedLock(client, key, work, { lease = 30_000, wait = 10_000 } = {}) {
  const owner = randomUUID();
  const words = ['PX', `${lease}`, 'BLOCK', `${wait}`, 'ID', owner];
  const fence = await again(() => client.sendCommand(['LOCK.ACQUIRE', key, owner, ...words]));
  if (fence === null) throw new LockTimeout(key);
  const lost = new AbortController();
  const lose = () => lost.abort(new LockLost(key));
  let end; // aborts when nobody could renew it in time
  const renew = async () => {
    const asked = performance.now(); // counted from before the request: our clock is never later than the server's
    if (await client.sendCommand(['LOCK.RENEW', key, owner, 'PX', `${lease}`]) !== fence) return lose();
    clearTimeout(end);
    end = setTimeout(lose, asked + lease - performance.now()).unref(); // keeps no process alive
  };
  const release = () => again(() => client.sendCommand(['LOCK.RELEASE', key, owner, 'ALL']));
  let timer;
  try {
    await renew(); // the lease began when we were served; from here on we know when it ends
    lost.signal.throwIfAborted();
    timer = setInterval(() => renew().catch(() => {}), lease / 3); // if it cannot: again, a third of the lease later
    const result = await work({ fence, signal: lost.signal, check: () => lost.signal.throwIfAborted() });
    lost.signal.throwIfAborted();
    if (await release() === null) throw new LockLost(key);
    return result;
  } catch (error) {
    await release().catch(() => {}); // what went wrong first is what to tell; the lease ends the hold
    throw error;
  } finally {
    clearInterval(timer);
    clearTimeout(end);
  }
}

/** The client of the node that serves `key`: a cluster has many connections, and withLock wants one. */
export async function nodeOf(cluster, key) {
  const slot = await cluster.sendCommand(key, true, ['CLUSTER', 'KEYSLOT', key]);
  return cluster.nodeClient(cluster.slots[slot].master);
}

/** Asks again if the connection breaks before the answer: for what an ID, an ORDER or an owner makes safe to repeat. */
export async function again(ask, attempts = 5) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (error instanceof ErrorReply || attempt === attempts) throw error; // an ErrorReply is an answer
      await sleep(50 * attempt);
    }
  }
}
