// The Node example of docs/once.md, run: node once.mjs <server>. Run by tests/clients.rs.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createClient } from '../../examples/clients/node/node_modules/redis/dist/index.js';

const text = readFileSync(new URL('../../docs/once.md', import.meta.url), 'utf8');
const [endpoint, ...others] = [...text.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
assert.deepEqual(others, []);

const connect = () => createClient({ socket: { port: Number(process.argv[2]) } });
const admin = await connect().connect();

/** The endpoint, with the modules that it imports and a client of the server of the test. */
async function load() {
  const code = endpoint.replaceAll(/^import .*\n/gm, '').replace('export ', '');
  const { constructor: AsyncFunction } = async () => {};
  return new AsyncFunction('createHash', 'createClient', `${code}\nreturn { pay, client };`)(createHash, connect);
}

const { pay, client } = await load();

async function a_lost_reply_charges_once_and_returns_the_same() {
  const charges = [];
  const charge = async (card, cents) => {
    charges.push([card, cents]);
    return { charge: charges.length, cents };
  };
  const first = await pay('order-1', '4242', 1999, charge);
  // The reply is lost. The client asks again, of another process.
  const other = await load();
  assert.deepEqual(await other.pay('order-1', '4242', 1999, charge), first);
  await other.client.close();
  assert.deepEqual(charges, [['4242', 1999]]);
}

async function another_amount_is_a_conflict() {
  const never = async () => assert.fail('nothing may be charged');
  await assert.rejects(pay('order-1', '4242', 5, never), /^(Error|ErrorReply|SimpleError): CONFLICT |CONFLICT key/);
}

async function a_second_attempt_hears_of_the_first() {
  let finish;
  const charging = new Promise((resolve) => { finish = resolve; });
  const first = pay('order-2', '4242', 5, () => charging);
  while (await admin.exists('pay:order-2') === 0);
  const second = await pay('order-2', '4242', 5, async () => assert.fail('nothing may be charged'));
  assert.equal(second.status, 409);
  assert(second.retryAfterMs > 0 && second.retryAfterMs <= 60_000);
  finish({ charge: 1 });
  assert.deepEqual(await first, { charge: 1 });
  assert.deepEqual(await pay('order-2', '4242', 5), { charge: 1 });
}

const TESTS = [
  a_lost_reply_charges_once_and_returns_the_same,
  another_amount_is_a_conflict,
  a_second_attempt_hears_of_the_first,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await client.close();
await admin.close();
