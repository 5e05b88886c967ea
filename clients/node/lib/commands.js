'use strict';
// The table of commands: where the key is, how a reply is read, and whether a command may be sent again after a lost reply.

const { isUtf8 } = require('node:buffer');
const { typed } = require('./errors');

/**
 * A key, an owner, an id or another name: text, any bytes, or a whole number.
 *
 * @typedef {string | Uint8Array | number} Bytes A number is its decimal text.
 */

/** @typedef {Bytes} Word */

/** A bulk string as text, or as a Buffer if it is not text. @param {any} value */
const name = (value) => (Buffer.isBuffer(value) ? (isUtf8(value) ? value.toString() : value) : value);

/** @param {any} reply @returns {number | null} */
const integer = (reply) => (reply === null ? null : Number(reply));

/** @param {any} reply @returns {boolean | null} */
const flag = (reply) => (reply === null ? null : Number(reply) > 0);

/** @param {any} reply @returns {(number | null)[] | null} */
const integers = (reply) => (reply === null ? null : reply.map(integer));

/** @param {any} reply @returns {(boolean | null)[]} */
const flags = (reply) => reply.map((/** @type {any} */ one) => {
  if (one instanceof Error) throw typed(one);
  return flag(one);
});

/** `OK`, or null. @param {any} reply @returns {boolean} */
const ok = (reply) => reply !== null;

/**
 * A map by its field names: the server sends a flat array under RESP2, and the clients are told to return one under RESP3.
 *
 * @param {any} reply
 * @returns {Record<string, any> | null}
 */
function map(reply) {
  if (reply === null) return null;
  /** @type {Record<string, any>} */
  const fields = {};
  for (let at = 0; at < reply.length; at += 2) {
    const value = reply[at + 1];
    fields[String(reply[at])] = Array.isArray(value) ? value.map(map) : name(value);
  }
  return fields;
}

/** @param {any} reply */
const raw = (reply) => reply;

/** A name and a number after it: `[state, value, n]`. @param {any} reply */
const state = (reply) => [String(reply[0]), reply[1], Number(reply[2])];

/**
 * @typedef {object} Command
 * @property {number} key The position of the first key after the name; -1: none.
 * @property {(reply: any) => any} read
 * @property {boolean} repeat Whether a repetition after a lost reply is safe, whatever the arguments are and whatever other clients
 *   did meanwhile: a repetition must not undo it.
 */

/** @returns {Command} */
const command = (/** @type {Command['read']} */ read, repeat = true, key = 0) => ({ key, read, repeat });

