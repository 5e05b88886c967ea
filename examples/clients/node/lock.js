// Locks for node-redis: one that the server renews (withLock), and one that a timer renews (withRenewedLock).
//
// Both call work({ fence, signal, check }) while the lock is held. If the lock is lost, `signal` aborts with a LockLost.
// check() asks the server. Copy this file; docs/clients.md has the details.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ErrorReply } from 'redis';

export class LockTimeout extends Error {}

export class LockLost extends Error {}

/** Holds `key` while `work` runs and its own connection is open. The server renews the lease. */
export async function withLock(client, key, work, { lease = 30_000, wait = 10_000 } = {}) {
  const owner = randomUUID(); // of this hold, not of this process
  const lost = new AbortController();
  // A connection for this hold alone, without reconnecting: when it breaks, the server releases the hold.
  const own = client.duplicate({ socket: { ...client.options.socket, reconnectStrategy: false, socketTimeout: 0 } });
  own.on('error', (cause) => lost.abort(new LockLost(key, { cause })));
  await own.connect();
  try {
    const words = ['PX', `${lease}`, 'BLOCK', `${wait}`, 'WATCHDOG', 'ID', owner];
    const fence = await own.sendCommand(['LOCK.ACQUIRE', key, owner, ...words]);
    if (fence === null) throw new LockTimeout(key);
    const ask = (...command) => own.sendCommand(command).catch((cause) => {
      throw cause instanceof ErrorReply ? cause : new LockLost(key, { cause }); // an ErrorReply is a reply of the server
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
    if (own.isOpen) own.destroy(); // in each case, the server releases the hold with its connection
  }
}

/** Holds `key` while `work` runs and a timer renews it, on any connection of `client` or a pool. */
export async function withRenewedLock(client, key, work, { lease = 30_000, wait = 10_000 } = {}) {
  const owner = randomUUID();
  const words = ['PX', `${lease}`, 'BLOCK', `${wait}`, 'ID', owner];
  const fence = await again(() => client.sendCommand(['LOCK.ACQUIRE', key, owner, ...words]));
  if (fence === null) throw new LockTimeout(key);
  const lost = new AbortController();
  const lose = () => lost.abort(new LockLost(key));
  let end; // aborts when no renewal succeeded in time
  const renew = async () => {
    const asked = performance.now(); // before the request, so the local end is never later than the server's
    if (await client.sendCommand(['LOCK.RENEW', key, owner, 'PX', `${lease}`]) !== fence) return lose();
    clearTimeout(end);
    end = setTimeout(lose, asked + lease - performance.now()).unref(); // does not keep the process running
  };
  const release = () => again(() => client.sendCommand(['LOCK.RELEASE', key, owner, 'ALL']));
  let timer;
  try {
    await renew(); // the lease began when the request was served; after this, its end is known
    lost.signal.throwIfAborted();
    timer = setInterval(() => renew().catch(() => {}), lease / 3); // after a failure, the next attempt follows a third of the lease later
    const result = await work({ fence, signal: lost.signal, check: () => lost.signal.throwIfAborted() });
    lost.signal.throwIfAborted();
    if (await release() === null) throw new LockLost(key);
    return result;
  } catch (error) {
    await release().catch(() => {}); // the first error is reported; the lease ends the hold
    throw error;
  } finally {
    clearInterval(timer);
    clearTimeout(end);
  }
}

/** Returns the client of the node that serves `key`: a cluster has many connections, and withLock needs one. */
export async function nodeOf(cluster, key) {
  const slot = await cluster.sendCommand(key, true, ['CLUSTER', 'KEYSLOT', key]);
  return cluster.nodeClient(cluster.slots[slot].master);
}

/** Repeats a request if the connection breaks before the reply. Use it only for requests that an ID, an ORDER or an owner makes idempotent. */
export async function again(ask, attempts = 5) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (error instanceof ErrorReply || attempt === attempts) throw error; // an ErrorReply is a reply of the server
      await sleep(50 * attempt);
    }
  }
}
