use super::*;
use planforge_backend::{Window, WindowSamples};
use planforge_report::LayerTime;
use planforge_types::{BackendError, DimRange};

fn port(name: &str, element: ElementType, shape: &[u64]) -> Port {
    Port { name: name.into(), element, shape: shape.iter().map(|&size| Some(size)).collect() }
}

fn inputs() -> Vec<Port> {
    vec![
        port("token", ElementType::I64, &[1, 1]),
        port("position", ElementType::I64, &[1]),
        port("cache", ElementType::F32, &[1, 4]),
    ]
}

fn outputs() -> Vec<Port> {
    vec![port("next_token", ElementType::I64, &[1, 1]), port("next_cache", ElementType::F32, &[1, 4])]
}

fn plan<'a>(states: Vec<(String, String)>, [inputs, outputs]: [&'a [Port]; 2]) -> Plan<'a> {
    let known = |(input, output): (String, String)| Cache { input, output, places: Some(4) };
    Plan { inputs, outputs, caches: states.iter().cloned().map(known).collect(), states, profiles: &[] }
}

fn states() -> Vec<(String, String)> {
    vec![("cache".into(), "next_cache".into())]
}

/// A model whose next token is the token plus the place, and whose cache is the last token.
struct Adder {
    bound: NamedTensors,
    in_place: bool,
}

impl Meter for Adder {
    fn inputs(&self) -> Vec<Port> {
        inputs()
    }

    fn outputs(&self) -> Vec<Port> {
        outputs()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.bound = inputs.clone();
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        let of = |name: &str| whole_numbers(&self.bound[name]).unwrap()[0];
        let next = of_number(ElementType::I64, &[1, 1], of("token") + of("position"));
        let cache = HostTensor { bytes: vec![of("token") as u8; 16], ..self.bound["cache"].clone() };
        Ok([("next_token".to_owned(), next), ("next_cache".to_owned(), cache)].into())
    }

    fn states(&self) -> Vec<(String, String)> {
        if self.in_place { states() } else { Vec::new() }
    }

    fn step(&mut self, inputs: &NamedTensors, wanted: &[String]) -> Result<Option<NamedTensors>, BackendError> {
        if !self.in_place {
            return Ok(None);
        }
        self.bound.extend(inputs.clone());
        let mut outputs = self.run()?;
        self.bound.insert("cache".into(), outputs["next_cache"].clone());
        outputs.retain(|name, _| wanted.contains(name));
        Ok(Some(outputs))
    }

    fn window(&mut self, _: Window) -> Result<WindowSamples, BackendError> {
        unreachable!("nothing is timed")
    }

    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        unreachable!("nothing is timed")
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}

fn numbers(values: &[i64]) -> HostTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    HostTensor { element: ElementType::I64, shape: vec![values.len()], bytes }
}

#[test]
fn the_token_and_the_place_are_found_by_their_shapes() {
    let of = Loop::of(plan(states(), [&inputs(), &outputs()]), &[], None).unwrap();
    assert_eq!(of.feeds, [("token".to_owned(), "next_token".to_owned())]);
    assert_eq!(of.count.as_deref(), Some("position"));
}

#[test]
fn tokens_go_from_run_to_run_in_place_or_through_the_host() {
    for in_place in [true, false] {
        let mut meter = Adder { bound: NamedTensors::new(), in_place };
        let of = Loop::of(plan(meter.states(), [&inputs(), &outputs()]), &[], None).unwrap();
        let given: NamedTensors = [(PROMPT.to_owned(), numbers(&[5, 7]))].into();
        let decoded = of.run(&mut meter, 0, given, 3).unwrap();
        // 7 at place 1, 8 at place 2, 10 at place 3.
        assert_eq!(whole_numbers(&decoded.outputs[TOKENS]), Some(vec![8, 10, 13]));
        assert_eq!((decoded.runs, meter.bound["cache"].bytes[0]), (4, if in_place { 10 } else { 8 }));
    }
}

