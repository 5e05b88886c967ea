'use strict';
// The interface of the npm package `redlock` (version 5) over LOCK.*. The README lists the differences.

const { randomBytes } = require('node:crypto');
const { EventEmitter } = require('node:events');
const { setTimeout: sleep } = require('node:timers/promises');
const { WrongType } = require('./errors');
const { Sluice } = require('./index');

/** @typedef {import('./locks').Hold} Hold */

/**
 * @typedef {object} Settings
 * @property {number} driftFactor The part of the duration by which a lock ends earlier in this process. By default 0.01.
 * @property {number} retryCount By default 10; -1: without limit.
 * @property {number} retryDelay Milliseconds. By default 200.
 * @property {number} retryJitter Milliseconds. By default 100.
 * @property {number} automaticExtensionThreshold Milliseconds before its end at which `using` extends a lock. By default 500.
 */

/**
 * @typedef {object} ExecutionStats
 * @property {number} membershipSize
 * @property {number} quorumSize
 * @property {Set<any>} votesFor The clients.
 * @property {Map<any, Error>} votesAgainst
 */

/** @typedef {{ attempts: ReadonlyArray<Promise<ExecutionStats>>, start: number }} ExecutionResult */

/** @typedef {AbortSignal & { error?: Error }} RedlockAbortSignal */

/** The longest lease of the server, in milliseconds. */
const LONGEST_MS = 315_360_000_000;

/** The longest time for the vote of one of several servers, in milliseconds: one that is silent must not stop the others. */
const VOTE_MS = 2000;

/** How long a decision waits for the other votes, in milliseconds. */
const LATE_MS = 200;

/**
 * @param {Promise<void>} vote
 * @returns {Promise<void>}
 */
async function inTime(vote) {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`The server did not answer within ${VOTE_MS} ms`)), VOTE_MS);
  });
  await Promise.race([vote, late]).finally(() => clearTimeout(timer));
}

/** @type {Readonly<Settings>} */
const DEFAULTS = Object.freeze({
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
});

/** Another lock has one of the resources. */
class ResourceLockedError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'ResourceLockedError';
  }
}

/** No quorum of the servers agreed. */
class ExecutionError extends Error {
  /** @param {string} message @param {ReadonlyArray<Promise<ExecutionStats>>} attempts */
  constructor(message, attempts) {
    super(message);
    this.name = 'ExecutionError';
    this.attempts = attempts;
  }
}

/** @param {number} duration */
function checkDuration(duration) {
  if (!Number.isInteger(duration)) throw new Error('Duration must be an integer value in milliseconds.');
  return Math.min(duration, LONGEST_MS);
}

/** The holds of one attempt. */
class Round {
  /** @type {Map<any, Hold>} By client. */
  holds = new Map();

  /** Whether holds that are granted from now on are released at once. */
  isOver = false;

  async end() {
    this.isOver = true;
    await Promise.allSettled([...this.holds.values()].map((hold) => hold.release()));
  }
}

/** An acquired lock. */
class Lock {
  /**
   * @internal
   * @param {Redlock} redlock
   * @param {string[]} resources
   * @param {string} value
   * @param {ReadonlyArray<Promise<ExecutionStats>>} attempts
   * @param {number} expiration
   * @param {Round} round
   */
  constructor(redlock, resources, value, attempts, expiration, round) {
    this.redlock = redlock;
    this.resources = resources;
    /** The owner. */
    this.value = value;
    this.attempts = attempts;
    /** Unix time in milliseconds. */
    this.expiration = expiration;
    /** @internal */
    this.round = round;
  }

  /** The fencing tokens, one for each resource: of a single server they only grow. */
  get fences() {
    return [...this.round.holds.values()][0].fences;
  }

  /** @returns {Promise<ExecutionResult>} */
  release() {
    return this.redlock.release(this);
  }

  /** @param {number} duration Milliseconds from now. @returns {Promise<Lock>} */
  extend(duration) {
    return this.redlock.extend(this, duration);
  }
}

/**
 * Locks of one server, or of a quorum of several independent servers.
 *
 * Emits `error` for each vote against, also where the quorum agrees.
 */
class Redlock extends EventEmitter {
  /** @type {Map<any, Sluice>} By client. */
  #servers;

  /**
   * @param {Iterable<any>} clients Clients of ioredis, iovalkey or node-redis: one for each independent server or cluster.
   * @param {Partial<Settings>} [settings]
   */
  constructor(clients, settings = {}) {
    super();
    this.on('error', () => {}); // an event without listeners would end the process
    this.clients = new Set(clients);
    if (!this.clients.size) throw new Error('Redlock must be instantiated with at least one redis client.');
    this.#servers = new Map([...this.clients].map((client) => [client, new Sluice(client)]));
    /** @type {Settings} */
    this.settings = { ...DEFAULTS, ...settings };
  }

