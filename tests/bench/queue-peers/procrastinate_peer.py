"""python3 procrastinate_peer.py DATABASE_URL CALLERS JOBS IDLE

CALLERS tasks push jobs one at a time while one worker runs them, then one pushes IDLE jobs, each once the one before it has
begun. Prints the cycles per second from the first push to the last handler, and how long after its push an idle job begins.
"""

import asyncio
import logging
import sys
import time

from procrastinate import App, PsycopgConnector

url, (callers, jobs, idle) = sys.argv[1], map(int, sys.argv[2:5])
IDLE_AT_MOST_S = 240
app = App(connector=PsycopgConnector(conninfo=url, max_size=16))
begun = lambda: None


@app.task(name="peer")
async def peer(job: int) -> None:
    begun()


async def push(share: int) -> None:
    for job in range(share):
        await peer.defer_async(job=job)


async def main() -> None:
    global begun
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(app.run_worker_async(concurrency=24, install_signal_handlers=False))
        await asyncio.sleep(1)

        handled, finished = 0, asyncio.Event()

        def count() -> None:
            nonlocal handled
            handled += 1
            if handled == jobs:
                finished.set()

        begun, begin = count, time.perf_counter()
        await asyncio.gather(*(push(jobs // callers + (caller < jobs % callers)) for caller in range(callers)))
        await finished.wait()
        print(f"procrastinate {jobs / (time.perf_counter() - begin):.0f} cycles/s", flush=True)

        times_ms, begin = [], time.perf_counter()
        for job in range(idle):
            if time.perf_counter() - begin > IDLE_AT_MOST_S:
                break
            began = asyncio.get_running_loop().create_future()
            begun, pushed = lambda: began.set_result(time.perf_counter()), time.perf_counter()
            await peer.defer_async(job=job)
            times_ms.append((await began - pushed) * 1e3)
        times_ms.sort()
        through = len(times_ms)
        at = lambda share: times_ms[round(share * (through - 1))]
        late = sum(time_ms > 1000 for time_ms in times_ms)
        print(
            f"procrastinate {through} idle: p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, max {at(1):.2f} ms; above 1 s: {late}",
            flush=True,
        )
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


asyncio.run(main())
