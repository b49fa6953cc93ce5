"""Checks of what needs neither torch nor a GPU: `python3 -m unittest discover -s tests/bench/cuda-vs-pytorch`."""

import pathlib
import tempfile
import time
import unittest

import grid
import limits
import rows
import table


def row(engine, ms, run=1, model="resnet50", batch=1, **more):
    times = {measure: ms for measure in grid.MEASURES}
    return {"model": model, "batch": batch, "engine": engine, "run": run, "rounds": 5, **times, **more}


def layer(ms, flops=0, name="conv"):
    return {"name": name, "kind": "conv", "ms": ms, "flops": flops, "bytes": 1000, "tactic": None}


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def text(self, *given, builds=(), streams=()):
        rows.append(self.out, "rows", given)
        rows.append(self.out, "builds", builds)
        rows.append(self.out, "streams", streams)
        return table.markdown(self.out)

    def test_nothing_is_a_table_that_says_so(self):
        text = self.text()
        for model, batch in grid.cells():
            self.assertIn(f"- {model}, batch {batch}: not run", text)
        self.assertEqual(len(grid.cells()), 19)

    def test_the_zoo_is_held_against_the_better_peer(self):
        given = [r for model, batch in grid.zoo_cells()[:2] for r in (
            row(grid.OURS, 1.0, model=model, batch=batch, relative_rms=1e-3),
            row("graph-fp16", 2.0, model=model, batch=batch, relative_rms=2e-3),
            row("reduce-overhead", 0.5 if batch == 8 else 8.0, model=model, batch=batch),
        )]  # fmt: skip
        rows.append(self.out, "rows", given)
        text = table.zoo_markdown(self.out)
        self.assertIn("faster than both in 1 of 2 cells measured of 30, against the better of the two 1.00 x", text)
        self.assertIn("| 1.0e-03 | 2.0e-03 |", text)
        self.assertIn(f"{grid.zoo_cells()[2][0]} 1: not run", text)

    def test_the_zoo_in_fp32_is_held_against_peers_in_fp32(self):
        model, batch = grid.zoo_cells()[1]
        given = [row("graph-fp16", 0.1, model=model, batch=batch), row(grid.OURS, 0.1, model=model, batch=batch)]
        given += [row(grid.OURS_FP32, 1.0, model=model, batch=batch, relative_rms=1e-6)]
        given += [row(peer, ms, model=model, batch=batch) for peer, ms in zip(grid.PEERS_FP32, (3.0, 2.0))]
        rows.append(self.out, "rows", given)
        text = table.zoo_markdown(self.out, "fp32", [batch])
        self.assertIn("faster than both in 1 of 1 cells measured of 15, against the better of the two 2.00 x", text)
        self.assertEqual(grid.peers(model, batch, "fp32"), grid.PEERS_FP32)

    def test_ratios_are_of_one_run(self):
        given = [row(grid.OURS, 1.0), row("graph-fp16", 3.0), row(grid.OURS, 2.0, run=2), row("max-autotune", 5.0, run=2)]
        results = table.Results(given)
        self.assertEqual(results.ratio(("resnet50", 1), "graph-fp16", grid.MEASURES[0]), 3.0)
        self.assertEqual(results.ratio(("resnet50", 1), "max-autotune", grid.MEASURES[0]), 2.5)
        self.assertEqual(results.latest(("resnet50", 1), grid.OURS, grid.MEASURES[0]), 2.0)

    def test_what_is_missing_has_its_reason(self):
        failed = {"model": "resnet50", "batch": 1, "engine": "max-autotune", "run": 1, "error": "not ready: too slow"}
        ended = {"model": "resnet50", "batch": 1, "engine": "reduce-overhead", "run": 1, "prepared_s": 3.0}
        cut = row("graph-fp16", 2.0, error="failed while it was timed")
        text = self.text(row(grid.OURS, 1.0), failed, ended, cut)
        self.assertIn("resnet50, batch 1, max-autotune: not ready: too slow", text)
        self.assertIn("resnet50, batch 1, reduce-overhead: the run ended before it was timed", text)
        self.assertIn("resnet50, batch 1, graph-fp16: timed in 5 rounds, then failed", text)
        self.assertIn("resnet50, batch 1, eager-fp32: not run", text)
        self.assertNotIn(f"resnet50, batch 1, {grid.OURS}", text)

    def test_a_failure_does_not_hide_an_earlier_success(self):
        failed = {"model": "resnet50", "batch": 1, "engine": "graph-fp16", "run": 2, "error": "no"}
        results = table.Results([row("graph-fp16", 2.0), failed])
        self.assertIsNone(results.reason(("resnet50", 1), "graph-fp16"))

    def test_the_must_counts_cells_and_says_what_is_missing(self):
        given = [r for model, batch in grid.cells() for r in (
            row(grid.OURS, 1.0, model=model, batch=batch),
            row("graph-fp16", 2.0, model=model, batch=batch),
            row("reduce-overhead", 0.5 if model == "bert_base" else 1.5, model=model, batch=batch),
        )]  # fmt: skip
        lines = table.must(table.Results(given))
        self.assertIn("| call, static | 16 of 19 | bert_base 1, bert_base 8, bert_base 32 | none | no |", lines)
        given = [r for r in given if r["model"] != "bert_base"]
        lines = table.must(table.Results(given))
        met = "so far, cells are missing"
        self.assertIn(f"| call, static | 16 of 16 | none | bert_base 1, bert_base 8, bert_base 32 | {met} |", lines)

    def test_a_cell_that_misses_is_listed_with_its_layers(self):
        own = row(grid.OURS, 1.0, relative_rms=2e-2, layers=[layer(0.1), layer(0.4, int(4e9), "slow one")])
        text = self.text(own, row("graph-fp16", 0.9))
        self.assertIn("### resnet50, batch 1: misses", text)
        self.assertIn("not faster than graph-fp16 (call, static 0.90 x", text)
        self.assertIn("1.000 ms, the goal is 0.300 ms", text)
        self.assertIn("relative RMS 2.0e-02, allowed is 1e-02", text)
        self.assertIn("| 0.4000 | 80.0% | 10.0 | 0 | conv | – | slow one |", text)

    def test_builds_and_streams_are_shown(self):
        built = {"model": "resnet50", "batch": 1, "contexts": 1, "steps": 57, "plan_mib": 60, "weights_mib": 49,
                 "device_mib": 70, "ready_s": 130.0, "cold": True, "warm": False}  # fmt: skip
        warm = {**built, "ready_s": 8.25, "cold": False, "warm": True}
        case = {"model": "detector", "batch": 16, "streams": 4, "engine": "eager-fp32", "frames_per_s": 2000.5,
                "latency_ms": 30.1, "latency_p95_ms": 31.0, "utilisation_percent": None, "memory_mib": 900,
                "process_mib": 1500}  # fmt: skip
        broken = {"model": "detector", "batch": 16, "streams": 4, "engine": grid.OURS, "error": "no device"}
        text = self.text(row(grid.OURS, 0.2), builds=[built, warm], streams=[case, broken])
        self.assertIn("| resnet50 | 1 | 57 | 60 | 49 | 70 | 130.0 | 8.2 |", text)
        self.assertIn("cold build 130.0 s, allowed are 120 s", text)
        self.assertIn("| detector | 16 x 4 | eager-fp32 | 2000.5 | 30.1 | 31.0 | – | 900 | 1500 |", text)
        self.assertIn(f"- {grid.OURS}: no device", text)


