#!/bin/bash
# Our queue beside graphile-worker and apalis-postgres: same machine, same minute, interleaved rounds, the same load
# (CALLERS callers, one job each at a time; a cycle is submit + claim + finish, each durable).
#
#   tests/bench/queue-peers/run.sh [ROUNDS] [JOBS]
#
# Needs PostgreSQL's server programs, node with npm, cargo; the peers come from their package registries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-3} jobs=${2:-4000} callers=64
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
cargo build -q --release --manifest-path "$here/apalis/Cargo.toml" --target-dir "$work/target"
cargo build -q --release -p planforge-coordinator --benches --manifest-path "$here/../../../Cargo.toml"

for round in $(seq "$rounds"); do
    echo "round $round"
    as_pg "$pg/pg_test_fsync -s 1 -f $work/pg/fsync" 2>/dev/null | awk '/fdatasync/ && !n++ { print "fdatasync " $(NF-3) "/s" }'
    cargo bench -q -p planforge-coordinator --manifest-path "$here/../../../Cargo.toml" --bench farm -- store grpc
    (cd "$work" && node graphile.mjs $url $callers "$jobs")
    "$work/target/release/apalis-peer" $url $callers "$jobs"
done
