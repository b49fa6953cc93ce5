use super::*;
use crate::{Foreign, testing::sample_report};

const ONE: &str = "t4";
const OTHER: &str = "l4";

fn sku(text: &str) -> Sku {
    text.parse().unwrap()
}

fn subject(model: &str) -> Subject {
    Subject {
        model: model.into(),
        model_digest: Digest::of(b"model"),
        structure_digest: Some(Digest::of(model.as_bytes())),
        toolchain: "native 1".into(),
        spec: "fp32".into(),
    }
}

/// The plan built for `built_for` on a board of `measured_on`.
fn on_board(built_for: &str, measured_on: &str, board: &str, centre_ms: f64) -> Report {
    let mut report = sample_report(centre_ms);
    report.plan.digest = Digest::of(built_for.as_bytes());
    report.sku = sku(built_for);
    report.device.name = measured_on.into();
    report.provenance.agent = board.into();
    report.provenance.job = format!("{built_for}-{measured_on}-{board}");
    let foreign = Foreign { built_for: sku(built_for), measured_on: sku(measured_on) };
    report.foreign = (built_for != measured_on).then_some(foreign);
    report
}

fn rows() -> Vec<Built> {
    [ONE, OTHER].map(|name| Built { sku: sku(name), plan: Some(Digest::of(name.as_bytes())) }).into()
}

/// Both plans on two boards of both kinds.
fn everywhere(foreign_ms: f64) -> Vec<Report> {
    let boards = ["a", "b"].into_iter();
    let pairs = [(ONE, ONE, 1.0), (ONE, OTHER, foreign_ms), (OTHER, ONE, foreign_ms), (OTHER, OTHER, 1.0)];
    boards.flat_map(|board| pairs.map(|(built, on, ms)| on_board(built, on, &format!("{on}-{board}"), ms))).collect()
}

fn matrix(reports: &[Report], refusals: &[Refusal]) -> Matrix {
    Matrix::of(subject("net"), &rows(), reports, refusals)
}

fn state(matrix: &Matrix, built: &str, on: &str) -> State {
    matrix.cell(&sku(built), &sku(on)).unwrap().state
}

#[test]
fn cells_say_what_was_shown_and_what_was_not_measured() {
    let found = matrix(&everywhere(1.5), &[]);
    assert_eq!([ONE, OTHER].map(|on| state(&found, ONE, on)), [State::Own, State::Suboptimal]);
    let cell = found.cell(&sku(ONE), &sku(OTHER)).unwrap();
    assert!((cell.loss.as_ref().unwrap().relative - 0.5).abs() < 0.01);
    assert!(cell.short().ends_with(" % suboptimal") && cell.words().unwrap().contains("device: t4 and l4"), "{cell:?}");
    assert_eq!(state(&matrix(&everywhere(1.0), &[]), ONE, OTHER), State::Valid);
    // Nothing is concluded from the other cells.
    let mut missing = everywhere(1.0);
    missing.retain(|report| report.foreign.is_none());
    let found = matrix(&missing, &[]);
    assert_eq!(state(&found, ONE, OTHER), State::Unmeasured);
    assert!(found.cells[1].words().unwrap().ends_with("not measured: no measurement on l4"), "{:?}", found.cells[1]);
    let mut unbuilt = rows();
    unbuilt[0].plan = None;
    let found = Matrix::of(subject("net"), &unbuilt, &everywhere(1.0), &[]);
    assert_eq!(found.cells[0].reason.as_deref(), Some("nothing was built for t4"));
    assert!(found.cells[2].reason.as_ref().unwrap().contains("no engine of the same model"), "{:?}", found.cells[2]);
}

#[test]
fn what_cannot_be_judged_is_undecided_and_wrong_outputs_are_wrong() {
    let mut reports = everywhere(1.0);
    for report in reports.iter_mut().filter(|report| report.foreign.is_some()) {
        report.windows[0].kept_tainted = true;
    }
    let found = matrix(&reports, &[]);
    assert_eq!(state(&found, ONE, OTHER), State::Undecided);
    assert!(found.cells[1].reason.as_ref().unwrap().contains("disturbed"), "{:?}", found.cells[1]);
    reports.iter_mut().for_each(|report| report.accurate = false);
    let found = matrix(&reports, &[]);
    assert!(found.cells.iter().all(|cell| cell.state == State::Wrong), "{found:?}");
}

