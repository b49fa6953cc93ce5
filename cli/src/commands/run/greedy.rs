//! `planforge run --loop`: a plan run again and again, each time on what the last run gave.
//!
//! What the engine changes in place stays where it is; a token goes from an output to an input, and a place counts up.
//! Backends without states are fed all of it through the host.

use crate::failure::Failure;
use planforge_backend::Meter;
use planforge_types::{ElementType, HostTensor, NamedTensors, Port};
use std::time::Instant;

/// Name of the tokens that come first, among the inputs of the file.
const PROMPT: &str = "prompt";
/// Name of the tokens that were found, among the outputs.
const TOKENS: &str = "tokens";

/// What goes from one run to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Inputs that the engine changes in place, each with its output.
    states: Vec<(String, String)>,
    /// Inputs that are given an output of the run before; the first is the token.
    feeds: Vec<(String, String)>,
    /// The input that is one more at every run.
    count: Option<String>,
}

/// What was found.
pub struct Decoded {
    /// `tokens`, and what the last run gave beside states.
    pub outputs: NamedTensors,
    pub runs: usize,
    /// Of all runs but the first.
    pub mean_ms: Option<f64>,
}

impl Loop {
    /// From what the plan says, and what was typed: `INPUT=OUTPUT`, and an input that counts.
    pub fn of(
        states: Vec<(String, String)>,
        [inputs, outputs]: [&[Port]; 2],
        feeds: &[String],
        count: Option<&str>,
    ) -> Result<Self, Failure> {
        let mut pairs = Vec::new();
        for typed in feeds {
            let pair = typed.split_once('=').map(|(input, output)| (input.to_owned(), output.to_owned()));
            let pair = pair.ok_or_else(|| {
                Failure::usage(format!("'{typed}' names no input and output")).hint("write --feed INPUT=OUTPUT")
            })?;
            alike(port(inputs, &pair.0, "input")?, port(outputs, &pair.1, "output")?)?;
            pairs.push(pair);
        }
        if states.is_empty() {
            pairs
                .extend(by_names(inputs, outputs).into_iter().filter(|pair| !pairs.contains(pair)).collect::<Vec<_>>());
        }
        if states.is_empty() && pairs.is_empty() {
            return Err(Failure::usage(
                "the plan keeps nothing from run to run: none of its outputs is an input with some places written anew",
            )
            .hint(
                "export the model with its caches as inputs and outputs, updated by ScatterElements, ScatterND or \
                 TensorScatter, or name what goes from run to run with --feed INPUT=OUTPUT",
            ));
        }
        let taken =
            |name: &str| states.iter().any(|(input, _)| input == name) || pairs.iter().any(|(input, _)| input == name);
        let free: Vec<&Port> = inputs.iter().filter(|input| is_one_number(input) && !taken(&input.name)).collect();
        let token = free.iter().filter_map(|input| {
            let fits = |output: &&Port| (output.element, &output.shape) == (input.element, &input.shape);
            Some((input.name.clone(), outputs.iter().find(fits)?.name.clone()))
        });
        let token: Vec<(String, String)> = token.filter(|(input, _)| Some(input.as_str()) != count).collect();
        let has_token = pairs.iter().any(|(input, _)| inputs.iter().any(|of| of.name == *input && is_one_number(of)));
        if !has_token {
            let [token] = token.as_slice() else {
                let names: Vec<&str> = free.iter().map(|input| input.name.as_str()).collect();
                return Err(Failure::usage(format!(
                    "which input is the token that an output gives is not clear: of one whole number are {}",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                ))
                .hint("name the two with --feed INPUT=OUTPUT"));
            };
            pairs.insert(0, token.clone());
        }
        // The token first.
        pairs.sort_by_key(|(input, _)| !inputs.iter().any(|of| of.name == *input && is_one_number(of)));
        let count = match count {
            Some(name) => Some(port(inputs, name, "input")?.name.clone()),
            None => {
                let left: Vec<&&Port> =
                    free.iter().filter(|of| pairs.iter().all(|(name, _)| *name != of.name)).collect();
                match left.as_slice() {
                    [] => None,
                    [place] => Some(place.name.clone()),
                    more => {
                        let names: Vec<&str> = more.iter().map(|of| of.name.as_str()).collect();
                        return Err(Failure::usage(format!(
                            "which input counts the runs is not clear: it may be any of {}",
                            names.join(", ")
                        ))
                        .hint("name it with --count INPUT"));
                    }
                }
            }
        };
        Ok(Self { states, feeds: pairs, count })
    }