  /** Closes the connections of this object. The clients stay open. */
  async close() {
    await Promise.all([...this.#servers.values()].map((sluice) => sluice.close()));
  }

  /** Closes all connections, those of the clients, too. */
  async quit() {
    await Promise.all([...this.#servers].map(async ([client, sluice]) => {
      await sluice.close();
      await (client.quit ?? client.close).call(client);
    }));
  }

  /**
   * Acquires all resources, or rejects.
   *
   * @param {string[]} resources
   * @param {number} duration Milliseconds; a longer one than ten years counts as ten years.
   * @param {Partial<Settings>} [settings]
   * @returns {Promise<Lock>}
   * @throws {ExecutionError}
   */
  async acquire(resources, duration, settings) {
    const lease = checkDuration(duration);
    const owner = randomBytes(16).toString('hex');
    const all = { ...this.settings, ...settings };
    const isAlone = this.clients.size === 1;
    // On one server, the request waits in the queue for as long as the retries would take. On several, two requests could each
    // have a minority and wait for each other, so all are withdrawn before the next attempt.
    const wait = isAlone ? (all.retryCount === -1 ? Infinity : all.retryCount * all.retryDelay) : 0;
    let round = new Round();
    const vote = async (/** @type {any} */ client) => {
      const current = round;
      const keys = resources.length === 1 ? resources[0] : resources;
      const lock = /** @type {Sluice} */ (this.#servers.get(client)).lock(keys, { owner, lease, wait, watchdog: false });
      const hold = await lock.acquire().catch((error) => {
        if (!(error instanceof WrongType)) throw error;
        return null; // a lock of the original redlock: a string
      });
      if (!hold) throw locked(0, resources);
      current.holds.set(client, hold);
      if (current.isOver) await hold.release(); // the others have decided without this vote
    };
    const withdraw = async () => {
      const old = round;
      round = new Round();
      await old.end();
    };
    const { attempts } = await this.#execute(vote, all, withdraw, isAlone);
    const ends = [...round.holds.values()].map((hold) => hold.validUntil).sort((one, other) => other - one);
    return this.#lock(resources, owner, attempts, round, ends[this.#quorum - 1], duration, all);
  }

  /**
   * Releases a lock on all servers.
   *
   * @param {Lock} lock
   * @param {Partial<Settings>} [settings]
   * @returns {Promise<ExecutionResult>}
   * @throws {ExecutionError} A quorum of the servers had lost it.
   */
  async release(lock, settings) {
    lock.expiration = 0;
    lock.round.isOver = true;
    return this.#execute(async (client) => {
      if (!await lock.round.holds.get(client)?.release()) throw locked(0, lock.resources);
    }, { ...this.settings, ...settings });
  }

