//! `planforge run`: a plan on inputs from a file, once or again and again on what the last run gave.

mod greedy;

use super::bench::FOREIGN;
use crate::{backends, context::Context, failure::Failure, portability, tables};
use planforge_agent::HostDevices;
use planforge_backend::{Compiler, LoadOptions};
use planforge_identity::npz::{self, NpzError};
use planforge_proto::ErrorCode;
use planforge_types::{BackendError, FailureClass, HostTensor, NamedTensors, Port};
use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Instant,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Plan to run
    plan: PathBuf,
    /// Inputs by name; more rows than the plan's batch run batch by batch
    #[arg(long, value_name = "IN.npz")]
    input: PathBuf,
    /// Where the outputs go
    #[arg(long, value_name = "OUT.npz")]
    output: PathBuf,
    /// CPU threads; as the plan says by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Index of the optimization profile
    #[arg(long, value_name = "N", default_value_t = 0)]
    profile: usize,
    /// Decode so many tokens greedily, caches kept in place
    ///
    /// Each run gets the token that the last gave, or the largest of its scores, and the next place. Tokens called 'prompt'
    /// in the input file come first; caches and the place may be left out there and begin as zeros. Caches that grow are as
    /// long as the plan's range allows, and their mask is made. The outputs are the 'tokens', and what the last run gave
    /// beside caches.
    #[arg(long = "loop", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tokens: Option<u32>,
    /// With --loop: an input, and the output that it is at the next run
    ///
    /// Found by themselves: what the plan changes in place, the one whole number that is an output too, and caches whose
    /// names say it.
    #[arg(long, value_name = "INPUT=OUTPUT", requires = "tokens")]
    feed: Vec<String>,
    /// With --loop: the input that is one more at every run
    ///
    /// Found by itself where it is the only other whole number.
    #[arg(long, value_name = "INPUT", requires = "tokens")]
    count: Option<String>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let given = npz::read(&args.input)?;
    let options = LoadOptions { threads: args.threads, profile: args.profile, allow_foreign: true, site: None };
    let compiler = compiler(&args.plan)?;
    let mut meter = compiler.load(&args.plan, &options)?;
    let mut cell = None;
    if compiler.identify(&args.plan).is_ok_and(|plan| plan.foreign) {
        let devices = HostDevices::new(backends::compilers(), None).discover();
        let (loss, known) = context.block_on(portability::of_plan(context, &args.plan, &devices))?;
        context.printer.warn(&format!("{FOREIGN}; loss here: {loss}"));
        cell = known;
    }
    if let Some(tokens) = args.tokens {
        let (inputs, outputs) = (meter.inputs(), meter.outputs());
        let profiles = compiler.identify(&args.plan).map(|plan| plan.spec.profiles).unwrap_or_default();
        let plan = greedy::Plan {
            inputs: &inputs,
            outputs: &outputs,
            caches: meter.caches(),
            states: meter.states(),
            profiles: &profiles,
        };
        let of = greedy::Loop::of(plan, &args.feed, args.count.as_deref())?;
        let decoded = of.run(&mut *meter, args.profile, given, tokens as usize)?;
        return decode(context, &args.output, &decoded);
    }
    let batches = split(&meter.inputs(), given)?;
    let started = Instant::now();
    let mut outputs = Vec::with_capacity(batches.len());
    for batch in &batches {
        meter.bind(batch)?;
        outputs.push(meter.run()?);
    }
    let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
    let runs = outputs.len();
    for finding in meter.aside().findings {
        context.printer.warn(&finding.message);
    }
    let outputs = join(outputs)?;
    npz::write(&args.output, &outputs)?;
    let described: Vec<_> = outputs
        .iter()
        .map(|(name, t)| serde_json::json!({ "name": name, "element": t.element, "shape": t.shape }))
        .collect();
    context.printer.data(&args.output.display().to_string())?;
    for (name, tensor) in &outputs {
        context.printer.note(&format!("{name}: {} {:?}", tensor.element, tensor.shape));
    }
    context.printer.note(&format!("{runs} runs in {}", tables::milliseconds(elapsed_ms)));
    context.printer.object(&serde_json::json!({
        "output": args.output,
        "outputs": described,
        "runs": runs,
        "elapsed_ms": elapsed_ms,
        "portability": cell,
    }))
}

/// Tells what was decoded, and writes it.
fn decode(context: &Context<'_>, output: &Path, decoded: &greedy::Decoded) -> Result<(), Failure> {
    if let Some(mask) = &decoded.untried {
        context.printer.warn(&format!(
            "the plan takes caches of one length alone, so nothing shows that the model goes by '{mask}': build it with a \
             range to be sure"
        ));
    }
    npz::write(output, &decoded.outputs)?;
    context.printer.data(&output.display().to_string())?;
    for (name, tensor) in &decoded.outputs {
        context.printer.note(&format!("{name}: {} {:?}", tensor.element, tensor.shape));
    }
    if decoded.in_order {
        context
            .printer
            .note("the model goes by the order of its caches' places, so they went through the host at every run");
    }
    let mean = decoded.mean_ms.map(|ms| format!(", {} each behind the first", tables::milliseconds(ms)));
    context.printer.note(&format!("{} runs{}", decoded.runs, mean.unwrap_or_default()));
    context.printer.object(&serde_json::json!({
        "output": output,
        "runs": decoded.runs,
        "mean_ms": decoded.mean_ms,
    }))
}

