'use strict';
// Locks, read-write locks and semaphores. All of a process wait on one connection to a server, see link.js.

const { randomUUID } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { commandOf } = require('./commands');
const { ConnectionBroken, Deadlock, LockLost, LockTimeout, ServerError } = require('./errors');
const { Link } = require('./link');
const { FLAG, NAME, POSITIVE_MS, WAIT_MS, checkOptions, signature } = require('./options');
const { span } = require('./tracing');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

/**
 * @typedef {object} LockOptions
 * @property {number} [wait] The longest wait in milliseconds; 0: none, Infinity: without limit. By default 10 000.
 * @property {number} [lease] Milliseconds of the lease, which the server renews while this process is connected. By default
 *   30 000. If the process crashes, the lock is free after at most this time.
 * @property {boolean} [watchdog] Whether the server renews the lease. By default true. If false, the hold ends with its lease.
 * @property {boolean} [linger] Whether the hold outlives a broken connection for the rest of its lease, so that this package
 *   can connect again. By default true. If false, the server releases the hold the moment the connection closes.
 * @property {number} [maxHold] The longest hold in milliseconds, also if the process hangs. By default no limit.
 * @property {Bytes} [owner] Who holds: the same owner enters again. By default a new one for each hold.
 * @property {AbortSignal} [signal] Ends the wait. `acquire` then rejects with its reason.
 */

const OPTIONS = {
  wait: WAIT_MS,
  lease: POSITIVE_MS,
  watchdog: FLAG,
  linger: FLAG,
  maxHold: POSITIVE_MS,
  owner: NAME,
  signal: { is: 'an AbortSignal', test: (/** @type {any} */ value) => typeof value?.throwIfAborted === 'function' },
};
const CALLS = {
  renew: signature('hold.renew', { lease: WAIT_MS }),
  upgrade: signature('hold.upgrade', {}, { wait: WAIT_MS }),
};

/**
 * Checks the keys and the options of a lock. A semaphore also has permits.
 *
 * @param {string} method
 * @param {Bytes[]} keys
 * @param {object} options
 * @param {import('./options').Kinds} [more]
 */
function checkLock(method, keys, options, more = {}) {
  if (!keys.length) throw new TypeError(`${method}: a lock needs a key`);
  const key = signature(method, { key: NAME });
  for (const one of keys) key([one]);
  checkOptions(method, { ...OPTIONS, ...more }, options);
}

/** The longest time between two requests of a waiting task, in milliseconds: messages may be lost. */
const ROUND_MS = 5000;

/** The time that a message about the end of the wait may take, in milliseconds. */
const GRACE_MS = 250;

/** The pause after a broken connection, in milliseconds, and the attempts of a request that does not wait. */
const PAUSE_MS = 50;
const ATTEMPTS = 6;

const noop = () => {};

/** The links of one client: one for each server. */
class Links {
  /** @param {import('./client').Client} client */
  constructor(client) {
    this.client = client;
    /** @type {Map<any, Link>} */
    this.links = new Map();
  }

  /** @param {Bytes} key */
  async of(key) {
    const { library } = this.client;
    const node = await library.node(key);
    let link = this.links.get(node);
    if (!link) this.links.set(node, link = new Link(() => library.connect(node), this.client.timeout));
    return link;
  }

  /** Releases all holds, then closes the connections. */
  async close() {
    const links = [...this.links.values()];
    this.links.clear();
    await Promise.allSettled(links.flatMap((link) => [...link.holds.values()]).map((hold) => hold.release()));
    for (const link of links) link.close();
  }
}

/**
 * What distinguishes a lock, a shared lock, a semaphore and those of several keys.
 *
 * @typedef {object} Kind
 * @property {'LOCK' | 'SEM'} family
 * @property {Bytes[]} keys
 * @property {boolean} isMany Whether the M commands are sent.
 * @property {number[]} [limits] Of semaphores, one for each key.
 * @property {number} [permits]
 * @property {boolean} [isShared]
 */