  /**
   * Sets the end of a lock to `duration` ms from now.
   *
   * @param {Lock} lock It is invalid afterwards: use the returned one.
   * @param {number} duration Milliseconds.
   * @param {Partial<Settings>} [settings]
   * @returns {Promise<Lock>}
   * @throws {ExecutionError} A quorum of the servers has lost it.
   */
  async extend(lock, duration, settings) {
    const lease = checkDuration(duration);
    if (lock.expiration < Date.now()) throw new ExecutionError('Cannot extend an already-expired lock.', []);
    const all = { ...this.settings, ...settings };
    let sent = 0;
    const { attempts } = await this.#execute(async (client) => {
      sent = performance.now();
      if (!await lock.round.holds.get(client)?.renew(lease)) throw locked(0, lock.resources);
    }, all);
    lock.expiration = 0;
    return this.#lock(lock.resources, lock.value, attempts, lock.round, sent + lease, duration, all);
  }

  /**
   * Calls `routine` with a lock that is extended until it ends.
   *
   * @template T
   * @overload
   * @param {string[]} resources
   * @param {number} duration Milliseconds.
   * @param {Partial<Settings>} settings
   * @param {(signal: RedlockAbortSignal) => Promise<T>} routine
   * @returns {Promise<T>}
   */
  /**
   * @template T
   * @overload
   * @param {string[]} resources
   * @param {number} duration Milliseconds.
   * @param {(signal: RedlockAbortSignal) => Promise<T>} routine `signal` aborts when the lock is lost; `signal.error` says why.
   * @returns {Promise<T>}
   */
  /**
   * @param {string[]} resources
   * @param {number} duration
   * @param {any} settings
   * @param {any} [routine]
   */
  async using(resources, duration, settings, routine) {
    if (typeof settings === 'function') [settings, routine] = [{}, settings];
    if (typeof routine !== 'function') throw new Error('INVARIANT: routine is not a function.');
    checkDuration(duration);
    const all = { ...this.settings, ...settings };
    if (all.automaticExtensionThreshold > duration - 100) {
      throw new Error('A lock `duration` must be at least 100ms greater than the `automaticExtensionThreshold` setting.');
    }
    const controller = new AbortController();
    const signal = /** @type {RedlockAbortSignal} */ (controller.signal);
    const abort = (/** @type {Error} */ error) => {
      signal.error ??= error;
      controller.abort();
    };
    let lock = await this.acquire(resources, duration, settings);
    const heldBy = [...lock.round.holds.values()];
    for (const hold of heldBy) {
      hold.signal.addEventListener('abort', () => {
        if (heldBy.filter((one) => !one.signal.aborted).length < this.#quorum) abort(hold.signal.reason);
      });
    }
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    let extension = Promise.resolve();
    const schedule = () => {
      timer = setTimeout(() => { extension = extend(); }, lock.expiration - Date.now() - all.automaticExtensionThreshold);
    };
    const extend = async () => {
      try {
        lock = await this.extend(lock, duration, settings);
        schedule();
      } catch (error) {
        abort(/** @type {Error} */ (error));
      }
    };
    schedule();
    try {
      return await routine(signal);
    } finally {
      clearTimeout(timer);
      await extension;
      clearTimeout(timer); // the extension may have set another one
      await lock.release();
    }
  }

  get #quorum() {
    return Math.floor(this.clients.size / 2) + 1;
  }

  /**
   * @param {string[]} resources
   * @param {string} value
   * @param {ReadonlyArray<Promise<ExecutionStats>>} attempts
   * @param {Round} round
   * @param {number} end By `performance.now()`.
   * @param {number} duration
   * @param {Settings} settings
   */
  #lock(resources, value, attempts, round, end, duration, { driftFactor }) {
    const drift = Math.round(driftFactor * Math.min(duration, LONGEST_MS)) + 2;
    return new Lock(this, resources, value, attempts, Date.now() + Math.floor(end - performance.now()) - drift, round);
  }

  /**
   * Lets all clients vote until a quorum is for it or the attempts are used up.
   *
   * @param {(client: any) => Promise<void>} vote
   * @param {Settings} settings
   * @param {() => Promise<void>} [withdraw] Called after each attempt without a quorum.
   * @param {boolean} [isPatient] Whether one vote lasts as long as all attempts.
   * @returns {Promise<ExecutionResult>}
   */
  async #execute(vote, { retryCount, retryDelay, retryJitter }, withdraw, isPatient) {
    const most = retryCount === -1 ? Infinity : retryCount + 1;
    /** @type {Promise<ExecutionStats>[]} */
    const attempts = [];
    for (let attempt = 1; ; attempt++) {
      const start = Date.now();
      /** @type {ExecutionStats} */
      const stats = { membershipSize: this.clients.size, quorumSize: this.#quorum, votesFor: new Set(), votesAgainst: new Map() };
      let decide = () => {};
      const decided = new Promise((resolve) => { decide = () => resolve(undefined); });
      const all = Promise.all([...this.clients].map(async (client) => {
        try {
          await (this.clients.size === 1 ? vote(client) : inTime(vote(client)));
          stats.votesFor.add(client);
        } catch (error) {
          stats.votesAgainst.set(client, /** @type {Error} */ (error));
          this.emit('error', error);
        }
        if (Math.max(stats.votesFor.size, stats.votesAgainst.size) >= stats.quorumSize) decide();
      })).then(() => stats);
      all.then(decide);
      await decided;
      await Promise.race([all, sleep(LATE_MS, undefined, { ref: false })]);
      if (most !== Infinity || !attempts.length) attempts.push(all);
      if (stats.votesFor.size >= stats.quorumSize) return { attempts, start };
      await withdraw?.();
      if (isPatient && most !== Infinity) while (attempts.length < most) attempts.push(all);
      if (attempt >= most || attempts.length >= most) {
        throw new ExecutionError('The operation was unable to achieve a quorum during its retry window.', attempts);
      }
      await sleep(Math.max(0, retryDelay + Math.floor((Math.random() * 2 - 1) * retryJitter)));
    }
  }
}

/** @param {number} count @param {string[]} resources */
function locked(count, { length }) {
  return new ResourceLockedError(`The operation was applied to: ${count} of the ${length} requested resources.`);
}

module.exports = Redlock;
module.exports.default = Redlock;
module.exports.Lock = Lock;
module.exports.ExecutionError = ExecutionError;
module.exports.ResourceLockedError = ResourceLockedError;
