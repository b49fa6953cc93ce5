//! `planforge run --loop`: a plan run again and again, each time on what the last run gave.
//!
//! What the engine changes in place stays where it is; a token goes from an output to an input, or is the largest of the
//! scores that come out, and a place counts up. Backends without states are fed all of it through the host.
//!
//! | module | holds |
//! |---|---|
//! | `caches` | those that grow from run to run, on the host or on the device |
//! | `growing` | caches that come out one place longer than they went in |
//! | `numbers` | whole numbers and scores in tensors |

mod caches;
mod growing;
mod numbers;
#[cfg(test)]
mod tests;

use crate::failure::Failure;
use caches::{Caches, Order};
use growing::Growing;
use numbers::{is_one_number, is_scores, number, of_number, token, whole_numbers, zeros};
use planforge_backend::{Cache, Meter};
use planforge_types::{ElementType, HostTensor, NamedTensors, OptimizationProfile, Port};
use std::time::Instant;

/// Name of the tokens that come first, among the inputs of the file.
const PROMPT: &str = "prompt";
/// Name of the tokens that were found, among the outputs.
const TOKENS: &str = "tokens";

/// What goes from one run to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Inputs that the engine changes in place, each with its output.
    states: Vec<(String, String)>,
    /// Inputs that are given an output of the run before; the first is the token.
    feeds: Vec<(String, String)>,
    /// The fewest places that a cache of a fixed number has, and its input.
    places: Option<(u64, String)>,
    /// Caches that are longer at every run.
    growing: Option<Growing>,
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
    /// The mask that hides places of caches that grow, where nothing showed that the model goes by it.
    pub untried: Option<String>,
    /// The model goes by the order of its caches' places, so that they went through the host.
    pub in_order: bool,
}

/// What a plan says of itself.
pub struct Plan<'a> {
    pub inputs: &'a [Port],
    pub outputs: &'a [Port],
    /// Inputs that an output takes the place of, and those of them that the engine changes in place.
    pub caches: Vec<Cache>,
    pub states: Vec<(String, String)>,
    pub profiles: &'a [OptimizationProfile],
}

impl Loop {
    /// From what the plan says, and what was typed: `INPUT=OUTPUT`, and an input that counts.
    pub fn of(plan: Plan<'_>, feeds: &[String], count: Option<&str>) -> Result<Self, Failure> {
        let Plan { inputs, outputs, caches: known, states, profiles } = plan;
        let mut pairs = Vec::new();
        let mut caches = Vec::new();
        for typed in feeds {
            let pair = typed.split_once('=').map(|(input, output)| (input.to_owned(), output.to_owned()));
            let pair = pair.ok_or_else(|| {
                Failure::usage(format!("'{typed}' names no input and output")).hint("write --feed INPUT=OUTPUT")
            })?;
            let (input, output) = (port(inputs, &pair.0, "input")?, port(outputs, &pair.1, "output")?);
            match growing::grows(input, output, profiles) {
                Some(axis) => caches.push((input.clone(), pair.1, axis)),
                None if is_one_number(input) && is_scores(output) => pairs.push(pair),
                None => {
                    alike(input, output)?;
                    pairs.push(pair);
                }
            }
        }
        let is_typed = |name: &str| feeds.iter().any(|typed| typed.split_once('=').is_some_and(|of| of.0 == name));
        let is_state = |name: &str| states.iter().any(|(input, _)| input == name);
        let through_host = known.iter().filter(|cache| !is_typed(&cache.input) && !is_state(&cache.input));
        pairs.extend(through_host.map(|cache| (cache.input.clone(), cache.output.clone())));
        // What the plan does not know goes by names.
        let is_known = |name: &str| known.iter().any(|cache| cache.input == name);
        for (input, output) in by_names(inputs, outputs, profiles) {
            if is_typed(&input.name) || is_known(&input.name) {
                continue;
            }
            match growing::grows(input, output, profiles) {
                Some(axis) => caches.push((input.clone(), output.name.clone(), axis)),
                None => pairs.push((input.name.clone(), output.name.clone())),
            }
        }
        if states.is_empty() && pairs.is_empty() && caches.is_empty() {
            return Err(Failure::usage(
                "the plan keeps nothing from run to run: none of its outputs is an input with some places written anew",
            )
            .hint(
                "export the model with its caches as inputs and outputs, updated by ScatterElements, ScatterND or \
                 TensorScatter, or longer by one place, or name what goes from run to run with --feed INPUT=OUTPUT",
            ));
        }
        let growing = match caches.is_empty() {
            true => None,
            false => Some(Growing::of(caches, inputs, profiles)?),
        };
        let taken =
            |name: &str| states.iter().any(|(input, _)| input == name) || pairs.iter().any(|(input, _)| input == name);
        let free: Vec<&Port> = inputs.iter().filter(|input| is_one_number(input) && !taken(&input.name)).collect();
        let has_token = pairs.iter().any(|(input, _)| inputs.iter().any(|of| of.name == *input && is_one_number(of)));
        if !has_token {
            pairs.insert(0, the_token(&free, outputs, count)?);
        }
        // The token first.
        pairs.sort_by_key(|(input, _)| !inputs.iter().any(|of| of.name == *input && is_one_number(of)));
        let left: Vec<&Port> =
            free.iter().filter(|of| pairs.iter().all(|(name, _)| *name != of.name)).copied().collect();
        let count = match count {
            Some(name) => Some(port(inputs, name, "input")?.name.clone()),
            None => the_count(&left)?,
        };
        let places = known.into_iter().filter(|cache| !is_typed(&cache.input));
        let places = places.filter_map(|cache| Some((cache.places?, cache.input))).min();
        Ok(Self { states, feeds: pairs, places, growing, count })
    }