class Rows(unittest.TestCase):
    def test_a_run_that_is_ended_keeps_its_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            cell = rows.Cell(out, {"model": "resnet50", "batch": 1})
            cell.set("graph-fp16", static_call_ms=1.0)
            cell.keep()
            cell.set("graph-fp16", static_call_ms=2.0)
            cell.keep()
            self.assertEqual([row["static_call_ms"] for row in rows.all_rows(out)], [2.0])
            # The run ends here; the next one takes the rows over.
            following = rows.Cell(out, {"model": "resnet50", "batch": 8})
            following.set("graph-fp16", static_call_ms=3.0)
            following.finish()
            self.assertEqual([row["batch"] for row in rows.read(out, "rows")], [1, 8])
            self.assertEqual(rows.read(out, "unfinished"), [])
            with open(out / "rows.jsonl", "a") as file:
                file.write('{"model": "resn')
            self.assertEqual(len(rows.all_rows(out)), 2)
            rows.append(out, "rows", [{"batch": 32}])
            self.assertEqual([row["batch"] for row in rows.all_rows(out)], [1, 8, 32])


    def test_a_cell_is_missing_until_every_engine_is_timed(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            rows.append(out, "rows", [row(grid.OURS, 1.0), row("graph-fp16", 2.0, error="failed while it was timed")])
            wanted = {grid.OURS, "graph-fp16"}
            self.assertEqual(rows.timed(out, "resnet50", 1, grid.MEASURES), {grid.OURS})
            self.assertEqual(rows.timed(out, "resnet50", 8, grid.MEASURES), set())
            rows.append(out, "rows", [row("graph-fp16", 2.0)])
            self.assertEqual(rows.timed(out, "resnet50", 1, grid.MEASURES), wanted)


class Limits(unittest.TestCase):
    def test_seconds_of_the_command_run_out(self):
        self.assertEqual(limits.seconds_left(None), float("inf"))
        self.assertLess(limits.seconds_left(0.0), 0.0)

    def test_what_takes_too_long_is_ended_even_where_exceptions_are_swallowed(self):
        def stubborn():
            while True:
                try:
                    time.sleep(0.01)
                except Exception:
                    pass

        with self.assertRaisesRegex(limits.OutOfTime, "a part did not end"):
            with limits.limit(0.05, "a part"):
                stubborn()

    def test_what_ends_in_time_is_left_alone(self):
        with limits.limit(30, "a part"):
            value = 1
        self.assertEqual(value, 1)

    def test_seconds_add_up_by_part(self):
        parts = limits.Parts()
        for _ in range(2):
            with parts.part("one"):
                pass
        self.assertEqual(list(parts.seconds), ["one"])
        self.assertIn("s  one", parts.text())


if __name__ == "__main__":
    unittest.main()