#[test]
fn more_tokens_than_a_cache_has_places_are_refused_before_anything_runs() {
    let refused = |given: NamedTensors, tokens: usize| {
        let mut meter = Adder { bound: NamedTensors::new(), in_place: true };
        let of = Loop::of(plan(states(), [&inputs(), &outputs()]), &[], None).unwrap();
        let failure = of.run(&mut meter, 0, given, tokens).err();
        assert_eq!(failure.is_some(), meter.bound.is_empty(), "what is refused is not bound");
        failure
    };
    let prompt = |more: &[(&str, i64)]| -> NamedTensors {
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), of_number(ElementType::I64, &[1], *value)));
        more.chain([(PROMPT.to_owned(), numbers(&[5, 7]))]).collect()
    };
    assert!(refused(prompt(&[]), 3).is_none(), "four runs have four places");
    let failure = refused(prompt(&[]), 4).unwrap();
    assert!(failure.to_string().contains("'cache' has room for 4 tokens, and 5 are asked for"), "{failure}");
    assert!(failure.hint.contains("at most 3 with --loop"), "{}", failure.hint);
    let failure = refused(prompt(&[("position", 3)]), 1).unwrap();
    assert!(failure.to_string().contains("3 of them from before"), "{failure}");
    assert_eq!(failure.hint, "export the model with caches of more places", "the prompt alone is too long");
}

#[test]
fn what_is_missing_is_said() {
    let failure = Loop::of(plan(vec![], [&inputs(), &outputs()[..1]]), &[], None).unwrap_err();
    assert!(failure.to_string().contains("keeps nothing from run to run"), "{failure}");
    assert!(failure.hint.contains("--feed INPUT=OUTPUT"), "{}", failure.hint);
    let failure = Loop::of(plan(states(), [&inputs(), &outputs()]), &["token=cache".into()], None).unwrap_err();
    assert_eq!(failure.to_string(), "the plan has no output 'cache'");
    let of = Loop::of(plan(states(), [&inputs(), &outputs()]), &[], None).unwrap();
    let mut meter = Adder { bound: NamedTensors::new(), in_place: true };
    let failure = of.run(&mut meter, 0, NamedTensors::new(), 1).err().unwrap();
    assert_eq!(failure.to_string(), "the file has no input 'token', nor tokens called 'prompt'");
    let mut two = inputs();
    two.push(port("other", ElementType::I64, &[1]));
    let failure = Loop::of(plan(states(), [&two, &outputs()]), &[], None).unwrap_err();
    assert!(failure.to_string().contains("position, other"), "{failure}");
}

/// Scores of which the largest is that of the number of places that the mask shows; a bad one counts all of them.
#[derive(Default)]
struct Seer {
    bound: NamedTensors,
    profile: usize,
    lengths: Vec<usize>,
    is_bad: bool,
    /// Caches stay, and what is new comes where it is told.
    keeps: bool,
    /// Scores are higher where what is shown rises.
    goes_by_order: bool,
    /// What comes out is the token, no scores.
    tells_token: bool,
    newest: f64,
    kept: Vec<u64>,
}

fn growing_ports() -> [Vec<Port>; 2] {
    let open = |name: &str, element, shape: &[Option<u64>]| Port { name: name.into(), element, shape: shape.to_vec() };
    let cache = [Some(1), None];
    let inputs = vec![
        port("input_ids", ElementType::I64, &[1, 1]),
        open("attention_mask", ElementType::I64, &cache),
        port("position_ids", ElementType::I64, &[1, 1]),
        open("past.0", ElementType::F32, &cache),
    ];
    let outputs = vec![port("logits", ElementType::F32, &[1, 1, 9]), open("present.0", ElementType::F32, &cache)];
    [inputs, outputs]
}

impl Meter for Seer {
    fn inputs(&self) -> Vec<Port> {
        growing_ports()[0].clone()
    }

