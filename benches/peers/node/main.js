// A worker of the benchmark beside this folder, for redis-semaphore's Mutex. README.md there describes the protocol.
'use strict';

const { createInterface } = require('node:readline');
const { parseArgs } = require('node:util');
const { setTimeout: sleep } = require('node:timers/promises');
const Redis = require('ioredis');
const { Mutex } = require('redis-semaphore');

// Who wants a lock when a turn is over may wait so much longer for it: then it counts as not served.
const GRACE_MS = 100;
// Nobody gives up before that. It is the longest that a timer takes.
const PATIENCE_MS = 2 ** 31 - 1;

const now = () => process.hrtime.bigint();
const MS = 1_000_000n;

// One client, with the settings that it comes with: a waiter asks again every 10 ms, and holds are renewed.
class Client {
  constructor(url, leaseMs) {
    this.redis = new Redis(url);
    this.leaseMs = leaseMs;
  }

  async enter(name, patienceMs = PATIENCE_MS) {
    const mutex = new Mutex(this.redis, name, { lockTimeout: this.leaseMs, acquireTimeout: patienceMs });
    return (await mutex.tryAcquire()) ? mutex : null;
  }
}

// How long it took, or undefined when the turn is over.
async function once(client, shape, name, until) {
  const asked = now();
  if (asked >= until) return undefined;
  if (shape === 'own') {
    await (await client.enter(name)).release();
    return now() - asked;
  }
  const mutex = await client.enter(name, Number((until - asked) / MS) + GRACE_MS);
  if (!mutex) return undefined;
  const entered = now() - asked;
  await mutex.release();
  return entered;
}

async function repeat(client, shape, name, until) {
  const latencies = [];
  for (;;) {
    const took = await once(client, shape, name, until);
    if (took === undefined) return latencies;
    latencies.push(Number(took));
  }
}

// How long after the other began to leave a waiter was inside.
async function wake(clients, pauseMs, until) {
  const latencies = [];
  for (let turn = 0; now() < until; turn++) {
    const mutex = await clients[turn % 2].enter('door');
    const waiter = (async () => {
      const mutex = await clients[(turn + 1) % 2].enter('door');
      const entered = now();
      await mutex.release();
      return entered;
    })();
    await sleep(pauseMs);
    const left = now();
    await mutex.release();
    latencies.push(Math.max(0, Number((await waiter) - left)));
  }
  return latencies;
}

async function carry(clients, load, shape, spanMs, tasks) {
  const until = now() + BigInt(spanMs) * MS;
  if (shape === 'wake') return [await wake(clients, load.pauseMs, until)];
  const start = (task) =>
    repeat(clients[task % clients.length], shape, shape === 'own' ? `own ${task}` : 'hot', until);
  return Promise.all(Array.from({ length: tasks }, (_, task) => start(task)));
}

// Few at a time: what is measured is the holding.
async function takeAll(client, count) {
  const held = [];
  for (let lock = 0; lock < count; lock += 16) {
    const some = Array.from({ length: Math.min(16, count - lock) }, (_, n) => client.enter(`held ${lock + n}`));
    held.push(...(await Promise.all(some)));
  }
  return held;
}

function say(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

async function main() {
  const load = argumentsOf();
  const clients = Array.from({ length: load.clients }, () => new Client(load.url, load.leaseMs));
  if (load.shape === 'held') await takeAll(clients[0], load.tasks);
  else await carry(clients, load, 'own', load.warmMs, Math.max(load.tasks, load.clients));
  const version = (name) => `${name} ${require(`${name}/package.json`).version}`;
  say({ ready: `${version('redis-semaphore')}, ${version('ioredis')}, Node ${process.versions.node}` });
  await new Promise((go) => createInterface({ input: process.stdin }).once('line', go));
  const [began, used] = [now(), process.cpuUsage()];
  const latencies = load.shape === 'held' ? [] : await carry(clients, load, load.shape, load.spanMs, load.tasks);
  if (load.shape === 'held') await sleep(load.spanMs);
  const cpu = process.cpuUsage(used);
  say({
    elapsed_ns: Number(now() - began),
    cpu_ns: (cpu.user + cpu.system) * 1000,
    served: latencies.map((ofTask) => ofTask.length),
    latencies_ns: latencies.flat(),
  });
}

function argumentsOf() {
  const numbers = ['writes', 'clients', 'tasks', 'pause-ms', 'warm-ms', 'span-ms', 'lease-ms'];
  const options = Object.fromEntries(['lock', 'urls', 'shape', ...numbers].map((name) => [name, { type: 'string' }]));
  const { values } = parseArgs({ options });
  if (values.lock !== 'redis-semaphore') throw new Error(`${values.lock} is no lock of this program`);
  return {
    url: values.urls.split(',')[0],
    shape: values.shape,
    clients: Number(values.clients),
    tasks: Number(values.tasks),
    pauseMs: Number(values['pause-ms']),
    warmMs: Number(values['warm-ms']),
    spanMs: Number(values['span-ms']),
    leaseMs: Number(values['lease-ms']),
  };
}

main().then(
  () => process.stdout.write('', () => process.exit(0)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
