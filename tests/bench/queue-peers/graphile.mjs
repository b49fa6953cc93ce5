// node graphile.mjs DATABASE_URL CALLERS JOBS IDLE
// CALLERS loops push jobs one at a time while one worker runs them, one commit per transition (no local queue), then one
// loop pushes IDLE jobs, each once the one before it has begun. Prints the cycles per second from the first push to the last
// handler, and how long after its push an idle job begins.
import { run, makeWorkerUtils, Logger } from "graphile-worker";

const [url, callers, jobs, idle] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const quiet = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString: url, logger: quiet, maxPoolSize: 16 });
await utils.migrate();

let begun = () => {};
const runner = await run({
  connectionString: url,
  concurrency: 24,
  maxPoolSize: 26,
  logger: quiet,
  noHandleSignals: true,
  taskList: { peer: async () => begun() },
});
const now_ms = () => Number(process.hrtime.bigint()) / 1e6;

let handled = 0;
const finished = new Promise((resolve) => (begun = () => { if (++handled === jobs) resolve(); }));
const begin_ms = now_ms();
await Promise.all(Array.from({ length: callers }, async (_, caller) => {
  const share = Math.floor(jobs / callers) + (caller < jobs % callers ? 1 : 0);
  for (let job = 0; job < share; job++) await utils.addJob("peer", { job });
}));
await finished;
console.log(`graphile-worker ${(jobs / (now_ms() - begin_ms) * 1e3).toFixed(0)} cycles/s`);

const idle_at_most_ms = 240_000;
const times_ms = [], idle_begin_ms = now_ms();
for (let job = 0; job < idle && now_ms() - idle_begin_ms < idle_at_most_ms; job++) {
  const pushed_ms = now_ms();
  const began_ms = new Promise((resolve) => (begun = () => resolve(now_ms())));
  await utils.addJob("peer", { job });
  times_ms.push(await began_ms - pushed_ms);
}
times_ms.sort((a, b) => a - b);
const at = (share) => (times_ms[Math.round(share * (times_ms.length - 1))] ?? NaN).toFixed(2);
const late = times_ms.filter((time_ms) => time_ms > 1000).length;
console.log(`graphile-worker ${times_ms.length} idle: p50 ${at(0.5)} ms, p99 ${at(0.99)} ms, max ${at(1)} ms; above 1 s: ${late}`);
await runner.stop();
await utils.release();
process.exit(0);