    fn outputs(&self) -> Vec<Port> {
        let mut outputs = growing_ports()[1].clone();
        if self.tells_token {
            outputs[0] = port("next", ElementType::I64, &[1, 1]);
        }
        outputs
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        let places = inputs["past.0"].shape[1];
        assert_eq!(inputs["attention_mask"].shape, [1, places + 1]);
        assert_eq!(self.profile, usize::from(places > 4), "of two profiles the longer takes more than 4 places");
        self.lengths.push(places);
        self.bound = inputs.clone();
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        let mut past = numbers::scores(&self.bound["past.0"]).unwrap();
        let mask = whole_numbers(&self.bound["attention_mask"]).unwrap();
        let shown: i64 = mask.iter().sum();
        assert!(past.iter().rev().take(shown as usize - 1).all(|held| *held > 0.0), "{past:?}");
        let best = if self.is_bad { mask.len() } else { shown as usize };
        let rises = past[past.len() + 1 - shown as usize..].is_sorted();
        let largest = if self.goes_by_order && rises { 2.0 } else { 1.0 };
        let scores: Vec<f64> = (0..9).map(|place| if place == best { largest } else { 0.0 }).collect();
        self.newest = 1.0 + whole_numbers(&self.bound["input_ids"]).unwrap()[0] as f64;
        past.push(self.newest);
        let present = HostTensor::of_values(ElementType::F32, vec![1, past.len()], &past);
        let logits = HostTensor::of_values(ElementType::F32, vec![1, 1, 9], &scores);
        let said = match self.tells_token {
            true => ("next".to_owned(), of_number(ElementType::I64, &[1, 1], best as i64)),
            false => ("logits".to_owned(), logits),
        };
        Ok([said, ("present.0".to_owned(), present)].into())
    }

    fn growing(&self) -> Vec<(String, String)> {
        if self.keeps { vec![("past.0".into(), "present.0".into())] } else { Vec::new() }
    }

    fn step(&mut self, inputs: &NamedTensors, outputs: &[String]) -> Result<Option<NamedTensors>, BackendError> {
        assert!(self.keeps && !inputs.contains_key("past.0"), "{:?}", inputs.keys());
        self.bound.extend(inputs.clone());
        let mut all = self.run()?;
        all.retain(|name, _| outputs.contains(name));
        Ok(Some(all))
    }

    fn keep(&mut self, place: u64) -> Result<(), BackendError> {
        let mut past = numbers::scores(&self.bound["past.0"]).unwrap();
        assert_eq!(past[place as usize], 0.0, "{past:?} has room at {place}");
        past[place as usize] = self.newest;
        self.bound.insert("past.0".into(), HostTensor::of_values(ElementType::F32, vec![1, past.len()], &past));
        self.kept.push(place);
        Ok(())
    }

    fn switch_profile(&mut self, profile: usize) -> Result<Option<()>, BackendError> {
        self.profile = profile;
        Ok(Some(()))
    }

    fn window(&mut self, _: Window) -> Result<WindowSamples, BackendError> {
        unreachable!("nothing is timed")
    }

    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        unreachable!("nothing is timed")
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}

fn seen(is_bad: bool, given: NamedTensors, tokens: usize) -> (Seer, Result<Decoded, Failure>) {
    seen_by(Seer { is_bad, ..Seer::default() }, [4, 7], given, tokens)
}

fn seen_by(mut meter: Seer, lengths: [u64; 2], given: NamedTensors, tokens: usize) -> (Seer, Result<Decoded, Failure>) {
    let range = |min: u64, max: u64| DimRange { min, opt: max, max };
    let profile =
        |max: u64| OptimizationProfile { inputs: [("past.0".into(), vec![range(1, 1), range(max, max)])].into() };
    let profiles = lengths.map(profile);
    let (inputs, outputs) = (meter.inputs(), meter.outputs());
    let plan = Plan { inputs: &inputs, outputs: &outputs, caches: Vec::new(), states: Vec::new(), profiles: &profiles };
    let of = Loop::of(plan, &[], None).unwrap();
    assert_eq!(of.feeds, [("input_ids".to_owned(), outputs[0].name.clone())]);
    assert_eq!(of.count.as_deref(), Some("position_ids"));
    let decoded = of.run(&mut meter, 0, given, tokens);
    (meter, decoded)
}

