//! Report files: what `--json` prints is read again, and figures that contradict their samples are not.

use crate::support::{World, transcript};
use planforge_report::{Report, schema, testing::sample_report};
use serde_json::{Value, json};
use std::process::Output;

fn printed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn medians(reports: &[Report]) -> Vec<f64> {
    reports.iter().map(|report| report.latency_ms.median).collect()
}

fn told(document: &Value, list: &str, figure: &str) -> Vec<f64> {
    let rows = document[list].as_array().unwrap_or_else(|| panic!("no {list} in {document:#}"));
    rows.iter().map(|row| row.pointer(figure).and_then(Value::as_f64).unwrap()).collect()
}

#[test]
fn what_report_prints_is_shown_compared_and_gated_again() {
    let world = World::new();
    let reports = [sample_report(1.0), sample_report(1.004), sample_report(2.0)];
    world.write("one.json", serde_json::to_vec(&reports[0]).unwrap());
    // Printed once: the very document of `planforge report FILE --json`.
    let one = world.run(&["report", "one.json", "--json"]);
    world.write("printed.json", &one.stdout);
    assert_eq!(printed(&world.run(&["report", "printed.json", "--json"])), printed(&one));
    assert!(world.run(&["report", "printed.json"]).status.success());

    let all = json!({ "reports": reports, "artifacts": [[], [], []], "portability": [null, null, null] });
    let lines = reports.iter().map(|report| serde_json::to_string(report).unwrap() + "\n").collect::<String>();
    for (name, text) in
        [("all.json", all.to_string()), ("list.json", json!(reports).to_string()), ("lines.json", lines)]
    {
        world.write(name, text);
        let shown = printed(&world.run(&["report", name, "--json"]));
        assert_eq!(told(&shown, "reports", "/latency_ms/median"), medians(&reports), "{name}");
        let compared = printed(&world.run(&["compare", name, "--json"]));
        assert_eq!(told(&compared, "rows", "/median_ms"), medians(&reports), "{name}");
        let both = printed(&world.run(&["compare", "printed.json", name, "--json"]));
        assert_eq!(both["rows"].as_array().unwrap().len(), 4, "{name}");
    }
    let passed = world.run(&["compare", "printed.json", "one.json", "--gate", "5"]);
    assert_eq!(passed.status.code(), Some(0), "{}", transcript(world.root(), &passed));
    let failed = world.run(&["compare", "all.json", "--gate", "5"]);
    assert_eq!(failed.status.code(), Some(9), "{}", transcript(world.root(), &failed));
}

#[test]
fn imported_figures_stand_beside_what_was_measured_with_their_mark() {
    let world = World::new();
    let report = sample_report(1.0);
    world.write("one.json", serde_json::to_vec(&report).unwrap());
    let (batch, sku) = (report.batch, &report.sku);
    let head = "name,device,precision,batch,median_ms,source\n";
    world.write(
        "elsewhere.csv",
        format!("{head}TensorRT,{sku},fp16,{batch},2.02,a paper\nTensorRT,t4,fp16,1,9,a paper\n"),
    );
    let beside = ["compare", "one.json", "--imported", "elsewhere.csv"];
    let output = world.run(&beside);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", transcript(world.root(), &output));
    assert!(said.contains("1 beside TensorRT fp16 [imported: a paper]: 2.00x as fast, not judged"), "{said}");
    let document = printed(&world.run(&[&beside[..], &["--json"]].concat()));
    assert_eq!(document["imported"].as_array().map(Vec::len), Some(1), "{document:#}");
    assert_eq!((&document["imported"][0]["figure"]["source"], &document["pairs"]), (&json!("a paper"), &json!([])));
    // No gate passes by what was measured elsewhere.
    let gated = world.run(&[&beside[..], &["--gate", "900"]].concat());
    assert_eq!(gated.status.code(), Some(9), "{}", transcript(world.root(), &gated));
    for (name, text, said) in [
        ("lacking.csv", format!("{head}TensorRT,{sku},fp16,{batch},,a paper\n"), "lacking.csv: line 2 lacks median_ms"),
        ("other.csv", format!("{head}TensorRT,t4,fp16,1,9,a paper\n"), "no imported figure is of what was measured"),
    ] {
        world.write(name, text);
        let refused = world.run(&["compare", "one.json", "--imported", name]);
        let told = transcript(world.root(), &refused);
        assert!(refused.status.code() == Some(2) && told.contains(said), "{told}");
    }
}

#[test]
fn reports_are_what_the_printed_schema_says() {
    let world = World::new();
    let schema = printed(&world.run(&["report", "--schema"]));
    assert_eq!(schema, serde_json::from_str::<Value>(schema::SCHEMA).unwrap());
    world.write("one.json", serde_json::to_vec(&sample_report(1.0)).unwrap());
    let shown = printed(&world.run(&["report", "one.json", "--json"]));
    assert_eq!(schema::complaints(&shown["reports"][0]), Vec::<String>::new());
    assert_eq!(shown["advice"][0], json!([]), "{shown:#}");
}

#[test]
fn figures_that_contradict_their_samples_are_refused() {
    let world = World::new();
    world.write("good.json", serde_json::to_vec(&sample_report(1.0)).unwrap());
    let mut wrong = sample_report(1.0);
    wrong.latency_ms.median = 0.25;
    world.write("wrong.json", serde_json::to_vec(&wrong).unwrap());
    world.write("both.json", json!({ "reports": [sample_report(1.0), wrong] }).to_string());
    let commands: [&[&str]; 4] = [
        &["report", "wrong.json"],
        &["compare", "good.json", "wrong.json"],
        &["compare", "good.json", "wrong.json", "--gate", "5"],
        &["report", "both.json"],
    ];
    for command in commands {
        let output = world.run(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{command:?}: {said}");
        let name = if command.contains(&"both.json") { "report 2 of both.json" } else { "wrong.json" };
        for words in [name, "latency_ms.median is stated as 0.25", "come to 1.0", "hint: ", "planforge bench"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    let mut throughput = sample_report(1.0);
    throughput.throughput_per_s *= 1.16;
    world.write("throughput.json", serde_json::to_vec(&throughput).unwrap());
    let refused = printed(&world.run(&["report", "throughput.json", "--json"]));
    assert_eq!(refused["error"]["exit_code"], 2, "{refused:#}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("throughput_per_s"), "{refused:#}");
}