    /// Runs until so many tokens are found, those of the prompt first.
    pub fn run(&self, meter: &mut dyn Meter, mut given: NamedTensors, tokens: usize) -> Result<Decoded, Failure> {
        let ports = meter.inputs();
        let (token, from) = &self.feeds[0];
        let prompt = match given.remove(PROMPT) {
            Some(prompt) => whole_numbers(&prompt).ok_or_else(|| Failure::usage("the prompt is no list of tokens"))?,
            None => Vec::new(),
        };
        if let (Some(&first), Some(port)) = (prompt.first(), ports.iter().find(|port| port.name == *token)) {
            given.insert(token.clone(), number(port, first)?);
        }
        for port in &ports {
            let is_cache = |(input, _): &(String, String)| *input == port.name && !is_one_number(port);
            let starts_empty =
                self.states.iter().chain(&self.feeds).any(is_cache) || self.count.as_ref() == Some(&port.name);
            if starts_empty && !given.contains_key(&port.name) {
                given.insert(port.name.clone(), zeros(port)?);
            }
            if !given.contains_key(&port.name) {
                let or = if port.name == *token { format!(", nor tokens called '{PROMPT}'") } else { String::new() };
                return Err(Failure::usage(format!("the file has no input '{}'{or}", port.name))
                    .hint("caches and the place may be left out: they begin as zeros"));
            }
        }
        given.retain(|name, _| ports.iter().any(|port| port.name == *name));
        meter.bind(&given)?;
        let states: Vec<String> = self.states.iter().map(|(_, output)| output.clone()).collect();
        let wanted: Vec<String> =
            meter.outputs().into_iter().map(|port| port.name).filter(|name| !states.contains(name)).collect();
        let runs = prompt.len().max(1) + tokens - 1;
        let mut found = Vec::with_capacity(tokens);
        let mut changed = NamedTensors::new();
        let mut began = Instant::now();
        let mut last = NamedTensors::new();
        for run in 0..runs {
            last = match meter.step(&changed, &wanted)? {
                Some(outputs) => outputs,
                // Everything goes through the host: also what others keep in place.
                None => {
                    given.extend(std::mem::take(&mut changed));
                    meter.bind(&given)?;
                    meter.run()?
                }
            };
            if run == 0 {
                began = Instant::now();
            }
            changed = NamedTensors::new();
            for (input, output) in &self.feeds {
                let tensor =
                    last.get(output).ok_or_else(|| Failure::usage(format!("there is no output '{output}'")))?;
                changed.insert(input.clone(), tensor.clone());
            }
            if let Some(count) = &self.count {
                let next = whole_numbers(&given[count]).and_then(|numbers| Some(numbers.first()? + 1));
                let next = next.ok_or_else(|| Failure::usage(format!("input '{count}' is no whole number")))?;
                let tensor = of_number(given[count].element, &given[count].shape, next);
                given.insert(count.clone(), tensor.clone());
                changed.insert(count.clone(), tensor);
            }
            match prompt.get(run + 1) {
                Some(&next) => {
                    let like = &given[token];
                    changed.insert(token.clone(), of_number(like.element, &like.shape, next));
                }
                None => found.extend(whole_numbers(&last[from]).and_then(|numbers| numbers.first().copied())),
            }
        }
        let mean_ms = (runs > 1).then(|| began.elapsed().as_secs_f64() * 1e3 / (runs - 1) as f64);
        // Of what was fed back only the token says something.
        let is_fed = |name: &String| self.feeds[1..].iter().any(|(_, output)| output == name);
        last.retain(|name, _| wanted.contains(name) && !is_fed(name));
        let bytes = found.iter().flat_map(|token| token.to_le_bytes()).collect();
        last.insert(TOKENS.into(), HostTensor { element: ElementType::I64, shape: vec![found.len()], bytes });
        Ok(Decoded { outputs: last, runs, mean_ms })
    }
}

fn port<'a>(ports: &'a [Port], name: &str, what: &str) -> Result<&'a Port, Failure> {
    ports.iter().find(|port| port.name == name).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        Failure::usage(format!("the plan has no {what} '{name}'")).hint(format!("it has {}", names.join(", ")))
    })
}

fn alike(input: &Port, output: &Port) -> Result<(), Failure> {
    if (input.element, &input.shape) == (output.element, &output.shape) {
        return Ok(());
    }
    let size = |size: &Option<u64>| size.map_or_else(|| "?".to_owned(), |size| size.to_string());
    let told = |port: &Port| {
        let sizes: Vec<String> = port.shape.iter().map(size).collect();
        format!("{} {} [{}]", port.name, port.element, sizes.join(", "))
    };
    Err(Failure::usage(format!("{} is not like {}", told(input), told(output)))
        .hint("an output takes the place of an input of the same type and shape"))
}