    /// Runs until so many tokens are found, those of the prompt first. `profile` is the one that is current.
    pub fn run(
        &self,
        meter: &mut dyn Meter,
        profile: usize,
        mut given: NamedTensors,
        tokens: usize,
    ) -> Result<Decoded, Failure> {
        let ports = meter.inputs();
        let (token_input, from) = &self.feeds[0];
        let prompt = match given.remove(PROMPT) {
            Some(prompt) => whole_numbers(&prompt).ok_or_else(|| Failure::usage("the prompt is no list of tokens"))?,
            None => Vec::new(),
        };
        let runs = prompt.len().max(1) + tokens - 1;
        if let (Some(&first), Some(port)) = (prompt.first(), ports.iter().find(|port| port.name == *token_input)) {
            given.insert(token_input.clone(), number(port, first)?);
        }
        let mut caches = match &self.growing {
            Some(growing) => Some(Caches::begin(growing, profile, &mut given, [runs, tokens])?),
            None => None,
        };
        for port in &ports {
            let is_cache = |(input, _): &(String, String)| *input == port.name && !is_one_number(port);
            let starts_empty =
                self.states.iter().chain(&self.feeds).any(is_cache) || self.count.as_ref() == Some(&port.name);
            if given.contains_key(&port.name) || caches.as_ref().is_some_and(|of| of.growing.mask == port.name) {
                continue;
            }
            if !starts_empty {
                let or =
                    if port.name == *token_input { format!(", nor tokens called '{PROMPT}'") } else { String::new() };
                return Err(Failure::usage(format!("the file has no input '{}'{or}", port.name))
                    .hint("caches and the place may be left out: they begin as zeros"));
            }
            let held = caches.as_ref().map_or(0, |caches| caches.held as i64);
            let is_count = self.count.as_ref() == Some(&port.name);
            given.insert(port.name.clone(), if is_count { number(port, held)? } else { zeros(port)? });
        }
        given.retain(|name, _| ports.iter().any(|port| port.name == *name));
        self.check_places(&given, [runs, tokens])?;
        let untried = caches.as_ref().filter(|of| !of.is_tried()).map(|of| of.growing.mask.clone());
        if caches.is_none() {
            meter.bind(&given)?;
        }
        let states: Vec<String> = self.states.iter().map(|(_, output)| output.clone()).collect();
        let wanted: Vec<String> =
            meter.outputs().into_iter().map(|port| port.name).filter(|name| !states.contains(name)).collect();
        let mut found = Vec::with_capacity(tokens);
        let mut changed = NamedTensors::new();
        let mut began = Instant::now();
        let mut last = NamedTensors::new();
        for run in 0..runs {
            last = match &mut caches {
                Some(caches) => caches.run(meter, &mut given, std::mem::take(&mut changed), from)?,
                None => match meter.step(&changed, &wanted)? {
                    Some(outputs) => outputs,
                    // Everything goes through the host: also what others keep in place.
                    None => {
                        given.extend(std::mem::take(&mut changed));
                        meter.bind(&given)?;
                        meter.run()?
                    }
                },
            };
            if run == 0 {
                began = Instant::now();
            }
            changed = NamedTensors::new();
            for (input, output) in &self.feeds[1..] {
                changed.insert(input.clone(), output_of(&last, output)?.clone());
            }
            if let Some(count) = &self.count {
                let next = whole_numbers(&given[count]).and_then(|numbers| Some(numbers.first()? + 1));
                let next = next.ok_or_else(|| Failure::usage(format!("input '{count}' is no whole number")))?;
                let tensor = of_number(given[count].element, &given[count].shape, next);
                given.insert(count.clone(), tensor.clone());
                changed.insert(count.clone(), tensor);
            }
            let next = match prompt.get(run + 1) {
                Some(&next) => next,
                None => {
                    let next = token(output_of(&last, from)?)
                        .ok_or_else(|| Failure::usage(format!("output '{from}' says no token")))?;
                    found.push(next);
                    next
                }
            };
            let like = &given[token_input];
            changed.insert(token_input.clone(), of_number(like.element, &like.shape, next));
        }
        let mean_ms = (runs > 1).then(|| began.elapsed().as_secs_f64() * 1e3 / (runs - 1) as f64);
        // Of what was fed back only the token says something.
        let is_fed = |name: &String| self.feeds[1..].iter().any(|(_, output)| output == name);
        last.retain(|name, _| wanted.contains(name) && !is_fed(name));
        let bytes = found.iter().flat_map(|token| token.to_le_bytes()).collect();
        last.insert(TOKENS.into(), HostTensor { element: ElementType::I64, shape: vec![found.len()], bytes });
        let in_order = caches.is_some_and(|of| of.order == Order::AsGiven);
        Ok(Decoded { outputs: last, runs, mean_ms, untried, in_order })
    }
}