/** @param {Kind} kind @param {Bytes} owner @returns {Word[]} The arguments in front of the options of an acquisition. */
function head({ family, keys, isMany, limits = [], isShared, permits }, owner) {
  const more = family === 'SEM' && permits !== undefined ? ['PERMITS', permits] : [];
  if (isMany) {
    const each = family === 'SEM' ? keys.flatMap((key, at) => [key, limits[at]]) : keys;
    return [keys.length, ...each, owner, ...more];
  }
  if (family === 'SEM') return [keys[0], owner, 'LIMIT', limits[0], ...more];
  return isShared ? [keys[0], owner, 'SHARED'] : [keys[0], owner];
}

/** @param {LockOptions} options @returns {Word[]} The lease of an acquisition, and who renews it. */
function terms({ lease = 30_000, watchdog = true, linger = true, maxHold }) {
  const watch = watchdog ? ['WATCHDOG', ...(maxHold ? ['MAXHOLD', maxHold] : []), ...(linger ? ['LINGER'] : [])] : [];
  return ['PX', lease, ...watch];
}

/** Whether another server must be asked. @param {unknown} error */
const isRedirected = (error) => error instanceof ServerError && /^(MOVED|ASK|UNBLOCKED|READONLY|TRYAGAIN|LOADING|CLUSTERDOWN)$/.test(error.code);

/** @param {Kind} kind */
const nameOf = ({ keys }) => keys.map(String).join(', ');

/**
 * A lock, a shared lock, a semaphore, or several of them that are acquired together. `sluice.lock` and its siblings return it.
 * It has no state: `acquire` and `run` may be called many times and at the same time.
 */
class Lock {
  #links;
  #kind;

  /**
   * @internal
   * @param {Links} links
   * @param {Kind} kind
   * @param {LockOptions} options
   */
  constructor(links, kind, options) {
    this.#links = links;
    this.#kind = kind;
    this.options = options;
  }

  /**
   * Waits for the lock, and calls `work` while it is held. Releases the lock also if `work` fails.
   *
   * @template T
   * @param {(hold: Hold) => T | Promise<T>} work Pass `hold.signal` to what it calls, and `hold.fence` to what it writes.
   * @returns {Promise<T>} The result of `work`.
   * @throws {LockTimeout} Another owner held the lock for the whole waiting time; `work` was not called.
   * @throws {LockLost} The lock was lost before `work` ended.
   * @throws {Deadlock} The wait would never end.
   */
  async run(work) {
    const hold = await this.acquire();
    if (!hold) throw new LockTimeout(`${nameOf(this.#kind)} was not free within ${this.options.wait ?? 10_000} ms`);
    return span('sluice.hold', {}, async () => {
      let result;
      try {
        result = await work(hold);
      } catch (error) {
        await hold.release().catch(noop);
        throw error;
      }
      await hold[Symbol.asyncDispose]();
      return result;
    });
  }

