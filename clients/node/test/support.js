'use strict';
// What the tests share: clients of all libraries, a network that loses replies, and waiting for a condition.

const assert = require('node:assert/strict');
const { once } = require('node:events');
const net = require('node:net');
const { setTimeout: sleep } = require('node:timers/promises');
const { ConnectionBroken } = require('../lib');

const PORT = Number(process.env.SLUICE_PORT);
const noop = () => {};

/** @param {string} name @param {object} options */
const nodeRedis = (name, options, create = 'createClient') => async (port = PORT) =>
  require(name)[create]({ ...options, socket: { port, ...options.socket } }).on('error', noop).connect();

const ioredis = (name, options = {}) => async (port = PORT) => new (require(name).Redis)({ port, ...options }).on('error', noop);

/** The libraries, each with the function that connects. */
const ALL = {
  'node-redis 6, RESP2': nodeRedis('redis', { RESP: 2 }),
  'node-redis 6, RESP3': nodeRedis('redis', { RESP: 3 }),
  'node-redis 6, pool': nodeRedis('redis', {}, 'createClientPool'),
  'node-redis 5, RESP2': nodeRedis('redis5', { RESP: 2 }),
  'node-redis 5, RESP3': nodeRedis('redis5', { RESP: 3 }),
  'ioredis 5': ioredis('ioredis'),
  'ioredis 6, RESP3': ioredis('ioredis6'),
  'iovalkey': ioredis('iovalkey'),
};

/** Of each kind of library, a client that repeats nothing by itself. */
const PLAIN = {
  'node-redis 6': nodeRedis('redis', { socket: { reconnectStrategy: 10 } }),
  'ioredis 5': ioredis('ioredis', { maxRetriesPerRequest: 0 }),
};

/** Those that `SLUICE_LIBRARIES` names, by default all: "ioredis" names all with this word. */
const chosen = process.env.SLUICE_LIBRARIES ?? '';
const LIBRARIES = Object.fromEntries(Object.entries(ALL).filter(([name]) => name.includes(chosen)));

/** Enough for what depends on time and not on the library. */
const [FIRST] = Object.keys(LIBRARIES);

/** A plain connection for what the tests do behind the package's back. */
async function connectAdmin(port = PORT) {
  const client = await nodeRedis('redis', { RESP: 2 })(port);
  return {
    send: (...words) => client.sendCommand(words.map(String)),
    info: async (field) => Number(new RegExp(`${field}:(\\d+)`).exec(await client.sendCommand(['INFO', 'everything']))?.[1]),
    close: () => client.destroy(),
  };
}

/**
 * Kills all connections but those of the test and of the client itself, a pool perhaps: how a client connects again is up to its
 * library, and node-redis does not always become ready again.
 */
async function killConnections(admin, sluice, client) {
  // A pool lends each of these requests another member.
  const members = Array.from({ length: client.totalClients ?? 1 }, () => sluice.send('CLIENT ID'));
  const kept = [await admin.send('CLIENT', 'ID'), ...await Promise.all(members)].map(String);
  const ids = [...(await admin.send('CLIENT', 'LIST')).matchAll(/^id=(\d+)/gm)].map(([, id]) => id);
  await Promise.all(ids.filter((id) => !kept.includes(id)).map((id) => admin.send('CLIENT', 'KILL', 'ID', id).catch(noop)));
}

/** Closes a client of any library. */
function disconnect(client) {
  if (typeof client.destroy === 'function') client.destroy();
  else client.disconnect();
}

/** For `catch`: a busy machine may answer later than the timeout of a test allows. */
function unlessLate(error) {
  if (!(error instanceof ConnectionBroken)) throw error;
}

async function eventually(condition) {
  const deadline = Date.now() + 60_000;
  while (!await condition()) {
    assert(Date.now() < deadline, `still not: ${condition}`);
    await sleep(5);
  }
}

/**
 * A proxy that loses replies: `lose` names the commands of which the next request gets none, and its connection breaks.
 * `loseAfter` calls a function between the reply and the break. `before` calls a function before it delivers the request, `delay`
 * before it delivers the reply. `fallSilent` delivers no more replies, or, with a word, none on the present connections whose
 * client has sent this word.
 */
async function lossyProxy(port = PORT) {
  /** @type {Map<string, { act: () => unknown, isLost?: boolean, isEarly?: boolean }>} */
  const faults = new Map();
  const sockets = new Set();
  /** @type {Set<{ said: string, isSilent: boolean }>} */
  const connections = new Set();
  let isSilent = false;
  const server = net.createServer((client) => {
    const upstream = net.connect(port, '127.0.0.1');
    /** @type {{ act: () => unknown, isLost?: boolean } | undefined} */
    let fault;
    const connection = { said: '', isSilent: false };
    connections.add(connection);
    const end = () => {
      connections.delete(connection);
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) sockets.add(socket.on('error', noop).on('close', end));
    client.on('data', async (bytes) => {
      connection.said += bytes.toString('latin1').toLowerCase();
      for (const [name, one] of faults) {
        if (!bytes.includes(name)) continue;
        faults.delete(name);
        if (!one.isEarly) {
          fault = one;
          continue;
        }
        client.pause();
        await one.act();
        client.resume();
      }
      upstream.write(bytes);
    });
    upstream.on('data', async (bytes) => {
      const { act, isLost } = fault ?? {};
      if (isLost) {
        await Promise.resolve(act()).finally(end);
        return;
      }
      if (act) {
        fault = undefined;
        upstream.pause();
        await act();
        upstream.resume();
      }
      if (!connection.isSilent && !isSilent) client.write(bytes);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: server.address().port,
    lose: (...names) => names.forEach((name) => faults.set(name, { act: noop, isLost: true })),
    loseAfter: (name, act) => faults.set(name, { act, isLost: true }),
    before: (name, act) => faults.set(name, { act, isEarly: true }),
    delay: (name, act) => faults.set(name, { act }),
    fallSilent: (word) => {
      if (word === undefined) isSilent = true;
      else for (const connection of connections) connection.isSilent ||= connection.said.includes(word);
    },
    isDone: () => faults.size === 0,
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

module.exports = { ALL, FIRST, LIBRARIES, PLAIN, PORT, connectAdmin, disconnect, eventually, killConnections, lossyProxy, sleep, unlessLate };