/// Caches of plans that say nothing of them: an output like an input, that bears its name behind a word of its own, or
/// `present` where the input has `past` or `past_key_values`.
fn by_names(inputs: &[Port], outputs: &[Port]) -> Vec<(String, String)> {
    let is_next = |input: &Port, output: &Port| {
        (input.element, &input.shape) == (output.element, &output.shape)
            && (output.name.ends_with(&input.name)
                || ["past_key_values", "past"]
                    .iter()
                    .any(|past| input.name.contains(past) && input.name.replace(past, "present") == output.name))
    };
    let caches = inputs.iter().filter(|input| !is_one_number(input));
    let pairs = caches.filter_map(|input| {
        let mut next = outputs.iter().filter(|output| is_next(input, output));
        match (next.next(), next.next()) {
            (Some(output), None) => Some((input.name.clone(), output.name.clone())),
            _ => None,
        }
    });
    pairs.collect()
}

fn is_one_number(port: &Port) -> bool {
    matches!(port.element, ElementType::I32 | ElementType::I64) && port.shape.iter().all(|size| *size == Some(1))
}

fn zeros(port: &Port) -> Result<HostTensor, Failure> {
    let sizes: Option<Vec<usize>> = port.shape.iter().map(|size| usize::try_from((*size)?).ok()).collect();
    let shape = sizes.ok_or_else(|| {
        Failure::usage(format!("the file has no input '{}', whose shape the plan leaves open", port.name))
    })?;
    let bytes = vec![0; shape.iter().product::<usize>() * port.element.bytes()];
    Ok(HostTensor { element: port.element, shape, bytes })
}

fn number(port: &Port, value: i64) -> Result<HostTensor, Failure> {
    let HostTensor { element, shape, .. } = zeros(port)?;
    Ok(of_number(element, &shape, value))
}

/// One whole number of this type.
fn of_number(element: ElementType, shape: &[usize], value: i64) -> HostTensor {
    let bytes = match element {
        ElementType::I32 => (value as i32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    HostTensor { element, shape: shape.to_vec(), bytes }
}

fn whole_numbers(tensor: &HostTensor) -> Option<Vec<i64>> {
    match tensor.element {
        ElementType::I64 => {
            Some(tensor.bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
        }
        ElementType::I32 => {
            Some(tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_backend::{Window, WindowSamples};
    use planforge_report::LayerTime;
    use planforge_types::BackendError;

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
        let of = Loop::of(states(), [&inputs(), &outputs()], &[], None).unwrap();
        assert_eq!(of.feeds, [("token".to_owned(), "next_token".to_owned())]);
        assert_eq!(of.count.as_deref(), Some("position"));
    }

    #[test]
    fn tokens_go_from_run_to_run_in_place_or_through_the_host() {
        for in_place in [true, false] {
            let mut meter = Adder { bound: NamedTensors::new(), in_place };
            let of = Loop::of(meter.states(), [&inputs(), &outputs()], &[], None).unwrap();
            let given: NamedTensors = [(PROMPT.to_owned(), numbers(&[5, 7]))].into();
            let decoded = of.run(&mut meter, given, 3).unwrap();
            // 7 at place 1, 8 at place 2, 10 at place 3.
            assert_eq!(whole_numbers(&decoded.outputs[TOKENS]), Some(vec![8, 10, 13]));
            assert_eq!((decoded.runs, meter.bound["cache"].bytes[0]), (4, if in_place { 10 } else { 8 }));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let failure = Loop::of(vec![], [&inputs(), &outputs()[..1]], &[], None).unwrap_err();
        assert!(failure.to_string().contains("keeps nothing from run to run"), "{failure}");
        assert!(failure.hint.contains("--feed INPUT=OUTPUT"), "{}", failure.hint);
        let failure = Loop::of(states(), [&inputs(), &outputs()], &["token=cache".into()], None).unwrap_err();
        assert_eq!(failure.to_string(), "the plan has no output 'cache'");
        let of = Loop::of(states(), [&inputs(), &outputs()], &[], None).unwrap();
        let mut meter = Adder { bound: NamedTensors::new(), in_place: true };
        let failure = of.run(&mut meter, NamedTensors::new(), 1).err().unwrap();
        assert_eq!(failure.to_string(), "the file has no input 'token', nor tokens called 'prompt'");
        let mut two = inputs();
        two.push(port("other", ElementType::I64, &[1]));
        let failure = Loop::of(states(), [&two, &outputs()], &[], None).unwrap_err();
        assert!(failure.to_string().contains("position, other"), "{failure}");
    }
}