  /**
   * Waits for the lock. The caller releases the hold, for example by `await using`.
   *
   * @returns {Promise<Hold | null>} null: another owner held the lock for the whole waiting time.
   * @throws {Deadlock} The wait would never end.
   */
  acquire() {
    return span('sluice.acquire', {}, () => this.#acquire());
  }

  async #acquire() {
    const { wait = 10_000, watchdog = true, owner: named, signal } = this.options;
    const id = randomUUID();
    const owner = named ?? id;
    const { family, isMany, keys } = this.#kind;
    const title = `${family}.${isMany ? 'M' : ''}ACQUIRE`;
    const { read } = commandOf(title);
    const options = terms(this.options);
    const deadline = performance.now() + wait;
    /** @type {Link | undefined} */
    let link;
    /** @type {import('./link').Mailbox | undefined} */
    let mailbox;
    signal?.throwIfAborted();
    /** @type {() => void} */
    let abort = noop;
    const aborted = new Promise((_, reject) => { abort = () => reject(signal?.reason); });
    aborted.catch(noop);
    signal?.addEventListener('abort', abort);
    const start = performance.now();
    /** @type {Promise<unknown>} The last request: nothing is withdrawn before its end. */
    let sending = Promise.resolve();
    let failures = 0;
    let hasWaited = false;
    try {
      for (;;) {
        try {
          const home = await this.#links.of(keys[0]);
          if (home !== link) {
            link?.listenNoMore(id, mailbox);
            link = home;
            mailbox = link.listen(id);
          }
          const left = deadline - performance.now();
          const isLast = !(left > 0);
          if (isLast && hasWaited) await link.send([`${family}.CANCEL`, keys[0], id]);
          const since = performance.now();
          const block = isLast ? [] : ['BLOCK', left === Infinity ? 0 : Math.ceil(left)];
          const request = [title, ...head(this.#kind, owner), ...options, ...block, 'ID', id, 'NOTIFY', link.channel];
          const sent = link.send(request);
          sending = sent;
          const { reply, pair } = await Promise.race([sent, aborted]);
          const fences = /** @type {any} */ (read(reply));
          if (fences !== null) return this.#held(link, /** @type {any} */ (mailbox), id, owner, [fences].flat(), since, pair);
          if (isLast) return null;
          hasWaited = true;
          const next = /** @type {any} */ (mailbox).next(Math.min(left + GRACE_MS, ROUND_MS));
          const [what, fence] = await Promise.race([next, aborted]);
          if (what === 'granted' && !isMany) {
            const hold = this.#held(link, /** @type {any} */ (mailbox), id, owner, [fence], performance.now(), pair);
            if (!watchdog) await hold.renew(); // the lease began before the message came
            return hold;
          }
          if (what === 'timeout') return null;
          if (what === 'deadlock') throw new Deadlock('DEADLOCK waiting for this lock would never end');
          // Otherwise: all fences of several keys, a moved slot, a broken connection, or a lost message. The same id keeps its place.
        } catch (error) {
          if (!(error instanceof ConnectionBroken) && !isRedirected(error)) throw error;
          failures += 1;
          const now = performance.now();
          if (now >= deadline && (failures >= ATTEMPTS || now - start >= this.#links.client.timeout)) throw error;
          if (isRedirected(error)) await this.#redirect(link);
          await sleep(Math.min(PAUSE_MS * failures, 1000));
          signal?.throwIfAborted();
        }
      }
    } catch (error) {
      const withdrawn = sending.catch(noop).then(() => this.#withdraw(id, owner, options, named !== undefined)).catch(noop);
      if (!signal?.aborted && !(error instanceof ConnectionBroken)) await withdrawn;
      throw error;
    } finally {
      signal?.removeEventListener('abort', abort);
      link?.listenNoMore(id, mailbox);
    }
  }

  /**
   * @param {Link} link
   * @param {import('./link').Mailbox} mailbox
   * @param {string} id
   * @param {Bytes} owner
   * @param {number[]} fences
   * @param {number} since
   * @param {unknown} pair
   */
  #held(link, mailbox, id, owner, fences, since, pair) {
    const hold = new Hold(this.#links, link, this.#kind, this.options, { id, owner, fences, since, pair });
    link.keep(hold);
    for (const fence of mailbox.lost) hold.hearLost(fence);
    return hold;
  }

  /**
   * Removes a request that failed on its way, whether it waits or was granted meanwhile.
   *
   * @param {string} id
   * @param {Bytes} owner
   * @param {Word[]} options
   * @param {boolean} isNamed
   */
  async #withdraw(id, owner, options, isNamed) {
    const { client } = this.#links;
    const { family, isMany, keys } = this.#kind;
    if (await client.call(`${family}.CANCEL`, [keys[0], id])) return;
    if (isNamed) { // the owner may have other holds: whatever this request got, it has exactly one now
      const title = `${family}.${isMany ? 'M' : ''}ACQUIRE`;
      if (await client.call(title, [...head(this.#kind, owner), 'PX', options[1], 'ID', id], true) === null) return;
    }
    await client.call(...release(this.#kind, id, owner, isNamed));
  }

  /** Another server has the key now: lets the user's client find it. @param {Link | undefined} link */
  async #redirect(link) {
    const { family, keys } = this.#kind;
    await this.#links.client.call(`${family}.INFO`, [keys[0]]).catch(noop);
    if (!this.#links.client.library.isCluster) link?.pair?.close(); // the connection is one to a former master
  }

  /** The map of `LOCK.INFO` or `SEM.INFO` for each key; null: the key is free. */
  async info() {
    const { family, keys } = this.#kind;
    return Promise.all(keys.map((key) => this.#links.client.call(`${family}.INFO`, [key])));
  }
}

/**
 * @param {Kind} kind
 * @param {string} id
 * @param {Bytes} owner
 * @param {boolean} isNamed Whether the owner may have other holds.
 * @returns {[title: string, args: Word[], repeat: boolean]}
 */
function release({ family, isMany, keys, permits }, id, owner, isNamed) {
  const first = isMany ? [keys.length, ...keys, owner] : [keys[0], owner];
  const part = family === 'SEM' ? ['PERMITS', permits ?? 1] : [];
  return [`${family}.${isMany ? 'M' : ''}RELEASE`, [...first, ...(isNamed ? part : ['ALL']), 'ID', `${id}:r`], true];
}

/** A lock that is held as far as this process knows. */
class Hold {
  #links;
  #link;
  #kind;
  #options;
  #owner;
  #pair;
  #granted;
  #isFollowing = false;
  #isChanging = false;
  /** @type {Promise<unknown> | undefined} The request that binds this hold to another connection. */
  #binding;
  #lost = new AbortController();
  #until = Infinity;
  /** @type {Promise<boolean> | undefined} */
  #released;

  /**
   * @internal
   * @param {Links} links
   * @param {Link} link
   * @param {Kind} kind
   * @param {LockOptions} options
   * @param {{ id: string, owner: Bytes, fences: number[], since: number, pair: unknown }} granted
   */
  constructor(links, link, kind, options, { id, owner, fences, since, pair }) {
    this.#links = links;
    this.#link = link;
    this.#kind = kind;
    this.#options = options;
    this.#owner = owner;
    this.#pair = options.watchdog === false ? undefined : pair;
    /** @internal The id of the request. */
    this.id = id;
    /** The fencing tokens, one for each key. */
    this.fences = fences;
    this.#granted = fences;
    /** Milliseconds of the lease. */
    this.lease = options.lease ?? 30_000;
    if (options.maxHold) this.#until = performance.now() + options.maxHold;
    /** @internal Until when the hold is certain, by `performance.now()`. */
    this.validUntil = Math.min(since + this.lease, this.#until);
  }

  /** The fencing token. Send it with each protected write. Of several keys, that of the first one. */
  get fence() {
    return this.fences[0];
  }

  /** The keys. */
  get keys() {
    return this.#kind.keys;
  }

  /** Who holds. */
  get owner() {
    return this.#owner;
  }

  /** Aborts with a `LockLost` as its reason when the lock is lost. */
  get signal() {
    return this.#lost.signal;
  }

  /** Whether the lock is held as far as this process knows, without asking the server. */
  get isHeld() {
    return !this.#released && !this.signal.aborted && performance.now() < this.validUntil;
  }

  /**
   * Asks the server whether the lock is still held. Call it before each protected step.
   *
   * @throws {LockLost}
   */
  async check() {
    this.signal.throwIfAborted();
    const { family, keys } = this.#kind;
    const ask = (/** @type {Bytes} */ key) => (family === 'LOCK'
      ? this.#links.client.call('LOCK.HELD', [key, this.#owner])
      : this.#links.client.call('SEM.RENEW', [key, this.#owner, 'PX', this.lease])); // there is no SEM.HELD
    if (!this.#holds(await Promise.all(keys.map(ask)))) this.lose();
    this.signal.throwIfAborted();
  }

  /**
   * Sets the lease to end `lease` ms from now. Only a hold without `watchdog` needs this.
   *
   * @param {number} [lease] Milliseconds.
   * @returns {Promise<boolean>} false: the lock is lost.
   */
  async renew(lease = this.lease) {
    CALLS.renew([lease]);
    const sent = performance.now();
    const { family, keys } = this.#kind;
    const renew = (/** @type {Bytes} */ key) => this.#links.client.call(`${family}.RENEW`, [key, this.#owner, 'PX', Math.ceil(lease)]);
    if (!this.#holds(await Promise.all(keys.map(renew)))) this.lose();
    if (this.signal.aborted) return false;
    this.validUntil = sent + lease;
    return true;
  }

  /**
   * Whether the owner still has this hold, if the server reports these fences.
   *
   * @param {(number | null)[]} fences
   */
  #holds(fences) {
    // The server can report the new, larger fence of an upgrade or a downgrade before this process reads its reply.
    return fences.every((fence, at) => fence === this.fences[at] || (this.#isChanging && fence !== null && fence > this.fences[at]));
  }

  /**
   * Sends a command that turns a shared hold into the exclusive one or back. Returns its new fence.
   *
   * @param {() => Promise<number | null>} send
   */
  async #change(send) {
    this.#isChanging = true;
    try {
      const fence = await send();
      if (fence !== null) this.fences = [fence];
      return fence;
    } finally {
      this.#isChanging = false;
    }
  }

  /**
   * Turns a shared hold into the exclusive one, ahead of all waiting clients. The hold gets a new fence.
   *
   * @param {{ wait?: number }} [options] The longest wait in milliseconds, by default 0.
   * @returns {Promise<boolean>} false: other shared holds are left.
   * @throws {Deadlock} Another holder waits for the same.
   */
  async upgrade(options = {}) {
    CALLS.upgrade([], options);
    const { wait = 0 } = options;
    const args = [this.keys[0], this.#owner];
    const { client } = this.#links;
    const fence = await this.#change(() => (wait > 0
      ? client.callBlocking('LOCK.UPGRADE', args, wait === Infinity ? 0 : Math.ceil(wait))
      : client.call('LOCK.UPGRADE', args)));
    return fence !== null;
  }

  /**
   * Turns the exclusive hold into a shared one, and lets other shared holders in.
   *
   * @returns {Promise<boolean>} false: the lock is lost.
   */
  async downgrade() {
    const fence = await this.#change(() => this.#links.client.call('LOCK.DOWNGRADE', [this.keys[0], this.#owner]));
    if (fence === null) this.lose();
    return fence !== null;
  }

  /**
   * Releases the lock. It may be called again.
   *
   * @returns {Promise<boolean>} false: the lock was lost before.
   */
  release() {
    return (this.#released ??= this.#release());
  }

  async #release() {
    const { client } = this.#links;
    await this.#binding?.catch(noop); // it must not acquire after the release
    this.#link.holds.delete(this.id);
    const [title, args] = release(this.#kind, this.id, this.#owner, this.#options.owner !== undefined);
    let mayHaveRun = false; // a repetition finds nothing if the first request released the lock and its reply was lost
    let left;
    try {
      // Not by the user's client: ioredis repeats by itself, and nil would be ambiguous.
      left = commandOf(title).read((await this.#link.send([title, ...args])).reply);
    } catch (error) {
      if (!(error instanceof ConnectionBroken) && !isRedirected(error)) throw error;
      mayHaveRun = error instanceof ConnectionBroken;
      left = await client.call(title, args, true);
    }
    return (mayHaveRun || [left].flat().every((count) => count !== null)) && !this.signal.aborted;
  }

  /** @internal Ends the hold in this process: the server says that it is lost, or the lease may have ended. */
  lose() {
    this.#link.holds.delete(this.id);
    if (!this.#released) this.#lost.abort(new LockLost(`${nameOf(this.#kind)} is lost`));
  }

  /**
   * @internal The server published the loss of a fence. In a cluster, it also does so when the hash slot moves to another node.
   *
   * @param {number} fence That of an upgrade whose reply has not arrived yet is larger than those of this hold.
   */
  hearLost(fence) {
    if (this.#links.client.library.isCluster) this.#follow();
    else if (this.fences.includes(fence) || fence > Math.max(...this.fences)) this.lose();
  }

  /** @internal The watched connection is closed. */
  unwatch() {
    if (this.#options.watchdog === false) return;
    this.#pair = undefined;
    if (this.#options.linger === false) this.lose();
    else if (this.#links.client.library.isCluster) this.#follow(); // another node may have the hash slot now
  }

  /** Looks for this hold on the node that has its hash slot now, as long as its lease is certain. */
  async #follow() {
    if (this.#isFollowing) return;
    this.#isFollowing = true;
    this.#pair = undefined; // the answers of the former node prove nothing
    for (let pause = PAUSE_MS; this.isHeld; pause = Math.min(2 * pause, 1000)) {
      try {
        const now = performance.now();
        const lease = this.#options.watchdog === false ? this.validUntil - now : Math.min(this.lease, this.#until - now);
        // By the user's client, which finds the node.
        if (!await this.renew(Math.max(lease, 1)) || await this.#bind()) break;
      } catch {
        // A broken connection, or the slot is on its way.
      }
      await sleep(pause, undefined, { ref: false });
    }
    this.#isFollowing = false;
  }

  /** Binds this hold to the connections of the node that has its key. Returns false if another attempt is needed. */
  async #bind() {
    const link = await this.#links.of(this.keys[0]);
    if (!this.isHeld) return true;
    /** @type {unknown} */
    let pair;
    // An owner of several holds may have sent another id since: a repetition would enter once more. This hold renews itself.
    if (this.#options.owner === undefined) {
      const title = `${this.#kind.family}.${this.#kind.isMany ? 'M' : ''}ACQUIRE`;
      const words = [title, ...head(this.#kind, this.#owner), ...terms(this.#options), 'ID', this.id, 'NOTIFY', link.channel];
      const mailbox = link.listen(this.id);
      const sent = link.send(words).finally(() => link.listenNoMore(this.id, mailbox));
      this.#binding = sent;
      const { reply, pair: bound } = await sent;
      const fences = commandOf(title).read(reply);
      if (fences === null || [fences].flat().some((fence, at) => fence !== this.#granted[at])) {
        this.lose();
        if (fences !== null) await this.#links.client.call(...release(this.#kind, this.id, this.#owner, false)); // another hold
        return true;
      }
      // The server may have published a loss before this process read the reply.
      if (link.pair !== bound || mailbox.lost.length) return false;
      if (this.#options.watchdog !== false) pair = bound;
    }
    if (!this.isHeld) return true;
    this.#link.holds.delete(this.id);
    this.#link = link;
    this.#pair = pair;
    link.keep(this);
    return true;
  }

  /** @internal The server answered on this pair of connections, to a question of that time. @param {unknown} pair @param {number} sent */
  prove(pair, sent) {
    // The server renews at a third of the lease.
    if (this.#pair === pair) this.validUntil = Math.min(Math.max(this.validUntil, sent + this.lease * 2 / 3), this.#until);
  }

  /** @internal Renews a hold whose connection broke: the server does not. */
  async renewUnwatched() {
    if (this.#options.watchdog === false || this.#pair) return;
    const now = performance.now();
    if (this.validUntil - now > this.lease * 2 / 3 || this.validUntil >= this.#until) return;
    await this.renew(Math.max(Math.min(this.lease, this.#until - now), 1)).catch(noop);
  }

  /**
   * `await using` calls it: releases the lock.
   *
   * @throws {LockLost} The lock was lost before.
   */
  async [Symbol.asyncDispose]() {
    if (!await this.release()) throw this.signal.reason ?? new LockLost(`${nameOf(this.#kind)} is lost`);
  }
}

module.exports = { Hold, Links, Lock, checkLock };
