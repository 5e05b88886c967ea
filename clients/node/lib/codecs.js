'use strict';
// How values become bytes, and bytes values.

/**
 * @template T
 * @typedef {object} Codec
 * @property {(value: any) => string | Buffer} encode Throws a TypeError for a value that it cannot store unharmed.
 * @property {(bytes: Buffer) => T} decode
 */

/** @param {unknown} value */
const isBytes = (value) => ArrayBuffer.isView(value) || value instanceof ArrayBuffer;

const strict = new TextDecoder('utf-8', { fatal: true });

/**
 * Stores values as JSON text. Bytes and values without JSON are a TypeError.
 *
 * @type {Codec<any>}
 */
const json = {
  encode(value) {
    if (isBytes(value)) throw new TypeError('The codec `json` stores no bytes: use the codec `buffer`');
    let text;
    try {
      text = JSON.stringify(value);
    } catch (error) { // a BigInt, or an object that contains itself
      if (!(error instanceof TypeError)) throw error;
      throw new TypeError(`The codec \`json\` cannot store this value: ${error.message}`, { cause: error });
    }
    if (text === undefined) throw new TypeError(`The codec \`json\` stores no ${typeof value}`);
    return text;
  },
  decode: (bytes) => JSON.parse(strict.decode(bytes)),
};

/**
 * Stores strings as UTF-8.
 *
 * @type {Codec<string>}
 */
const text = {
  encode(value) {
    if (typeof value !== 'string') throw new TypeError('The codec `text` stores strings only');
    return value;
  },
  decode: (bytes) => strict.decode(bytes),
};

/**
 * Stores bytes, and returns a Buffer.
 *
 * @type {Codec<Buffer>}
 */
const buffer = {
  encode(value) {
    if (typeof value === 'string') return value;
    if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    if (value instanceof ArrayBuffer) return Buffer.from(value);
    throw new TypeError('The codec `buffer` stores bytes and strings only');
  },
  decode: (bytes) => bytes,
};

module.exports = { json, text, buffer };
