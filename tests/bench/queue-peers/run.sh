#!/bin/bash
# Our queue beside graphile-worker, apalis-postgres and procrastinate: same machine, same minute, interleaved rounds, the
# same load (CALLERS callers, one job each at a time; a cycle is submit + claim + finish, each durable), then IDLE jobs one
# by one on a farm that has nothing else to do: how long after its call a job is with a worker, and whether any was late.
# A peer that is not through with them after four minutes tells of as many as it did.
#
#   tests/bench/queue-peers/run.sh [ROUNDS] [JOBS] [IDLE]
#
# Needs PostgreSQL's server programs, node with npm, python3 with venv, cargo; the peers come from their package registries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-3} jobs=${2:-4000} idle=${3:-300} callers=64
work=$(mktemp -d); chmod 755 "$work"
pg=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin | sort -V | tail -1)
as_pg() { if [ "$(id -u)" = 0 ]; then su postgres -s /bin/sh -c "$1"; else sh -c "$1"; fi; }
cleanup() { as_pg "$pg/pg_ctl -D $work/pg/data -m immediate stop" >/dev/null 2>&1 || true; rm -rf "$work"; }
trap cleanup EXIT

mkdir "$work/pg"; [ "$(id -u)" != 0 ] || chown postgres "$work/pg"
as_pg "$pg/initdb -D $work/pg/data -U postgres -A trust" >/dev/null
as_pg "$pg/pg_ctl -D $work/pg/data -w -l $work/pg/log -o '-p 54329 -k $work/pg -c listen_addresses=127.0.0.1' start" >/dev/null
url=postgres://postgres@127.0.0.1:54329/postgres

(cd "$work" && cp "$here/graphile.mjs" . && npm init -y >/dev/null && npm install --silent graphile-worker@0.17.3 >/dev/null)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'procrastinate==3.10.0' 'psycopg[binary]'
cargo build -q --release --manifest-path "$here/apalis/Cargo.toml" --target-dir "$work/target"
cargo build -q --release -p planforge-coordinator --benches --manifest-path "$here/../../../Cargo.toml"

for round in $(seq "$rounds"); do
    echo "round $round"
    as_pg "$pg/pg_test_fsync -s 1 -f $work/pg/fsync" 2>/dev/null | awk '/fdatasync/ && !n++ { print "fdatasync " $(NF-3) "/s" }'
    PLANFORGE_BENCH_CALLS=$idle cargo bench -q -p planforge-coordinator \
        --manifest-path "$here/../../../Cargo.toml" --bench farm -- store grpc postgres
    (cd "$work" && node graphile.mjs $url $callers "$jobs" "$idle")
    "$work/target/release/apalis-peer" $url $callers "$jobs" "$idle"
    "$work/venv/bin/python3" "$here/procrastinate_peer.py" $url $callers "$jobs" "$idle"
done
