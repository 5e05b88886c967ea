'use strict';
// What this package needs of a client library: to send a command where its key is, and to open connections beside the client.

const { ConnectionBroken, typed } = require('./errors');

/** @typedef {import('./commands').Bytes} Bytes */
/** @typedef {(string | Buffer)[]} Words */

/**
 * A connection beside the user's client, for one purpose. It never reconnects: its owner opens another one.
 *
 * @typedef {object} Connection
 * @property {(words: Words) => Promise<any>} send
 * @property {(channel: string, listener: (message: string) => void) => Promise<unknown>} subscribe
 * @property {() => Promise<unknown>} ping Also of a connection that has subscribed.
 * @property {(listener: () => void) => void} onClose Calls the listener once, when the connection closes or is closed already.
 * @property {() => void} close
 */

/**
 * A connection whose server tells of each change of the keys that it has read.
 *
 * @typedef {object} Tracked
 * @property {(words: Words) => Promise<any>} send
 * @property {() => Promise<unknown>} ping Rejects if the messages of the server do not arrive any more.
 * @property {(listener: () => void) => void} onClose
 * @property {() => void} close
 */

/**
 * @typedef {object} Library
 * @property {boolean} isCluster
 * @property {(key: Bytes | undefined, words: Words) => Promise<any>} send
 * @property {(key: Bytes) => Promise<any>} node The client of the server that has the key. The same server is the same object.
 * @property {(node: any) => Promise<Connection>} connect
 * @property {(node: any, invalidate: (key: Buffer | null) => void) => Promise<Tracked>} track
 */

/**
 * Waits for an answer on a connection. If none arrives within `ms` milliseconds, closes the connection.
 *
 * @template T
 * @param {Promise<T>} answer
 * @param {number} ms
 * @param {() => void} close
 * @param {string} [what] The word for the awaited event in the error message.
 * @returns {Promise<T>}
 */
