'use strict';
// Two connections to one server for the locks of this process: one for requests, which wait without blocking it, and one
// for the messages of the server about them.

const { randomUUID } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { encode } = require('./commands');
const { typed } = require('./errors');
const { answered } = require('./libraries');

/** @typedef {import('./libraries').Connection} Connection */
/** @typedef {import('./commands').Word} Word */
/** @typedef {import('./locks').Hold} Hold */

/** The longest time between two checks of the connection while locks are held, in milliseconds. */
const BEAT_MS = 5000;

/** The pauses between attempts to connect, in milliseconds. */
const PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/** The messages for one request, in the order of their arrival. */
class Mailbox {
  constructor() {
    /** @type {[what: string, fence: number][]} */
    this.messages = [];
    /** @type {(() => void) | undefined} */
    this.wake = undefined;
    /** @type {number[]} The fences whose loss was published. A message can arrive before the reply that has the fence. */
    this.lost = [];
  }

  /** @param {string} what @param {number} fence */
  push(what, fence) {
    if (what === 'lost') this.lost.push(fence);
    else this.messages.push([what, fence]);
    this.wake?.();
  }

  /**
   * The next message, or `nothing` after `ms`.
   *
   * @param {number} ms
   * @returns {Promise<[what: string, fence: number]>}
   */
  async next(ms) {
    if (!this.messages.length) {
      /** @type {NodeJS.Timeout | undefined} */
      let timer;
      await new Promise((resolve) => {
        timer = setTimeout(resolve, ms);
        this.wake = () => resolve(undefined);
      });
      clearTimeout(timer);
      this.wake = undefined;
    }
    return this.messages.shift() ?? ['nothing', 0];
  }
}

/** A pair of connections. If one closes, the other one does. */
class Pair {
  /** @param {Connection} requests @param {Connection} messages */
  constructor(requests, messages) {
    this.requests = requests;
    this.messages = messages;
  }

  close() {
    this.requests.close();
    this.messages.close();
  }
}

class Link {
  channel = `sluice:${randomUUID()}`;

  /** @type {Map<string, Mailbox>} By the id of the request. */
  waiting = new Map();

  /** @type {Map<string, Hold>} By the id of the request. */
  holds = new Map();

  /** @type {Pair | undefined} */
  pair;

  /** @type {Promise<Pair> | undefined} */
  #opening;

  /** @type {NodeJS.Timeout | undefined} */
  #timer;

  #isBeating = false;
  #beatAt = 0;
  #isClosed = false;

  /** @param {() => Promise<Connection>} connect @param {number} timeout */
  constructor(connect, timeout) {
    this.connect = connect;
    this.timeout = timeout;
  }

  /**
   * Sends a request on the connection that the server watches. Returns the reply and the pair that sent it.
   *
   * @param {Word[]} words
   */
  async send(words) {
    const pair = await this.open();
    try { // no request blocks the connection
      return { reply: await answered(pair.requests.send(encode(String(words[0]), words.slice(1))), this.timeout, () => pair.close()), pair };
    } catch (error) {
      throw typed(error);
    }
  }

  /** @returns {Promise<Pair>} */
  async open() {
    if (this.pair) return this.pair;
    this.#opening ??= this.#connect().finally(() => { this.#opening = undefined; });
    return this.#opening;
  }

  async #connect() {
    /** @type {Connection | undefined} */
    let messages;
    try {
      messages = await this.connect();
      const subscribed = messages.subscribe(this.channel, (message) => this.#hear(message));
      await answered(subscribed, this.timeout, messages.close);
      const pair = new Pair(await this.connect(), messages);
      pair.requests.onClose(() => this.#lose(pair));
      pair.messages.onClose(() => this.#lose(pair));
      this.pair = pair;
      if (this.#isClosed) pair.close();
      return pair;
    } catch (error) {
      messages?.close();
      throw typed(error);
    }
  }

  /** @param {Pair} pair */
  #lose(pair) {
    if (this.pair !== pair) return;
    this.pair = undefined;
    pair.close();
    for (const mailbox of this.waiting.values()) mailbox.push('again', 0);
    for (const hold of this.holds.values()) hold.unwatch();
    this.#recover();
  }

  /** Connects again while something waits or is held. */
  async #recover() {
    for (let pause = PAUSE_MS; !this.#isClosed && !this.pair && (this.holds.size || this.waiting.size); pause *= 2) {
      try {
        await this.open();
        this.#beat();
      } catch {
        await sleep(Math.min(pause, LONGEST_PAUSE_MS), undefined, { ref: false });
      }
    }
  }

  /** @param {string} message */
  #hear(message) {
    const [, what, fence, id] = /^(\S+) (\d+) (.*)$/s.exec(message) ?? [];
    this.waiting.get(id)?.push(what, Number(fence));
    if (what === 'lost') this.holds.get(id)?.hearLost(Number(fence));
  }

  /** Messages for a request, from now on. @param {string} id */
  listen(id) {
    const mailbox = new Mailbox();
    this.waiting.set(id, mailbox);
    return mailbox;
  }

  /** Ends `listen`. @param {string} id @param {Mailbox | undefined} mailbox */
  listenNoMore(id, mailbox) {
    if (this.waiting.get(id) === mailbox) this.waiting.delete(id);
  }

  /** @param {Hold} hold */
  keep(hold) {
    this.holds.set(hold.id, hold);
    this.#schedule(hold.lease);
  }

  /** @param {number} [lease] That of a new hold, in milliseconds. */
  #schedule(lease = Infinity) {
    let soonest = lease;
    if (!this.#timer) for (const hold of this.holds.values()) soonest = Math.min(soonest, hold.lease);
    const period = Math.max(Math.min(soonest / 6, BEAT_MS), 10);
    const at = performance.now() + period;
    if (!this.holds.size || (this.#timer && at >= this.#beatAt)) return;
    clearTimeout(this.#timer);
    this.#beatAt = at;
    this.#timer = setTimeout(() => this.#tick(), period).unref();
  }

  #tick() {
    this.#timer = undefined;
    const now = performance.now();
    for (const hold of this.holds.values()) if (now >= hold.validUntil) hold.lose();
    this.#beat();
    this.#schedule();
  }

  /**
   * Proves that the server still watches the connection and that its messages arrive, and renews the holds that it does not watch.
   */
  async #beat() {
    if (this.#isBeating || !this.pair || !this.holds.size) return;
    this.#isBeating = true;
    const sent = performance.now();
    const { pair } = this;
    const holds = [...this.holds.values()];
    const longest = Math.min(BEAT_MS * 3, ...holds.map((hold) => hold.lease / 2));
    try {
      const pings = Promise.all([pair.requests.ping(), pair.messages.ping(), ...holds.map((hold) => hold.renewUnwatched())]);
      await answered(pings, longest, () => pair.close()); // instead of a silent connection, another one may answer
      for (const hold of holds) hold.prove(pair, sent);
    } catch {
      // The connection is closed, or the next beat tries again.
    } finally {
      this.#isBeating = false;
    }
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.pair?.close();
  }
}

module.exports = { Link, Mailbox };
