"""Fills the caches that measuring reads: Inductor's and Triton's, our tactics.

Resumable: what is done stands in CACHE/filled.json. A step that --seconds cut off is begun again the next time, and
finds the kernels it compiled and the candidates it timed in the caches.
"""

import json
import time

import grid
import limits
from limits import log


def steps(run):
    """Every step of this model as (batch, engine); a peer that compiles nothing has none."""
    wanted = [(batch, name) for batch in run.batches for name in run.order(batch)]
    return [step for step in wanted if grid.is_own(step[1]) or step[1] in (*grid.COMPILED, *grid.PEERS_FP32)]


def key(run, batch, name):
    return f"{run.name} {batch} {name}"


def fill(run):
    record = run.given.cache / "filled.json"
    done = json.loads(record.read_text()) if record.exists() else {}
    left = [step for step in steps(run) if key(run, *step) not in done]
    for batch, name in list(left):
        seconds = limits.seconds_left(run.given.seconds)
        if seconds < limits.SHORTEST_S:
            break
        began, error = time.monotonic(), None
        try:
            with limits.limit(seconds, key(run, batch, name)):
                if grid.is_own(name):
                    run.engine(batch).close()
                else:
                    run.peer(name, batch, run.sets(batch))
        except limits.OutOfTime as reached:
            log(f"{reached}; what it has so far is in the caches")
            break
        except Exception as failure:  # one that fails here fails in the measurement too, and is reported there
            error = repr(failure)[:300]
            log(f"{key(run, batch, name)}: {error}")
        finally:
            run.forget()
        left.remove((batch, name))
        done[key(run, batch, name)] = {"seconds": round(time.monotonic() - began, 1), "error": error}
        record.write_text(json.dumps(done, indent=1))
        log(f"filled {key(run, batch, name)} in {time.monotonic() - began:.1f} s")
    if left:
        log(f"{run.name}: {len(left)} steps left: {', '.join(f'{name} at batch {batch}' for batch, name in left)}")
    else:
        log(f"{run.name}: nothing left to fill")