async function answered(answer, ms, close, what = 'answer') {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => {
      close();
      reject(new ConnectionBroken(`No ${what} within ${ms} ms`)); // has no effect if the library has already reported the end
    }, ms);
  });
  try {
    return /** @type {T} */ (await Promise.race([answer, silence]));
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Waits for a new connection, and closes it if it takes too long. Some libraries do not report the end of a connection that is closed
 * during the connect.
 *
 * @param {Promise<unknown>} connecting
 * @param {number} ms
 * @param {() => void} close
 */
async function waitForConnection(connecting, ms, close) {
  connecting.catch(noop); // it can fail after the timeout, when no caller waits for it
  await answered(connecting, ms, close, 'connection');
}

const noop = () => {};

/**
 * The end of a connection: `closed` closes it and calls the listeners, once. A listener that comes later is called at once.
 *
 * @param {() => void} close
 */
function ending(close) {
  let isClosed = false;
  /** @type {(() => void)[]} */
  const listeners = [];
  return {
    closed: () => {
      if (isClosed) return;
      isClosed = true;
      close();
      for (const listener of listeners) listener();
    },
    onClose: (/** @type {() => void} */ listener) => {
      if (isClosed) listener();
      else listeners.push(listener);
    },
  };
}

/** @type {Uint16Array} */
const CRC16 = new Uint16Array(256).map((_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc;
});

/** The hash slot of a key. @param {Bytes} key */
function slotOf(key) {
  let bytes = Buffer.from(/** @type {any} */ (typeof key === 'number' ? String(key) : key));
  const open = bytes.indexOf('{');
  const close = open < 0 ? -1 : bytes.indexOf('}', open + 1);
  if (close > open + 1) bytes = bytes.subarray(open + 1, close);
  let crc = 0;
  for (const byte of bytes) crc = ((crc << 8) ^ CRC16[(crc >> 8) ^ byte]) & 0xffff;
  return crc & 0x3fff;
}

// The codes of RESP_TYPES: bulk strings as Buffers, maps as flat arrays.
const TYPES = { 36: Buffer, 37: Array };

/** @implements {Library} */
class NodeRedis {
  /** @param {any} client @param {number} timeout */
  constructor(client, timeout) {
    this.client = client;
    this.timeout = timeout;
    this.isCluster = typeof client.nodeClient === 'function';
    this.isSentinel = !this.isCluster && typeof client.getMasterNode === 'function';
    this.isPool = typeof client.execute === 'function';
    /** @type {any} One client of a pool. */
    this.member = undefined;
  }

  /** @param {Bytes | undefined} key @param {Words} words */
  send(key, words) {
    const options = { typeMapping: TYPES };
    if (this.isCluster) return this.client.sendCommand(key, false, words, options);
    if (this.isSentinel) return this.client.sendCommand(false, words, options);
    return this.client.sendCommand(words, options);
  }

  /** @param {Bytes} key */
  async node(key) {
    if (this.isSentinel) return this.client; // each connection looks for the master of that time
    if (this.isPool) return (this.member ??= await this.client.execute((/** @type {any} */ member) => member));
    if (!this.isCluster) return this.client;
    const shard = this.client.slots[slotOf(key)];
    if (!shard) throw new ConnectionBroken('No known node has the hash slot of the key');
    return this.client.nodeClient(shard.master);
  }

  /** A client of the present master, of the pool behind `createSentinel`. @returns {Promise<any>} */
  master() {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new ConnectionBroken(`No master within ${this.timeout} ms`)), this.timeout);
      const found = this.client._execute(false, async (/** @type {any} */ member) => member);
      found.then(resolve, reject).finally(() => clearTimeout(timer));
    });
  }

  /** @param {any} place A client of a server, or of Sentinel. @param {object} [overrides] */
  async duplicate(place, overrides) {
    const node = this.isSentinel ? await this.master() : place;
    const socket = { ...node.options.socket, reconnectStrategy: false, socketTimeout: 0, connectTimeout: this.timeout };
    const own = node.duplicate({ ...overrides, disableOfflineQueue: false, socket });
    own.on('error', noop);
    await waitForConnection(own.connect(), this.timeout, () => own.isOpen && own.destroy());
    return own;
  }

  /** @param {any} own @returns {Connection} */
  connection(own) {
    const { closed, onClose } = ending(() => own.isOpen && own.destroy());
    for (const event of ['error', 'end', 'terminated']) own.on(event, closed);
    return {
      send: (words) => own.sendCommand(words, { typeMapping: TYPES }),
      subscribe: (channel, listener) => own.subscribe(channel, listener),
      ping: () => own.sendCommand(['PING']),
      onClose,
      close: closed,
    };
  }

  /** @param {any} node */
  async connect(node) {
    return this.connection(await this.duplicate(node));
  }

  /** @param {any} node @param {(key: Buffer | null) => void} invalidate @returns {Promise<Tracked>} */
  async track(node, invalidate) {
    // The library sends CLIENT TRACKING ON.
    const own = await this.duplicate(node, { RESP: 3, emitInvalidate: true, clientSideCache: undefined });
    own.on('invalidate', invalidate);
    return this.connection(own);
  }
}

// A command without a limit of time, on a connection that stays closed once it is closed.
const PATIENT = {
  lazyConnect: true,
  retryStrategy: null,
  reconnectOnError: null,
  autoResendUnfulfilledCommands: false,
  enableAutoPipelining: false,
  enableOfflineQueue: true,
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  blockingTimeout: undefined,
  socketTimeout: undefined,
};

/** ioredis and iovalkey. @implements {Library} */
class IoRedis {
  /** @param {any} client @param {number} timeout */
  constructor(client, timeout) {
    this.client = client;
    this.timeout = timeout;
    this.isCluster = client.isCluster === true;
  }

