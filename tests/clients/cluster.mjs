// The examples for node-redis on a cluster of two nodes: node cluster.mjs <a node>. Run by tests/clients.rs.

import assert from 'node:assert/strict';
import { nodeOf, withLock } from '../../examples/clients/node/lock.js';
import { createCluster } from '../../examples/clients/node/node_modules/redis/dist/index.js';

const cluster = createCluster({ rootNodes: [{ socket: { port: Number(process.argv[2]) } }] });
cluster.on('error', () => {});
await cluster.connect();
const KEYS = ['bar', 'foo']; // one on each node

async function commands_go_where_their_first_key_is() {
  for (const key of KEYS) {
    const sku = `{${key}}:sku`;
    await cluster.sendCommand(sku, false, ['STOCK.SET', sku, '10']);
    assert.equal(await cluster.sendCommand(sku, false, ['STOCK.DEDUCT', sku, '1', 'ORDER', 'order']), 9);
    const acquire = ['LOCK.MACQUIRE', '2', `${sku}:a`, `${sku}:b`, 'me'];
    assert.equal((await cluster.sendCommand(sku, false, acquire)).length, 2);
  }
}

async function locks_are_taken_on_the_node_of_their_key() {
  for (const key of KEYS) {
    await withLock(await nodeOf(cluster, key), key, async ({ check }) => {
      await check();
      assert.equal(await cluster.exists(key), 1);
    });
  }
}

const TESTS = [
  commands_go_where_their_first_key_is,
  locks_are_taken_on_the_node_of_their_key,
];

for (const test of TESTS) {
  await test();
  console.log(test.name);
}
await cluster.close();