#[test]
fn caches_that_grow_go_through_the_lengths_of_the_profiles() {
    let (meter, decoded) = seen(false, [(PROMPT.to_owned(), numbers(&[5, 7]))].into(), 6);
    let decoded = decoded.unwrap();
    assert_eq!(whole_numbers(&decoded.outputs[TOKENS]), Some(vec![2, 3, 4, 5, 6, 7]));
    assert_eq!(decoded.outputs.keys().collect::<Vec<_>>(), ["logits", TOKENS], "caches are not written");
    // Where the shorter ones are full, the longer ones are tried beside.
    assert_eq!(meter.lengths, [4, 4, 4, 4, 7, 4, 7, 7]);
    assert_eq!(whole_numbers(&meter.bound["position_ids"]), Some(vec![6]));
}

#[test]
fn caches_that_grow_stay_on_the_device_in_any_order() {
    let prompt = || NamedTensors::from([(PROMPT.to_owned(), numbers(&[0]))]);
    let tokens = |decoded: Result<Decoded, Failure>| {
        let decoded = decoded.unwrap();
        assert_eq!(decoded.outputs.keys().collect::<Vec<_>>(), ["logits", TOKENS], "caches are not written");
        (whole_numbers(&decoded.outputs[TOKENS]).unwrap(), decoded.in_order)
    };
    let keeps = || Seer { keeps: true, ..Seer::default() };
    let (meter, decoded) = seen_by(keeps(), [4, 7], prompt(), 8);
    assert_eq!(tokens(decoded), ((1..=8).collect(), false));
    // Tried in the other order where four places hold something, beside the trial of the other length.
    assert_eq!(meter.lengths, [4, 4, 4, 4, 7, 4, 4, 7]);
    assert_eq!(meter.kept, [1, 0], "the last run has no place left");
    assert_eq!(numbers::scores(&meter.bound["past.0"]).unwrap(), [7.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let (meter, decoded) = seen_by(Seer { goes_by_order: true, ..keeps() }, [4, 7], prompt(), 8);
    assert_eq!(tokens(decoded), ((1..=8).collect(), true));
    assert!(meter.kept.is_empty(), "{:?}", meter.kept);
    // A token alone does not show whether order counts.
    let (meter, decoded) = seen_by(Seer { tells_token: true, ..keeps() }, [4, 7], prompt(), 8);
    assert_eq!(whole_numbers(&decoded.unwrap().outputs[TOKENS]), Some((1..=8).collect()));
    assert!(meter.kept.is_empty(), "{:?}", meter.kept);
}

#[test]
fn caches_that_were_given_are_gone_on_from() {
    let cache = HostTensor::of_values(ElementType::F32, vec![1, 2], &[3.0, 4.0]);
    let given: NamedTensors =
        [("past.0".to_owned(), cache), ("input_ids".to_owned(), of_number(ElementType::I64, &[1, 1], 7))].into();
    let (meter, decoded) = seen(false, given, 2);
    assert_eq!(whole_numbers(&decoded.unwrap().outputs[TOKENS]), Some(vec![3, 4]));
    assert_eq!(numbers::scores(&meter.bound["past.0"]), Some(vec![0.0, 3.0, 4.0, 8.0]));
    assert_eq!(whole_numbers(&meter.bound["position_ids"]), Some(vec![3]));
}

#[test]
fn what_grows_beyond_the_profiles_or_does_not_go_by_the_mask_is_refused() {
    let prompt = || [(PROMPT.to_owned(), numbers(&[5, 7]))].into();
    let (meter, decoded) = seen(false, prompt(), 8);
    let failure = decoded.err().unwrap();
    assert!(failure.to_string().starts_with("'past.0' has room for 8 tokens, and 9 are asked for"), "{failure}");
    assert!(failure.hint.contains("at most 7 with --loop") && failure.hint.ends_with("goes to 8"), "{}", failure.hint);
    assert!(meter.lengths.is_empty(), "nothing ran");
    for tokens in [2, 6] {
        let (_, decoded) = seen(true, prompt(), tokens);
        let failure = decoded.err().unwrap();
        assert!(failure.to_string().contains("does not go by 'attention_mask' alone"), "{failure}");
    }
}