/// The backend that knows a plan's format.
pub(super) fn compiler(plan: &Path) -> Result<Box<dyn Compiler>, Failure> {
    backends::of_plan(plan)?
        .ok_or_else(|| Failure::usage(format!("no backend of this planforge knows the format of {}", plan.display())))
}

/// The plan's inputs out of what the file has, cut into batches where the plan's first dimension is fixed and smaller.
fn split(ports: &[Port], mut given: NamedTensors) -> Result<Vec<NamedTensors>, Failure> {
    let mut inputs = NamedTensors::new();
    for port in ports {
        let Some(tensor) = given.remove(&port.name) else {
            let there = given.keys().chain(inputs.keys()).cloned().collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("the file has no input '{}'", port.name))
                .hint(format!("the plan wants {}; the file has {there}", names(ports))));
        };
        inputs.insert(port.name.clone(), tensor);
    }
    let Some(batches) = batches(ports, &inputs) else { return Ok(vec![inputs]) };
    Ok((0..batches).map(|index| inputs.iter().map(|(n, t)| (n.clone(), part(t, index, batches))).collect()).collect())
}

/// How many batches the inputs hold, when every one holds the same whole number of them.
fn batches(ports: &[Port], inputs: &NamedTensors) -> Option<usize> {
    let mut batches = None;
    for port in ports {
        let fixed = usize::try_from((*port.shape.first()?)?).ok().filter(|rows| *rows > 0)?;
        let rows = *inputs[&port.name].shape.first()?;
        let count = (rows % fixed == 0).then_some(rows / fixed)?;
        if *batches.get_or_insert(count) != count {
            return None;
        }
    }
    batches.filter(|count| *count > 1)
}

fn part(tensor: &HostTensor, index: usize, batches: usize) -> HostTensor {
    let bytes = tensor.bytes.len() / batches;
    let mut shape = tensor.shape.clone();
    shape[0] /= batches;
    HostTensor { element: tensor.element, shape, bytes: tensor.bytes[index * bytes..][..bytes].to_vec() }
}

/// Outputs of all batches, one after the other along the first dimension.
fn join(parts: Vec<NamedTensors>) -> Result<NamedTensors, Failure> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        for (name, tensor) in part {
            let Some(into) = whole.get_mut(&name).filter(|into| !into.shape.is_empty()) else {
                return Err(Failure::usage(format!(
                    "output '{name}' has no batch dimension to put batches together along"
                ))
                .hint("give exactly one batch of inputs"));
            };
            into.shape[0] += tensor.shape.first().copied().unwrap_or(0);
            into.bytes.extend(tensor.bytes);
        }
    }
    Ok(whole)
}

fn names(ports: &[Port]) -> String {
    ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error.class {
            FailureClass::Model => ErrorCode::InvalidArgument,
            FailureClass::Resource => ErrorCode::ResourceExhausted,
            FailureClass::Infrastructure | FailureClass::Unstable => ErrorCode::Internal,
        };
        Self::new(code, error.message).hint(error.hint)
    }
}

impl From<NpzError> for Failure {
    fn from(error: NpzError) -> Self {
        let message = match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        Self::usage(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::ElementType;

    fn tensor(shape: &[usize]) -> HostTensor {
        let bytes = (0..shape.iter().product::<usize>()).map(|n| n as u8).collect();
        HostTensor { element: ElementType::U8, shape: shape.to_vec(), bytes }
    }

    fn port(shape: &[Option<u64>]) -> Port {
        Port { name: "x".into(), element: ElementType::U8, shape: shape.to_vec() }
    }

    #[test]
    fn more_rows_than_the_batch_run_batch_by_batch() {
        let given = NamedTensors::from([("x".to_owned(), tensor(&[6, 2])), ("labels".to_owned(), tensor(&[6]))]);
        let parts = split(&[port(&[Some(2), Some(2)])], given).unwrap();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[1]["x"], HostTensor { shape: vec![2, 2], bytes: vec![4, 5, 6, 7], ..tensor(&[0]) });
        let whole = join(parts).unwrap();
        assert_eq!(whole["x"], tensor(&[6, 2]));
    }

    #[test]
    fn a_varying_or_unequal_batch_runs_as_it_is() {
        for shape in [[None, Some(2)], [Some(4), Some(2)]] {
            let given = NamedTensors::from([("x".to_owned(), tensor(&[6, 2]))]);
            let parts = split(&[port(&shape)], given).unwrap();
            assert_eq!(parts[0]["x"].shape, [6, 2]);
        }
    }

    #[test]
    fn a_missing_input_is_named_with_what_is_there() {
        let given = NamedTensors::from([("y".to_owned(), tensor(&[1]))]);
        let failure = split(&[port(&[Some(1)])], given).unwrap_err();
        assert_eq!(failure.to_string(), "the file has no input 'x'");
        assert_eq!(failure.hint, "the plan wants x; the file has y");
    }
}
