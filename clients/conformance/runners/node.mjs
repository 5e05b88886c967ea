// The runner of the Node package: argv[2] is `node-redis` or `ioredis`, argv[3] the protocol.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const [, , LIBRARY, PROTOCOL] = process.argv;
const RESP = Number(PROTOCOL);
const TIMEOUT_MS = 2000;

const packages = createRequire(new URL('../../node/', import.meta.url));
const name = { 'node-redis': 'redis', ioredis: 'ioredis6' }[LIBRARY];
const library = packages(name);
const { version } = packages(`${name}/package.json`);
const { Sluice, text, ConnectionBroken, LockLost, ServerError, SluiceError, WaitTimeout } = packages('./lib/index.js');

/** A refusal: a reply that is no success. */
class Refused extends Error {}

/** @type {any} */ let client;
/** @type {Sluice} */ let sluice;
/** @type {Map<string, any>} */ let holds;

const ignore = () => {};

async function openNodeRedis({ topology, host, port, master }) {
  const socket = { host, port, socketTimeout: TIMEOUT_MS, reconnectStrategy: 50 };
  if (topology === 'sentinel') {
    const nodeClientOptions = { RESP, socket: { socketTimeout: TIMEOUT_MS } };
    const sentinel = library.createSentinel({ name: master, sentinelRootNodes: [{ host, port }], RESP, nodeClientOptions });
    return sentinel.on('error', ignore).connect();
  }
  if (topology === 'cluster') {
    const cluster = library.createCluster({ rootNodes: [{ socket: { host, port } }], RESP, defaults: { RESP, socket: { reconnectStrategy: 50 } } });
    return cluster.on('error', ignore).connect();
  }
  return library.createClient({ socket, RESP, disableOfflineQueue: false }).on('error', ignore).connect();
}

async function openIoredis({ topology, host, port, master }) {
  const options = {
    protocol: RESP, autoResendUnfulfilledCommands: false, commandTimeout: TIMEOUT_MS, retryStrategy: () => 50,
    maxRetriesPerRequest: 0, // a limit that is sent twice would count twice
  };
  const { Redis } = library;
  const one = topology === 'cluster' ? new Redis.Cluster([{ host, port }], { redisOptions: options, slotsRefreshTimeout: TIMEOUT_MS })
    : topology === 'sentinel' ? new Redis({ ...options, sentinels: [{ host, port }], name: master })
    : new Redis({ ...options, host, port });
  one.on('error', ignore);
  await new Promise((resolve) => one.once('ready', resolve));
  return one;
}

function changed(reply) {
  if (!reply.ok) throw new Refused(reply.refusal);
  return reply.available ?? reply.quantity;
}

async function acquire(name, lock) {
  const hold = await lock.acquire();
  if (!hold) throw new Refused('timeout');
  holds.set(name, hold);
  return hold;
}

/** A loader or work that counts its calls. */
function counted(result, takes) {
  const call = async () => {
    call.runs += 1;
    if (takes) await sleep(takes);
    return result;
  };
  call.runs = 0;
  return call;
}

const operations = {
  async connect(config) {
    if (sluice) {
      await sluice.close();
      if (client.destroy) await client.destroy();
      else client.disconnect();
    }
    holds = new Map();
    client = await (LIBRARY === 'node-redis' ? openNodeRedis : openIoredis)(config);
    sluice = new Sluice(client, { codec: text });
  },
  'lock.acquire': async ({ key, name = 'lock', wait = 0, ...options }) =>
    (await acquire(name, sluice.lock(key, { wait, lease: 10_000, ...options }))).fence,
  'lock.acquire_many': async ({ keys, name = 'lock', wait = 0, ...options }) =>
    (await acquire(name, sluice.lock(keys, { wait, lease: 10_000, ...options }))).fences,
  'semaphore.acquire': async ({ key, limit, permits, name = 'lock', wait = 0, ...options }) =>
    (await acquire(name, sluice.semaphore(key, limit, { permits, wait, lease: 10_000, ...options }))).fence,
  'lock.release': async ({ name = 'lock' }) => {
    if (!await holds.get(name).release()) throw new Refused('lost');
    return true;
  },
  'lock.check': async ({ name = 'lock' }) => {
    await holds.get(name).check();
    return true;
  },
  'lock.lost': async ({ name = 'lock' }) => holds.get(name).signal.aborted,
  'stock.deduct': async ({ key, qty, order, user }) => changed(await sluice.stock.deduct(key, qty, { order, user })),
  'stock.deduct_many': async ({ items, order }) => (await sluice.stock.deductMany(Object.entries(items), { order })).results.map(changed),
  'stock.reserve': async ({ key, qty, order, user, ms }) => changed(await sluice.stock.reserve(key, qty, { order, user, hold: ms })),
  'stock.confirm': async ({ key, order }) => changed(await sluice.stock.confirm(key, order)),
  'stock.cancel': async ({ key, order }) => changed(await sluice.stock.cancel(key, order)),
  'stock.add': async ({ key, delta, order }) => changed(await sluice.stock.add(key, delta, { order })),
  'once.run': async ({ key, result, lease = 30_000, takes, fingerprint }) => {
    const work = counted(result, takes);
    return { result: await sluice.once.run(key, work, { lease, fingerprint }), runs: work.runs };
  },
  'cache.get': async ({ key, value, lease = 30_000, takes }) => {
    const load = counted(value, takes);
    return { value: await sluice.cache.get(key, load, { lease, fresh: 600_000 }), runs: load.runs };
  },
  'cache.delete': ({ key }) => sluice.cache.delete(key),
  'delay.add': ({ key, message, ms }) => sluice.delay.add(key, message, { text: message }, { after: ms }),
  'delay.cancel': ({ key, message }) => sluice.delay.cancel(key, message),
  'limit.gcra': async ({ key, burst, count, period }) => (await sluice.limit.gcra(key, { burst, count, period })).allowed,
  'limit.first': ({ key, ms }) => sluice.limit.once(key, ms),
  'bloom.add': ({ key, item }) => sluice.bloom.add(key, item),
  'bloom.exists': ({ key, item }) => sluice.bloom.exists(key, item),
};

function answerOf(error) {
  if (error instanceof Refused) return { refused: error.message };
  if (error instanceof LockLost) return { refused: 'lost' };
  if (error instanceof ConnectionBroken) return { error: 'connection', text: error.message };
  if (error instanceof SluiceError) return { error: error.name, text: error.message };
  return { error: 'another', text: String(error?.stack ?? error) };
}

const write = (reply) => process.stdout.write(`${JSON.stringify(reply)}\n`);

const { connect, ...rest } = operations;
write({
  client: `${LIBRARY} ${version}`,
  runtime: `Node ${process.versions.node}`,
  repeats: true,
  topologies: ['server', 'cluster', 'sentinel'],
  operations: [...Object.keys(rest), 'bound', 'follow', 'linger', 'local-loss', 'notify'],
});
for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...words } = JSON.parse(line);
  operations[name](words).then(
    (ok) => write({ id, ok: ok ?? null }),
    (error) => write({ id, ...answerOf(error) }),
  );
}
process.exit();