  /** @param {Bytes | undefined} key @param {Words} words @returns {Promise<any>} */
  send(key, [name, ...args]) {
    if (!this.isCluster || key === undefined) return this.client.callBuffer(name, ...args);
    // The library knows no keys of these commands, and would send them to any node first.
    const routed = Object.create(this.client, {
      sendCommand: {
        value: (/** @type {any} */ command, /** @type {any[]} */ ...rest) => {
          command.getKeys = () => [key];
          return this.client.sendCommand(command, ...rest);
        },
      },
    });
    return routed.callBuffer(name, ...args);
  }

  /** @param {Bytes} key */
  async node(key) {
    if (!this.isCluster) return this.client;
    if (this.client.status === 'wait') await this.client.connect();
    const address = this.client.slots[slotOf(key)]?.[0];
    const masters = this.client.nodes('master');
    const nameOf = (/** @type {any} */ { options }) => `${options.host}:${options.port}`;
    const node = masters.find((/** @type {any} */ one) => nameOf(one) === address);
    if (!node) throw new ConnectionBroken('No known node has the hash slot of the key');
    return node;
  }

  /** @param {any} node @param {object} [overrides] */
  async duplicate(node, overrides) {
    const own = node.duplicate({ ...PATIENT, ...overrides });
    own.on('error', noop);
    await waitForConnection(own.connect(), this.timeout, () => own.disconnect());
    return own;
  }

  /** @param {any} own @returns {Connection} */
  connection(own) {
    const { closed, onClose } = ending(() => own.disconnect());
    own.on('end', closed);
    return {
      send: ([name, ...args]) => own.callBuffer(name, ...args),
      subscribe: (channel, listener) => {
        own.on('message', (/** @type {string} */ _, /** @type {string} */ message) => listener(message));
        return own.subscribe(channel);
      },
      ping: () => own.ping(),
      onClose,
      close: closed,
    };
  }

  /** @param {any} node */
  async connect(node) {
    return this.connection(await this.duplicate(node));
  }

  /**
   * Two connections, since RESP2 has messages only for subscribers: one that reads, and one that hears of changes.
   *
   * @param {any} node
   * @param {(key: Buffer | null) => void} invalidate
   * @returns {Promise<Tracked>}
   */
  async track(node, invalidate) {
    const hearing = await this.duplicate(node, { protocol: 2 });
    const ears = this.connection(hearing);
    const listen = async () => {
      const id = await ears.send(['CLIENT', 'ID']);
      hearing.on('messageBuffer', (/** @type {Buffer} */ _, /** @type {Buffer[] | null} */ keys) => {
        if (!keys) return invalidate(null);
        for (const key of keys) invalidate(key);
      });
      await hearing.subscribe('__redis__:invalidate');
      return id;
    };
    try {
      const id = await answered(listen(), this.timeout, ears.close);
      const reading = this.connection(await this.duplicate(node, { protocol: 2 }));
      ears.onClose(reading.close);
      reading.onClose(ears.close);
      await answered(reading.send(['CLIENT', 'TRACKING', 'ON', 'REDIRECT', String(id)]), this.timeout, reading.close);
      return { ...reading, ping: () => Promise.all([ears.ping(), reading.ping()]) };
    } catch (error) {
      ears.close();
      const { message } = /** @type {Error} */ (error);
      if (/redirect to does not exist/.test(message)) throw new ConnectionBroken(message, { cause: error }); // it has just closed
      throw typed(error);
    }
  }
}

/**
 * @param {any} client
 * @param {number} timeout The longest time for a new connection, in milliseconds.
 * @returns {Library}
 */
function libraryOf(client, timeout) {
  if (typeof client?.callBuffer === 'function') return new IoRedis(client, timeout);
  if (typeof client?.sendCommand === 'function') return new NodeRedis(client, timeout);
  throw new TypeError('Sluice needs a client of node-redis, ioredis or iovalkey');
}

module.exports = { answered, libraryOf, slotOf };
