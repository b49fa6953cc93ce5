// node graphile.mjs DATABASE_URL CALLERS JOBS
// CALLERS loops push jobs one at a time while one worker runs them, one commit per transition (no local queue).
// Prints one line: `graphile-worker <cycles per second> cycles/s`, from the first push to the last handler.
import { run, makeWorkerUtils, Logger } from "graphile-worker";

const [url, callers, jobs] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const quiet = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString: url, logger: quiet, maxPoolSize: 16 });
await utils.migrate();

let handled = 0;
let finish;
const finished = new Promise((resolve) => (finish = resolve));
const runner = await run({
  connectionString: url,
  concurrency: 24,
  maxPoolSize: 26,
  logger: quiet,
  noHandleSignals: true,
  taskList: { peer: async () => { if (++handled === jobs) finish(); } },
});
const begin = process.hrtime.bigint();
await Promise.all(Array.from({ length: callers }, async (_, caller) => {
  const share = Math.floor(jobs / callers) + (caller < jobs % callers ? 1 : 0);
  for (let job = 0; job < share; job++) await utils.addJob("peer", { job });
}));
await finished;
const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
console.log(`graphile-worker ${(jobs / seconds).toFixed(0)} cycles/s`);
await runner.stop();
await utils.release();
process.exit(0);
