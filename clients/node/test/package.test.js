'use strict';
// The package as its users install it: CommonJS, ES modules, TypeScript, OpenTelemetry, and the code of its README.

const assert = require('node:assert/strict');
const { execFile, spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs/promises');
const os = require('node:os');
const path = require('node:path');
const { after, before, test } = require('node:test');
const { promisify } = require('node:util');
const { connectAdmin, eventually, PORT, ALL, disconnect } = require('./support');

const run = promisify(execFile);
const HOME = path.join(__dirname, '..');
const URL_OF_SERVER = `redis://127.0.0.1:${PORT}`;

/** A folder in which the packed package is installed, with the libraries beside it. */
let folder;
let admin;

before(async () => {
  admin = await connectAdmin();
  await admin.send('FLUSHALL');
  folder = await fs.mkdtemp(path.join(os.tmpdir(), 'sluice-node-'));
  const { stdout } = await run('npm', ['pack', '--json', '--silent', '--pack-destination', folder], { cwd: HOME });
  const [{ filename, files }] = JSON.parse(stdout.slice(stdout.indexOf('[')));
  const names = files.map((file) => file.path);
  const readme = await fs.readFile(path.join(HOME, 'README.md'), 'utf8');
  for (const [, link] of readme.matchAll(/\]\(([^)#:]+)\)/g)) assert(names.includes(link), `the package lacks ${link}`);
  for (const name of ['LICENSE', 'README.md', 'lib/index.js', 'types/index.d.ts']) assert(names.includes(name), name);
  assert(!names.some((name) => /^(test|node_modules)/.test(name)));
  const modules = path.join(folder, 'node_modules');
  await fs.mkdir(path.join(modules, 'sluice'), { recursive: true });
  await run('tar', ['--extract', '--strip-components=1', '--file', path.join(folder, filename), '--directory', path.join(modules, 'sluice')]);
  for (const name of ['redis', '@redis', 'cluster-key-slot', 'ioredis', '@types', 'undici-types', '@opentelemetry']) {
    await fs.symlink(path.join(HOME, 'node_modules', name), path.join(modules, name));
  }
});

after(async () => {
  admin.close();
  await fs.rm(folder, { recursive: true });
});

/** Runs a program in the folder, and returns what it prints. */
async function program(name, text) {
  await fs.writeFile(path.join(folder, name), text);
  const { stdout } = await run('node', [name], { cwd: folder, env: { ...process.env, REDIS_URL: URL_OF_SERVER } });
  return stdout;
}

test('CommonJS and ES modules have the same names', async () => {
  const names = Object.keys(require('../lib')).sort().join();
  assert.equal(await program('a.cjs', "console.log(Object.keys(require('sluice')).sort().join())"), `${names}\n`);
  const imported = "import * as all from 'sluice'; console.log(Object.keys(all).filter((n) => !/^(default|module.exports)$/.test(n)).sort().join())";
  assert.equal(await program('a.mjs', imported), `${names}\n`);
});

test('the drop-in is imported as redlock is', async () => {
  const imports = "import Redlock, { ExecutionError, Lock, ResourceLockedError } from 'sluice/redlock'; import { createRequire } from 'node:module';"
    + "const same = createRequire(import.meta.url)('sluice/redlock'); console.log(Redlock === same && Redlock === same.default, Redlock.name, Lock === same.Lock, ExecutionError.name, ResourceLockedError.name)";
  assert.equal(await program('redlock.mjs', imports), 'true Redlock true ExecutionError ResourceLockedError\n');
});

test('TypeScript checks the types', async () => {
  await fs.writeFile(path.join(folder, 'right.mts'), `
import { Hold, LockLost, Sluice, buffer, type LockOptions, type Taken } from 'sluice';
import Redlock, { ExecutionError, Lock as RedlockLock } from 'sluice/redlock';
import { createClient } from 'redis';
import { Redis } from 'ioredis';

const redlock = new Redlock([new Redis()], { retryCount: 3 });
const five: number = await redlock.using(['a'], 5000, async (signal) => { if (signal.aborted) throw signal.error; return 5; });
await redlock.using(['a'], 5000, { retryCount: 0 }, async () => 6);
const held: RedlockLock = await (await redlock.acquire(['a'], 1000)).extend(1000);
await held.release();
const sluice = new Sluice(createClient());
new Sluice(new Redis(), { codec: buffer });
const options: LockOptions = { wait: 100, signal: AbortSignal.timeout(50) };
const fence: number = await sluice.lock('k', options).run(async (hold: Hold) => { hold.signal.throwIfAborted(); return hold.fence; });
{
  await using hold = await sluice.lock(['a', new Uint8Array(1)]).acquire();
  const fences: number[] | undefined = hold?.fences;
  void fences;
}
const taken: Taken = await sluice.stock.deduct('sku', 1, { order: 'o' });
const text: string = taken.ok ? taken.available.toFixed() : taken.refusal;
const user: { name: string } | null = await sluice.cache.get('k', async (key: string) => ({ name: key }), { fresh: 1000 });
const many: Map<string, number | null> = await sluice.cache.getMany(['a'], (keys) => new Map(keys.map((key) => [key, 1])));
const begun = await sluice.once.begin('k');
if (begun.state === 'NEW') await sluice.once.done('k', begun.token, 'x');
await sluice.semaphore('s', 3, { permits: 2 }).acquire();
await sluice.semaphore([['s', 3]], { wait: 0 }).acquire();
const { allowed, retryMs } = await sluice.limit.gcra('k', { burst: 1, count: 1, period: 1000 });
export { ExecutionError, LockLost, allowed, five, fence, many, retryMs, text, user };
`);
  await fs.writeFile(path.join(folder, 'wrong.cts'), `
import { Sluice } from 'sluice';
const sluice = new Sluice({});
sluice.lock('k', { wait: 'long' });
sluice.stock.reserve('k', 1, { order: 'o' });
sluice.semaphore('k');
sluice.cache.get('k', () => 1, { fresh: true });
const { available } = null as unknown as Awaited<ReturnType<typeof sluice.stock.deduct>>;
`);
  const options = ['--noEmit', '--strict', '--target', 'es2022', '--lib', 'es2023,esnext.disposable', '--module', 'node16', '--types', 'node'];
  const tsc = path.join(HOME, 'node_modules/typescript/bin/tsc');
  const failed = await run('node', [tsc, ...options, '--skipLibCheck', 'right.mts', 'wrong.cts'], { cwd: folder }).catch(({ stdout }) => stdout);
  const lines = String(failed).trim().split('\n').filter((line) => /^\w/.test(line));
  assert.deepEqual(lines.map((line) => /^(wrong.cts)\((\d+),/.exec(line)?.slice(1)), [4, 5, 6, 7, 8].map((line) => ['wrong.cts', `${line}`]), lines.join('\n'));
});

test('an installed folder has new declarations', async () => {
  const copy = path.join(folder, 'copy');
  const app = path.join(folder, 'app');
  await fs.mkdir(path.join(copy, 'types'), { recursive: true });
  await fs.mkdir(app);
  for (const name of ['lib', 'package.json', 'tsconfig.json']) await fs.cp(path.join(HOME, name), path.join(copy, name), { recursive: true });
  await fs.symlink(await fs.realpath(path.join(HOME, 'node_modules')), path.join(copy, 'node_modules'));
  await fs.writeFile(path.join(copy, 'types/index.d.ts'), '// old');
  await fs.writeFile(path.join(app, 'package.json'), '{}');
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', '../copy'], { cwd: app });
  const declarations = await fs.readFile(path.join(app, 'node_modules/sluice/types/index.d.ts'), 'utf8');
  for (const name of Object.keys(require('../lib'))) assert.match(declarations, new RegExp(`\\b${name}\\b`));
});

test('spans of OpenTelemetry', async () => {
  const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = require('@opentelemetry/sdk-trace-base');
  const { AsyncLocalStorageContextManager } = require('@opentelemetry/context-async-hooks');
  const api = require('@opentelemetry/api');
  const exporter = new InMemorySpanExporter();
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  const { Sluice } = require('../lib');
  const client = await ALL['ioredis 5']();
  const sluice = new Sluice(client);
  await sluice.lock('span').run((hold) => hold.check());
  await sluice.cache.get('span:2', () => 1);
  await assert.rejects(sluice.stock.available('span:2'));
  await sluice.close();
  disconnect(client);
  const spans = exporter.getFinishedSpans();
  const named = (name) => spans.find((span) => span.name === name);
  for (const name of ['sluice.acquire', 'sluice.hold', 'LOCK.HELD', 'CACHE.FETCH', 'sluice.load', 'CACHE.SET']) assert(named(name), name);
  assert.equal(named('LOCK.HELD').parentSpanContext.spanId, named('sluice.hold').spanContext().spanId);
  assert.equal(named('STOCK.GET').status.code, api.SpanStatusCode.ERROR);
  assert.equal(named('CACHE.FETCH').attributes['db.operation.name'], 'CACHE.FETCH');
  api.trace.disable();
  api.context.disable();
});

test('without OpenTelemetry nothing is missing', async () => {
  await fs.rm(path.join(folder, 'node_modules/@opentelemetry'));
  const text = "const { Sluice } = require('sluice'); const { Redis } = require('ioredis');"
    + 'const client = new Redis(process.env.REDIS_URL); const sluice = new Sluice(client);'
    + "sluice.lock('bare').run(() => console.log('held')).then(() => sluice.close()).then(() => client.quit())";
  assert.equal(await program('bare.cjs', text), 'held\n');
});

test('the lock file names no registry', async () => {
  assert(!/"resolved"|https?:.*\.tgz/.test(await fs.readFile(path.join(HOME, 'package-lock.json'), 'utf8')));
});

test('the code of the README prints what it says', async () => {
  const readme = await fs.readFile(path.join(HOME, 'README.md'), 'utf8');
  const blocks = [...readme.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language, text]) => ({ language, text }));
  await admin.send('FLUSHALL');
  let ran = 0;
  // One after the other: twenty programs that start at once do not connect in time on a busy machine.
  for (const [at, { language, text }] of blocks.entries()) {
    if (language !== 'js' || text.startsWith('// server.mjs')) continue;
    const output = blocks[at + 1]?.language === 'text' ? blocks[at + 1].text : '';
    const printed = await program(`readme-${at}.mjs`, text);
    assert.equal(printed.replaceAll(/\d{16}/g, '1795392000000000'), output, text);
    ran += 1;
  }
  assert(ran >= 8, `${ran}`);
});

test('the flash sale of the README sells', async () => {
  await admin.send('FLUSHALL');
  const readme = await fs.readFile(path.join(HOME, 'README.md'), 'utf8');
  const [, code] = /^```js\n(\/\/ server\.mjs\n.*?)^```$/ms.exec(readme);
  // A payment provider that declines some orders, and does not answer for others.
  const refusals = "if (order.endsWith(':poor')) throw new Declined();\n  if (order.endsWith(':silent')) throw new OutcomeUnknown();\n  ";
  const withProvider = code.replace('import { Conflict, Sluice }', 'import { Conflict, OutcomeUnknown, Sluice }')
    .replace('return { receipt:', `${refusals}return { receipt:`);
  assert(withProvider.includes(refusals) && withProvider.includes('OutcomeUnknown, Sluice'));
  await fs.writeFile(path.join(folder, 'server.mjs'), withProvider);
  const server = spawn('node', ['server.mjs'], { cwd: folder, env: { ...process.env, REDIS_URL: URL_OF_SERVER, PORT: '0' }, stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const [line] = await once(server.stdout, 'data');
    const [, port] = /:(\d+)/.exec(line);
    const [, session] = /^```console\n(.*?)^```$/ms.exec(readme);
    const steps = [...session.matchAll(/^\$ curl -X POST (?:-H 'Idempotency-Key: (.*?)' )?'([^']*)'\n(.*)$/gm)];
    assert(steps.length >= 4);
    const post = (url, key, method = 'POST') => fetch(`http://localhost:${port}${url}`, { method, headers: key ? { 'idempotency-key': key } : {} });
    for (const [, key, url, expected] of steps) {
      assert.equal(await (await post(url.replace('localhost:8080', ''), key)).text(), expected, url);
    }
    const statusOf = async (...request) => (await post(...request)).status;
    const available = Number(await admin.send('STOCK.GET', 'sku:1'));
    assert.equal(await statusOf('/buy?user=zoe', 'poor'), 202);
    assert.equal(await statusOf('/pay?user=zoe&order=zoe:poor'), 402);
    assert.equal(Number(await admin.send('STOCK.GET', 'sku:1')), available);
    assert.equal(await statusOf('/buy?user=zoe', 'silent'), 202);
    assert.equal(await statusOf('/pay?user=zoe&order=zoe:silent'), 503);
    assert.match(String(await admin.send('ONCE.INFO', 'pay:zoe:silent')), /busy/); // nobody charges again until the lease ends
    await admin.send('STOCK.CANCEL', 'sku:1', 'zoe:silent');
    assert.equal(await statusOf('/buy?user=eve', 'k', 'GET'), 405);
    assert.equal(await statusOf('/buy?user=eve'), 400);
    assert.equal(await statusOf('/pay?user=eve&order=none'), 404);
    const replies = await Promise.all(Array.from({ length: 150 }, (_, user) => post(`/buy?user=crowd-${user}`, 'k')));
    const sold = replies.filter(({ status }) => status === 202).length;
    assert.equal(sold, 98); // of 100, two were sold above
    // A repeated request costs no rate.
    for (let attempt = 0; attempt < 9; attempt++) assert.equal(await statusOf('/buy?user=ann', 'purchase-1'), 202);
    // A refusal of the rate is not remembered; that of the stock is.
    const keys = Array.from({ length: 100 }, (_, n) => `k${n}`);
    const late = await Promise.all(keys.map((key) => statusOf('/buy?user=late', key)));
    assert(late.includes(409) && late.includes(429), late.join());
    await admin.send('STOCK.ADD', 'sku:1', 1);
    assert.equal(await statusOf('/buy?user=late', keys[late.indexOf(409)]), 409);
    await eventually(async () => await statusOf('/buy?user=late', keys[late.indexOf(429)]) === 202);
    // An expired or canceled order is not charged, and the key of another purchase is refused.
    await admin.send('STOCK.CANCEL', 'sku:1', 'ann:purchase-2');
    assert.equal(await (await post('/pay?user=ann&order=ann:purchase-2')).text(), '{"refusal":"CLOSED"}');
    await admin.send('ONCE.BEGIN', 'buy:ann:other', 'LEASE', 60_000, 'FINGERPRINT', 'sku:2');
    assert.equal(await statusOf('/buy?user=ann', 'other'), 409);
    server.kill();
    assert.deepEqual(await once(server, 'exit'), [0, null]);
  } finally {
    server.kill();
  }
});
