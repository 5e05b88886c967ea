'use strict';
// The check of arguments and options: a wrong or unknown one is an error that names it, and never ignored.

/**
 * What a value can be.
 *
 * @typedef {object} Kind
 * @property {string} is What it must be, for the error.
 * @property {(value: any) => boolean} test
 * @property {boolean} [isRequired]
 * @property {Kinds} [parts] The options that the value has itself.
 */

/** @typedef {Record<string, Kind>} Kinds */

/** @param {string} is @param {(value: any) => boolean} test @returns {Kind} */
const kind = (is, test) => ({ is, test });

/** @param {any} value */
const isName = (value) => typeof value === 'string' || ArrayBuffer.isView(value) || Number.isSafeInteger(value);

/** @param {any} value */
const isObject = (value) => typeof value === 'object' && value !== null;

const NAME = kind('a string, bytes or a whole number', isName);
const NAMES = kind('a list of strings, bytes or whole numbers', (value) => Array.isArray(value) && value.every(isName));
const INTEGER = kind('a whole number', Number.isSafeInteger);
const COUNT = kind('a whole number from 0 on', (value) => Number.isSafeInteger(value) && value >= 0);
const POSITIVE = kind('a whole number from 1 on', (value) => Number.isSafeInteger(value) && value >= 1);
const NUMBER = kind('a number', Number.isFinite);
const MS = kind('a whole number of milliseconds from 0 on', COUNT.test);
const POSITIVE_MS = kind('a whole number of milliseconds from 1 on', POSITIVE.test);
const WAIT_MS = kind('a number of milliseconds from 0 on', (value) => typeof value === 'number' && value >= 0);
const FLAG = kind('true or false', (value) => typeof value === 'boolean');
const FUNCTION = kind('a function', (value) => typeof value === 'function');
const OBJECT = kind('an object', isObject);
const CODEC = kind('a codec', (value) => typeof value?.encode === 'function' && typeof value.decode === 'function');

/** @param {string} item */
const pairs = (item) => kind(`a list of [key, ${item}]`, (value) => Array.isArray(value)
  && value.every((one) => Array.isArray(one) && one.length === 2 && isName(one[0]) && (item === 'rate' || COUNT.test(one[1]))));

/** @param {...unknown} values */
const oneOf = (...values) => kind(values.join(' or '), (value) => values.includes(value));

/** @param {Kind} of @returns {Kind} */
const required = (of) => ({ ...of, isRequired: true });

/** @param {Kinds} parts @returns {Kind} */
const group = (parts) => ({ ...OBJECT, parts });

/** @param {unknown} value */
function shown(value) {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}...` : value);
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value)) return 'a list';
  return typeof value === 'object' && value !== null ? 'an object' : typeof value === 'function' ? 'a function' : String(value);
}

/** @param {string[]} names */
const list = (names) => [names.slice(0, -1).join(', '), names.at(-1)].filter(Boolean).join(' and ');

/** @param {string} what For example "stock.reserve: the option `hold`". @param {Kind} of @param {unknown} value */
function check(what, of, value) {
  if (of.test(value)) return;
  // A number of the wrong range, or a value of the wrong type.
  const Kind = typeof value === 'number' && /number/.test(of.is) ? RangeError : TypeError;
  throw new Kind(`${what} must be ${of.is}, not ${shown(value)}`);
}

/**
 * @param {string} method
 * @param {Kinds} kinds
 * @param {any} options
 */
function checkOptions(method, kinds, options) {
  check(`${method}: the options`, OBJECT, options);
  for (const name of Object.keys(options)) {
    if (!Object.hasOwn(kinds, name)) {
      throw new TypeError(`${method}: the option \`${name}\` is unknown. The options are ${list(Object.keys(kinds))}`);
    }
  }
  for (const [name, of] of Object.entries(kinds)) {
    const value = options[name];
    if (value !== undefined) check(`${method}: the option \`${name}\``, of, value);
    else if (of.isRequired) throw new TypeError(`${method}: the option \`${name}\` is missing`);
    if (value !== undefined && of.parts) checkOptions(`${method}, ${name}`, of.parts, value);
  }
}

/**
 * The check of the calls of a method: of its arguments, all of which are required, and of its options.
 *
 * @param {string} method
 * @param {Kinds} args By name, in their order.
 * @param {Kinds} [kinds] Those of the options.
 * @returns {(args: unknown[], options?: object) => void} It throws a TypeError or a RangeError.
 */
function signature(method, args, kinds = {}) {
  const named = Object.entries(args);
  return (values, options) => {
    for (const [at, [name, of]] of named.entries()) {
      if (values[at] === undefined) throw new TypeError(`${method}: the argument \`${name}\` is missing`);
      check(`${method}: the argument \`${name}\``, of, values[at]);
    }
    if (options !== undefined) checkOptions(method, kinds, options);
  };
}

module.exports = {
  CODEC, COUNT, FLAG, FUNCTION, INTEGER, MS, NAME, NAMES, NUMBER, OBJECT, POSITIVE, POSITIVE_MS, WAIT_MS, checkOptions, group, oneOf, pairs, required,
  signature,
};