#[test]
fn a_refusal_holds_until_a_later_measurement() {
    let refusal = |at_unix_ms: u64| Refusal {
        built_for: sku(ONE),
        measured_on: sku(OTHER),
        reason: "built for compute capability 7.5".into(),
        at_unix_ms,
    };
    let found = matrix(&everywhere(1.0), &[refusal(1)]);
    assert_eq!(state(&found, ONE, OTHER), State::Valid);
    let found = matrix(&everywhere(1.0), &[refusal(1), refusal(u64::MAX)]);
    let cell = found.cell(&sku(ONE), &sku(OTHER)).unwrap();
    assert_eq!((cell.state, cell.boards.len()), (State::Refused, 0));
    assert!(cell.words().unwrap().contains("refused: built for compute capability 7.5"), "{cell:?}");
    assert_eq!(state(&found, OTHER, ONE), State::Valid);
}

fn three(reports: impl Fn() -> Vec<Report>) -> Vec<Matrix> {
    ["a", "b", "c"].map(|model| Matrix::of(subject(model), &rows(), &reports(), &[])).into()
}

#[test]
fn kinds_are_interchangeable_by_three_models_and_two_boards_each() {
    let found = classes(&three(|| everywhere(1.0)));
    assert_eq!(found.classes, [vec![sku(ONE), sku(OTHER)]]);
    assert!(found.pairs[0].words().ends_with("valid both ways in 3 models, on 2 and 2 boards"), "{found:?}");
}

#[test]
fn too_little_evidence_makes_no_class_and_says_what_lacks() {
    let lacks = |matrices: &[Matrix]| {
        let found = classes(matrices);
        assert!(found.classes.is_empty(), "{found:?}");
        found.pairs[0].lacks.join("; ")
    };
    assert!(lacks(&three(|| everywhere(1.0))[..2]).contains("2 of the 3 models"));
    // Other weights of one architecture are no other model.
    let same: Vec<Matrix> = (0..3).map(|_| matrix(&everywhere(1.0), &[])).collect();
    assert!(lacks(&same).contains("1 of the 3 models"));
    let one_board = || everywhere(1.0).into_iter().filter(|report| report.provenance.agent.ends_with('a')).collect();
    assert!(lacks(&three(one_board)).contains("1 of the 2 boards of t4"));
    let simulated =
        || -> Vec<Report> { everywhere(1.0).into_iter().map(|report| Report { simulated: true, ..report }).collect() };
    assert!(lacks(&three(simulated)).contains("simulated figures are no evidence"));
    // One board that is slower is enough, even where the newest measurement says otherwise.
    let slower = || {
        let mut reports = everywhere(1.0);
        let mut one = on_board(ONE, OTHER, "l4-c", 1.5);
        one.provenance.measured_unix_ms -= 1;
        reports.push(one);
        reports
    };
    let said = lacks(&three(slower));
    assert!(said.contains("the plan of a for t4 is suboptimal on l4"), "{said}");
}

#[test]
fn an_engine_stands_in_for_one_of_its_class_with_the_loss_of_the_others() {
    let (one, other) = (sku(ONE), sku(OTHER));
    let like = ("native 1", "fp32");
    let found = stand_in(&three(|| everywhere(1.004)), like, &one, &other).unwrap();
    assert_eq!((found.built_for.clone(), found.models, found.boards), (one.clone(), 3, [2, 2]));
    assert!(found.loss_low < 0.004 && found.loss_high > 0.004 && found.loss_high <= SAME_MARGIN, "{found:?}");
    assert!(found.words().contains("built for t4") && found.words().contains("by 3 models on 2 and 2 boards"));
    let refused = |matrices: &[Matrix], like| stand_in(matrices, like, &one, &other).unwrap_err();
    assert!(refused(&three(|| everywhere(1.0))[..2], like).contains("2 of the 3 models"));
    assert!(refused(&three(|| everywhere(1.0)), ("native 2", "fp32")).contains("none of 3 matrices is of native 2"));
    assert!(refused(&three(|| everywhere(1.0)), ("native 1", "int8")).contains("int8"));
    let simulated =
        || -> Vec<Report> { everywhere(1.0).into_iter().map(|report| Report { simulated: true, ..report }).collect() };
    assert!(refused(&three(simulated), like).contains("simulated figures are no evidence"));
    assert!(refused(&three(|| everywhere(1.5)), like).contains("suboptimal"));
    assert_eq!(spec_words(&planforge_types::BuildSpec::default()), "fp32");
}