impl Loop {
    /// Refuses to go beyond caches of a fixed number of places, of which each run writes one.
    fn check_places(&self, given: &NamedTensors, runs: [usize; 2]) -> Result<(), Failure> {
        let Some((places, cache)) = &self.places else { return Ok(()) };
        let first = self.count.as_ref().and_then(|count| whole_numbers(given.get(count)?)?.first().copied());
        let held = first.and_then(|first| usize::try_from(first).ok()).unwrap_or(0);
        let room = usize::try_from(*places).unwrap_or(usize::MAX);
        check_room(cache, [room, held], runs, "export the model with caches of more places")
    }
}

/// Refuses what caches have no places for.
fn check_room(cache: &str, [room, held]: [usize; 2], [runs, tokens]: [usize; 2], more: &str) -> Result<(), Failure> {
    let asked = held + runs;
    if asked <= room {
        return Ok(());
    }
    let begin = if held > 0 { format!(", {held} of them from before") } else { String::new() };
    Err(Failure::usage(format!(
        "'{cache}' has room for {room} tokens, and {asked} are asked for{begin}: what is beyond would be wrong"
    ))
    .hint(match (room + tokens).checked_sub(asked) {
        Some(most) if most > 0 => format!("ask for at most {most} with --loop, or {more}"),
        _ => more.to_owned(),
    }))
}

