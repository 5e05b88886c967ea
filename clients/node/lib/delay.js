'use strict';
// Delay queues: messages that the server appends to a stream at their time.

const { name } = require('./commands');
const { COUNT, MS, NAME, OBJECT, POSITIVE, oneOf, required, signature } = require('./options');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {import('./commands').Word} Word */

const ONLY = { only: oneOf('NX', 'XX') };
const TIME = { is: 'a Date or a whole number of milliseconds from 0 on', test: (/** @type {any} */ value) => MS.test(Number(value)) };
const MESSAGE = { key: NAME, id: NAME, values: OBJECT };
const CALLS = {
  create: signature('delay.create', { key: NAME, stream: NAME }, { maxLength: POSITIVE }),
  addAfter: signature('delay.add', MESSAGE, { after: required(MS), ...ONLY }),
  addAt: signature('delay.add', MESSAGE, { at: required(TIME), ...ONLY }),
  cancel: signature('delay.cancel', { key: NAME }),
  get: signature('delay.get', { key: NAME, id: NAME }),
  range: signature('delay.range', { key: NAME, count: COUNT }),
  info: signature('delay.info', { key: NAME }),
};

class Delay {
  #client;

  /** @internal @param {import('./client').Client} client */
  constructor(client) {
    this.#client = client;
  }

  /**
   * Creates a queue that delivers to a stream, or changes the stream of a queue. Not repeated after a lost reply.
   *
   * @param {Bytes} key
   * @param {Bytes} stream In the hash slot of the key.
   * @param {{ maxLength?: number }} [options] The approximate length of the stream.
   */
  async create(key, stream, options = {}) {
    CALLS.create([key, stream], options);
    const { maxLength } = options;
    await this.#client.call('DELAY.SET', [key, 'STREAM', stream, ...(maxLength === undefined ? [] : ['MAXLEN', maxLength])]);
  }

  /**
   * Schedules a message. Not repeated after a lost reply, because the message may be delivered or canceled meanwhile. If the
   * caller repeats it, the worker that reads the stream makes its work idempotent by the id.
   *
   * @param {Bytes} key
   * @param {Bytes} id
   * @param {Record<string, Word>} values The fields of the stream's entry.
   * @param {{ after: number, only?: 'NX' | 'XX' } | { at: number | Date, only?: 'NX' | 'XX' }} when Milliseconds from now, or a
   *   point in time. NX adds only, XX replaces only.
   * @returns {Promise<boolean | null>} true: new; false: it replaced a message with this id; null: `only` forbids it.
   * @throws {NoSuchQueue}
   */
  async add(key, id, values, when) {
    const isAt = Object.hasOwn(when ?? {}, 'at');
    (isAt ? CALLS.addAt : CALLS.addAfter)([key, id, values], when ?? {});
    const time = 'at' in when ? ['PXAT', Number(when.at)] : ['PX', when.after];
    const only = when.only ? [when.only] : [];
    return this.#client.call('DELAY.ADD', [key, id, ...time, ...only, 'VALUES', ...Object.entries(values).flat()]);
  }

  /**
   * Removes messages that were not delivered. Not repeated after a lost reply, because the id may be scheduled again meanwhile.
   *
   * @param {Bytes} key
   * @param {Bytes[]} ids
   * @returns {Promise<number>} Their number.
   */
  async cancel(key, ...ids) {
    CALLS.cancel([key]);
    return this.#client.call('DELAY.CANCEL', [key, ...ids]);
  }

  /**
   * A message that was not delivered.
   *
   * @param {Bytes} key
   * @param {Bytes} id
   * @returns {Promise<{ ms: number, values: Record<string, string | Buffer> } | null>} `ms`: the time that is left.
   */
  async get(key, id) {
    CALLS.get([key, id]);
    const reply = await this.#client.call('DELAY.GET', [key, id]);
    if (reply === null) return null;
    const [ms, words] = reply;
    /** @type {Record<string, string | Buffer>} */
    const values = {};
    for (let at = 0; at < words.length; at += 2) values[String(words[at])] = name(words[at + 1]);
    return { ms: Number(ms), values };
  }

  /** The next messages, the soonest first. @param {Bytes} key @param {number} count @returns {Promise<{ id: string | Buffer, ms: number }[]>} */
  async range(key, count) {
    CALLS.range([key, count]);
    return this.#client.call('DELAY.RANGE', [key, count]);
  }

  /** The map of `DELAY.INFO`; null: no such queue. @param {Bytes} key @returns {Promise<Record<string, any> | null>} */
  async info(key) {
    CALLS.info([key]);
    return this.#client.call('DELAY.INFO', [key]);
  }
}

module.exports = { Delay };
