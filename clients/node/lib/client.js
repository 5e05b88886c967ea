'use strict';
// Sends commands through the user's client, through connections that may block, and repeats what is safe to repeat.

const { setTimeout: sleep } = require('node:timers/promises');
const { commandOf, encode } = require('./commands');
const { ConnectionBroken, typed } = require('./errors');
const { libraryOf } = require('./libraries');
const { span } = require('./tracing');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */
/** @typedef {import('./libraries').Connection} Connection */

/** Attempts for a command that is safe to repeat, and the pause before each next one, in milliseconds. */
const ATTEMPTS = 6;
const PAUSE_MS = 50;

/** The largest number of connections to one server that wait in a BLOCK. More callers wait for a connection. */
const BLOCKED_CONNECTIONS = 8;

/**
 * Calls `ask` again while it fails by a broken connection.
 *
 * @template T
 * @param {(attempt: number) => Promise<T>} ask
 * @returns {Promise<T>}
 */
async function again(ask) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask(attempt);
    } catch (error) {
      if (!(error instanceof ConnectionBroken) || attempt === ATTEMPTS) throw error;
      await sleep(PAUSE_MS * attempt);
    }
  }
}

/** Connections to one server, each for one caller at a time. */
class Pool {
  /** @param {() => Promise<Connection>} connect */
  constructor(connect) {
    this.connect = connect;
    /** @type {Connection[]} */
    this.idle = [];
    this.used = 0;
    /** @type {(() => void)[]} */
    this.queue = [];
    /** @type {Set<Connection>} */
    this.open = new Set();
  }

  /**
   * @template T
   * @param {(connection: Connection) => Promise<T>} work
   * @returns {Promise<T>}
   */
  async use(work) {
    if (this.used >= BLOCKED_CONNECTIONS) await new Promise((resolve) => this.queue.push(() => resolve(undefined)));
    else this.used += 1;
    /** @type {Connection | undefined} */
    let connection;
    try {
      connection = this.idle.pop() ?? (await this.add());
      return await work(connection);
    } finally {
      if (connection && this.open.has(connection)) this.idle.push(connection);
      const next = this.queue.shift();
      if (next) next(); // it takes this place
      else this.used -= 1;
    }
  }

  async add() {
    const connection = await this.connect();
    this.open.add(connection);
    connection.onClose(() => {
      this.open.delete(connection);
      this.idle = this.idle.filter((other) => other !== connection);
    });
    return connection;
  }

  close() {
    for (const connection of this.open) connection.close();
  }
}

/** What all families send their commands through. */
class Client {
  /** @param {any} client @param {number} timeout */
  constructor(client, timeout) {
    this.library = libraryOf(client, timeout);
    this.timeout = timeout;
    /** @type {Map<any, Pool>} */
    this.pools = new Map();
  }

  /**
   * Sends a command and returns its reply, read by the table of commands.
   *
   * @param {string} title
   * @param {Word[]} args
   * @param {boolean} [repeat] Whether to send it again after a broken connection.
   * @returns {Promise<any>}
   */
  call(title, args, repeat) {
    const { key, library } = this.#plan(title, args);
    return this.#ask(title, args, repeat, (words) => library.send(key, words));
  }

  /**
   * Sends a command that may block, on a connection that no other caller uses meanwhile.
   *
   * @param {string} title
   * @param {Word[]} args
   * @param {number} block Milliseconds of its BLOCK, which this function appends; 0: without limit.
   * @returns {Promise<any>}
   */
  callBlocking(title, args, block) {
    const { key, library } = this.#plan(title, args);
    return this.#ask(title, [...args, 'BLOCK', block], undefined, async (words) => {
      const node = await library.node(/** @type {Bytes} */ (key));
      let pool = this.pools.get(node);
      if (!pool) this.pools.set(node, pool = new Pool(() => library.connect(node)));
      try {
        return await pool.use(async (connection) => {
          const silence = block ? setTimeout(connection.close, block + this.timeout) : undefined;
          return connection.send(words).finally(() => clearTimeout(silence));
        });
      } catch (error) {
        const { message } = /** @type {Error} */ (error);
        if (!/^(MOVED|ASK|UNBLOCKED) /.test(message)) throw error;
        pool.close(); // another server has the key now
        return library.send(key, words);
      }
    });
  }

  /** @param {string} title @param {Word[]} args */
  #plan(title, args) {
    const at = commandOf(title).key;
    const key = at < 0 ? undefined : args[at];
    return { key: typeof key === 'number' ? String(key) : key, library: this.library };
  }

  /**
   * @param {string} title
   * @param {Word[]} args
   * @param {boolean | undefined} repeat
   * @param {(words: (string | Buffer)[]) => Promise<any>} send
   */
  async #ask(title, args, repeat, send) {
    const { read, repeat: isSafe } = commandOf(title);
    const words = encode(title, args);
    const ask = () => span(title, { 'db.system.name': 'redis', 'db.operation.name': title }, async () => {
      try {
        return await send(words);
      } catch (error) {
        throw typed(error);
      }
    });
    return read(await (repeat ?? isSafe ? again(ask) : ask()));
  }

  close() {
    for (const pool of this.pools.values()) pool.close();
    this.pools.clear();
  }
}

module.exports = { Client, again };
