"""A worker of the benchmark beside this folder, for redis-py's Lock. README.md there describes the protocol."""

import argparse
import asyncio
import json
import platform
import sys
import time
from importlib.metadata import version

import redis.asyncio as redis

# Who wants a lock when a turn is over may wait so much longer for it: then it counts as not served.
GRACE = 0.1


class Client:
    """One client, with the settings that it comes with: a waiter asks again every 100 ms."""

    def __init__(self, url, lease):
        # As many connections as there are tasks: with the 100 that are allowed by default, the next one is an error.
        self.redis = redis.from_url(url, max_connections=10_000)
        self.lease = lease

    async def enter(self, name):
        lock = self.redis.lock(name, timeout=self.lease)
        if not await lock.acquire():
            raise RuntimeError("not granted")
        return lock


async def once(client, shape, name, until):
    """How long it took, or None when the turn is over."""
    asked = time.perf_counter_ns()
    if asked >= until:
        return None
    if shape == "own":
        lock = await client.enter(name)
        await lock.release()
        return time.perf_counter_ns() - asked
    try:
        async with asyncio.timeout((until - asked) / 1e9 + GRACE):
            lock = await client.enter(name)
    except TimeoutError:
        return None
    entered = time.perf_counter_ns() - asked
    await lock.release()
    return entered


async def repeat(client, shape, name, until):
    latencies = []
    while (took := await once(client, shape, name, until)) is not None:
        latencies.append(took)
    return latencies


async def wake(clients, pause, until):
    """How long after the other began to leave a waiter was inside."""

    async def wait(client):
        lock = await client.enter("door")
        entered = time.perf_counter_ns()
        await lock.release()
        return entered

    latencies, turn = [], 0
    while time.perf_counter_ns() < until:
        lock = await clients[turn % 2].enter("door")
        waiter = asyncio.create_task(wait(clients[(turn + 1) % 2]))
        await asyncio.sleep(pause)
        left = time.perf_counter_ns()
        await lock.release()
        latencies.append(max(0, await waiter - left))
        turn += 1
    return latencies


async def carry(clients, load, shape, span_ms, tasks):
    until = time.perf_counter_ns() + span_ms * 1_000_000
    if shape == "wake":
        return [await wake(clients, load.pause_ms / 1000, until)]

    def start(task):
        name = f"own {task}" if shape == "own" else "hot"
        return repeat(clients[task % len(clients)], shape, name, until)

    return await asyncio.gather(*(start(task) for task in range(tasks)))


async def main(load):
    clients = [Client(load.urls.split(",")[0], load.lease_ms / 1000) for _ in range(load.clients)]
    await carry(clients, load, "own", load.warm_ms, max(load.tasks, load.clients))
    say({"ready": f"redis {version('redis')}, Python {platform.python_version()}"})
    sys.stdin.readline()
    began, used = time.perf_counter_ns(), time.process_time_ns()
    latencies = await carry(clients, load, load.shape, load.span_ms, load.tasks)
    say({
        "elapsed_ns": time.perf_counter_ns() - began,
        "cpu_ns": time.process_time_ns() - used,
        "served": [len(of_task) for of_task in latencies],
        "latencies_ns": [took for of_task in latencies for took in of_task],
    })


def say(what):
    print(json.dumps(what), flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", choices=["redis-py"], required=True)
    parser.add_argument("--urls", required=True)
    parser.add_argument("--shape", choices=["own", "hot", "wake"], required=True)
    for number in ["writes", "clients", "tasks", "pause-ms", "warm-ms", "span-ms", "lease-ms"]:
        parser.add_argument(f"--{number}", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(arguments()))