/** @type {Record<string, Command>} */
const COMMANDS = {
  'LOCK.ACQUIRE': command(integer, false),
  'LOCK.RELEASE': command(integer, false),
  'LOCK.RENEW': command(integer),
  'LOCK.UPGRADE': command(integer),
  'LOCK.DOWNGRADE': command(integer),
  'LOCK.MACQUIRE': command(integers, false, 1),
  'LOCK.MRELEASE': command(integers, false, 1),
  'LOCK.CANCEL': command(flag),
  'LOCK.HELD': command(integer),
  'LOCK.INFO': command(map),
  'LOCK.GUARD': command(flag),
  'SEM.ACQUIRE': command(integer, false),
  'SEM.RELEASE': command(integer, false),
  'SEM.RENEW': command(integer),
  'SEM.MACQUIRE': command(integers, false, 1),
  'SEM.MRELEASE': command(integers, false, 1),
  'SEM.CANCEL': command(flag),
  'SEM.INFO': command(map),

  'STOCK.SET': command(ok, false),
  'STOCK.ADD': command(integer, false),
  'STOCK.DEDUCT': command(integer, false),
  'STOCK.RESERVE': command(integer),
  'STOCK.CONFIRM': command(integer),
  'STOCK.CANCEL': command(integer),
  'STOCK.MDEDUCT': command(integers, false, 1),
  'STOCK.MRESERVE': command(integers, true, 1),
  'STOCK.MCONFIRM': command(integers, true, 1),
  'STOCK.MCANCEL': command(integers, true, 1),
  'STOCK.GET': command(integer),
  'STOCK.MGET': command(integers),
  'STOCK.ORDER': command(map),
  'STOCK.INFO': command(map),
  'STOCK.IMPORT': command(integer, false),

  'RATE.GCRA': command(integers, false),
  'RATE.WINDOW': command(integers, false),
  'RATE.TIERS': command(integers, false),
  'RATE.MGCRA': command(integers, false, 1),
  'RATE.CHARGE': command(flag, false),
  'RATE.REFUND': command(flag, false),
  'RATE.ONCE': command(flag, false),

  'CACHE.GET': command(raw),
  'CACHE.FETCH': command(state),
  'CACHE.SET': command(flag, false),
  'CACHE.SETNULL': command(flag, false),
  'CACHE.DEL': command(flag),
  'CACHE.FAIL': command(flag),
  'CACHE.INFO': command(map),
  'CACHE.BREAKER': command((reply) => (Array.isArray(reply) ? map(reply) : flag(reply)), false, -1),

  'ONCE.BEGIN': command(state),
  'ONCE.DONE': command(flag),
  'ONCE.FAIL': command(flag),
  'ONCE.INFO': command(map),

  'DELAY.SET': command(ok, false),
  'DELAY.ADD': command(flag, false),
  'DELAY.CANCEL': command(integer, false),
  'DELAY.GET': command(raw),
  'DELAY.RANGE': command((reply) => reply.map((/** @type {any} */ [id, ms]) => ({ id: name(id), ms: Number(ms) }))),
  'DELAY.INFO': command(map),

  'BF.RESERVE': command(ok, false),
  'BF.ADD': command(flag),
  'BF.MADD': command(flags),
  'BF.EXISTS': command(flag),
  'BF.MEXISTS': command(flags),
  'BF.CARD': command(integer),
  'BF.INFO': command(map),
  'BF.MERGE': command(ok, false),
  'CF.RESERVE': command(ok, false),
  'CF.ADD': command(flag, false),
  'CF.ADDNX': command(flag, false),
  'CF.EXISTS': command(flag),
  'CF.MEXISTS': command(flags),
  'CF.COUNT': command(integer),
  'CF.DEL': command(flag, false),
  'CF.INFO': command(map),
};

/** A command that the table lacks is sent once, its first argument is its key, and its reply has Buffers. */
const OTHER = command(raw, false);

/** @param {string} title */
const commandOf = (title) => COMMANDS[title] ?? OTHER;

/**
 * The words of a command as both libraries send them unharmed: strings and Buffers.
 *
 * @param {string} title The name of the command.
 * @param {Word[]} args
 * @returns {(string | Buffer)[]}
 */
const encode = (title, args) => [...title.split(' '), ...args.map((word, at) => {
  if (typeof word === 'string' || Buffer.isBuffer(word)) return word;
  if (ArrayBuffer.isView(word)) return Buffer.from(word.buffer, word.byteOffset, word.byteLength);
  if (typeof word === 'number') return String(word);
  const what = word === null ? 'null' : typeof word;
  throw new TypeError(`${title}: argument ${at + 1} must be a string, bytes or a number, not ${what}`);
})];

/**
 * One name for equal keys, whether they are strings, bytes or numbers.
 *
 * @param {Bytes} key
 * @returns {string}
 */
function keyName(key) {
  if (typeof key === 'string' || typeof key === 'number') return String(key);
  const bytes = Buffer.from(key.buffer, key.byteOffset, key.byteLength);
  return isUtf8(bytes) ? bytes.toString() : `\0bytes:${bytes.toString('latin1')}`;
}

module.exports = { COMMANDS, commandOf, encode, keyName, map, name };