fn output_of<'a>(outputs: &'a NamedTensors, name: &str) -> Result<&'a HostTensor, Failure> {
    outputs.get(name).ok_or_else(|| Failure::usage(format!("there is no output '{name}'")))
}

/// The input that takes a token, and the output that says which: one like it, or scores.
fn the_token(free: &[&Port], outputs: &[Port], count: Option<&str>) -> Result<(String, String), Failure> {
    let of_number = free.iter().filter(|input| Some(input.name.as_str()) != count).filter_map(|input| {
        let fits = |output: &&Port| (output.element, &output.shape) == (input.element, &input.shape);
        Some((input.name.clone(), outputs.iter().find(fits)?.name.clone()))
    });
    let of_number: Vec<(String, String)> = of_number.collect();
    let is_named = |input: &str| ["input_ids", "token"].iter().any(|word| input.contains(word));
    let named: Vec<&(String, String)> = of_number.iter().filter(|(input, _)| is_named(input)).collect();
    if let ([token], _) | (_, [token]) = (of_number.iter().collect::<Vec<_>>().as_slice(), named.as_slice()) {
        return Ok((*token).clone());
    }
    // No output is a token: the largest of scores is.
    let scores: Vec<&Port> = outputs.iter().filter(|output| is_scores(output)).collect();
    let inputs: Vec<&&Port> = free.iter().filter(|input| Some(input.name.as_str()) != count).collect();
    let named: Vec<&&&Port> = inputs.iter().filter(|input| is_named(&input.name)).collect();
    let input = match (inputs.as_slice(), named.as_slice()) {
        ([input], _) => Some(*input),
        (_, [input]) => Some(**input),
        _ => None,
    };
    if let (true, Some(input), [scores]) = (of_number.is_empty(), input, scores.as_slice()) {
        return Ok((input.name.clone(), scores.name.clone()));
    }
    let names: Vec<&str> = free.iter().map(|input| input.name.as_str()).collect();
    Err(Failure::usage(format!(
        "which input is the token that an output gives is not clear: of one whole number are {}",
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    ))
    .hint("name the two with --feed INPUT=OUTPUT"))
}

/// The input that counts the runs, of those whose whole number nothing gives.
fn the_count(left: &[&Port]) -> Result<Option<String>, Failure> {
    match left {
        [] => Ok(None),
        [place] => Ok(Some(place.name.clone())),
        more => {
            let names: Vec<&str> = more.iter().map(|of| of.name.as_str()).collect();
            let told = format!("which input counts the runs is not clear: it may be any of {}", names.join(", "));
            Err(Failure::usage(told).hint("name it with --count INPUT"))
        }
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
    let told = |port: &Port| format!("{} {} [{}]", port.name, port.element, port.sizes());
    Err(Failure::usage(format!("{} is not like {}", told(input), told(output)))
        .hint("an output takes the place of an input of the same type and shape, or of one that is one place shorter"))
}

/// Caches of plans that say nothing of them: an output like an input, or one place longer, that bears its name behind a
/// word of its own, or `present` where the input has `past` or `past_key_values`.
fn by_names<'a>(
    inputs: &'a [Port],
    outputs: &'a [Port],
    profiles: &[OptimizationProfile],
) -> Vec<(&'a Port, &'a Port)> {
    let is_next = |input: &Port, output: &Port| {
        let is_alike = (input.element, &input.shape) == (output.element, &output.shape);
        (is_alike || growing::grows(input, output, profiles).is_some())
            && (output.name.ends_with(&input.name)
                || ["past_key_values", "past"]
                    .iter()
                    .any(|past| input.name.contains(past) && input.name.replace(past, "present") == output.name))
    };
    let caches = inputs.iter().filter(|input| !is_one_number(input));
    let pairs = caches.filter_map(|input| {
        let mut next = outputs.iter().filter(|output| is_next(input, output));
        match (next.next(), next.next()) {
            (Some(output), None) => Some((input, output)),
            _ => None,
        }
    });
    pairs.collect()
}
