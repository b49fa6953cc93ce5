//! A row to which step after step adds: on devices that have kernels for it, it is sums from one such step to the next
//! ([`ChainWork`]), and the two steps that read the row, compute something of it and add that become one.
//!
//! Before: `row -> head -> product + row -> norm, product -> product + row -> ...`.
//! After: `row -> head and product -> sums -> pair of products -> sums -> ...`, up to a product that gives no row.

use super::{is_output, memory, origins_of, touching, traffic};
use crate::{
    codegen::{chain, gemm},
    program::{Buffer, ChainWork, First, KernelWork, Place, ProductWork, Program, Step, Tail, Work},
    source::Source,
    view::{BufferId, Kind, View},
};

/// Two steps that become one, and the row that they give.
struct Link {
    first: usize,
    second: usize,
    row: View,
}

/// Every `Link` of a row in their order, and the product that reads what comes out.
struct Chain {
    links: Vec<Link>,
    last: usize,
}

/// The same with the longest chain that there is as sums; `None` where there is none that the device has kernels for. The
/// program has no tactics yet.
pub fn fused(program: &Program, device: gemm::Device) -> Option<Program> {
    let chains = (0..program.steps.len()).filter_map(|step| of_row(program, row_of(&program.steps[step].work)?));
    let chain = chains.max_by_key(|chain| chain.links.len())?;
    let mut fused = program.clone();
    let width = chain.links[0].row.dims[2];
    let count = chain.links.len() as u64;
    let sums = View::rows(BufferId(fused.buffers.len() as u32), Kind::I64, &[1, 1, count * width]);
    let bytes = count * width * Kind::I64.bytes();
    fused.buffers.push(Buffer { name: "sums".into(), bytes: bytes.next_multiple_of(256), place: Place::Arena(0) });
    let part = |link: usize| View { offset: link as u64 * width, ..View::rows(sums.buffer, Kind::I64, &[1, 1, width]) };
    let mut gone = vec![false; fused.steps.len()];
    for (number, link) in chain.links.iter().enumerate() {
        let [first, second] = [link.first, link.second].map(|step| program.steps[step].clone());
        let Work::Product(product) = &second.work else { return None };
        let tail = Tail { b: product.b.clone(), bias: product.bias.clone(), y: part(number) };
        let read = number.checked_sub(1).map(part);
        let work = ChainWork { first: first_of(&first.work)?, sums: read, tail: Some(tail) };
        fused.steps[link.second] = step_of(work, [first, second].into(), device)?;
        gone[link.first] = true;
    }
    let last = program.steps[chain.last].clone();
    let read = Some(part(chain.links.len() - 1));
    let work = ChainWork { first: first_of(&last.work)?, sums: read, tail: None };
    fused.steps[chain.last] = step_of(work, [last].into(), device)?;
    let mut number = 0..;
    fused.steps.retain(|_| number.next().is_some_and(|number: usize| !gone[number]));
    fused.steps.insert(0, cleared(&mut fused.sources, &sums));
    memory::plan(&mut fused);
    Some(fused)
}

/// The step that has done what `steps` did, of which the last one gives it its name; `None` where there is no kernel for it.
fn step_of(work: ChainWork, steps: Vec<Step>, device: gemm::Device) -> Option<Step> {
    if chain::kernels(&work, device).is_empty() {
        return None;
    }
    let work = Work::Chain(Box::new(work));
    work.check_shapes().ok()?;
    let origins = origins_of(&steps);
    let flops = steps.iter().map(|step| step.flops).sum();
    let bytes = traffic::of_work(&work);
    Some(Step { origins, bytes, flops, work, ..steps.into_iter().last()? })
}

/// The step that clears sums ahead of all others.
fn cleared(sources: &mut Vec<Source>, sums: &View) -> Step {
    let generated = chain::cleared(sums);
    sources.push(generated.source);
    let work = Work::Kernel(KernelWork {
        role: "clear_sums".into(),
        source: sources.len() - 1,
        grid: generated.grid,
        block: generated.block,
        operands: vec![sums.clone()],
        gelus: Vec::new(),
    });
    let bytes = traffic::of_work(&work);
    Step { name: "sums".into(), origins: Vec::new(), work, tactic: None, stream: 0, flops: 0, bytes }
}

/// What a step computes of a row that it normalises, where it does.
fn first_of(work: &Work) -> Option<First> {
    match work {
        Work::Heads(heads) => Some(First::Heads(heads.clone())),
        Work::Product(product) => Some(First::Product(Box::new(product.clone()))),
        _ => None,
    }
}

/// The row that a step normalises and multiplies.
fn row_of(work: &Work) -> Option<&View> {
    let product = match work {
        Work::Heads(heads) => &heads.product,
        Work::Product(product) => product,
        _ => return None,
    };
    (product.norm.is_some() && product.residual.is_none()).then_some(&product.a)
}

/// The chain that begins with a row in memory.
fn of_row(program: &Program, row: &View) -> Option<Chain> {
    let mut links: Vec<Link> = Vec::new();
    loop {
        let row = links.last().map_or(row, |link| &link.row);
        // Before the first link the row is in memory, and others may read it too.
        let readers: Vec<usize> = match links.last() {
            Some(link) => touching(program, row.buffer).filter(|step| *step != link.second).collect(),
            None => readers_of_row(program, row),
        };
        match *readers {
            [first, second] if links.len() < program.steps.len() => {
                links.push(link(program, row, first, second)?);
            }
            [last] if !links.is_empty() => {
                let is_product = matches!(program.steps[last].work, Work::Product(_));
                let reads = row_of(&program.steps[last].work).is_some_and(|read| is_same(read, row));
                return (is_product && reads && !is_output(program, row.buffer)).then_some(Chain { links, last });
            }
            _ => return None,
        }
    }
}

/// The first step that normalises the row, and the first behind it that adds to it.
fn readers_of_row(program: &Program, row: &View) -> Vec<usize> {
    let steps = || program.steps.iter().enumerate();
    let first = steps().find(|(_, step)| row_of(&step.work).is_some_and(|read| is_same(read, row)));
    let adds = |step: &Step| matches!(&step.work, Work::Product(product) if product.residual.as_ref().is_some_and(|read| is_same(read, row)));
    let second = steps().find(|(_, step)| adds(step));
    [first, second].into_iter().flatten().map(|(number, _)| number).collect()
}

fn is_same(a: &View, b: &View) -> bool {
    (a.buffer, a.offset, a.kind, a.elements()) == (b.buffer, b.offset, b.kind, b.elements())
}

/// The link of a row that these steps are, if they are one: nothing else reads what the first gives.
fn link(program: &Program, row: &View, first: usize, second: usize) -> Option<Link> {
    let [of_first, of_second] = [first, second].map(|step| &program.steps[step].work);
    let Work::Product(ProductWork { a, b, bias, residual, y, alpha, activation, norm }) = of_second else {
        return None;
    };
    let between = of_first.views().1;
    let (product, in_rows) = match of_first {
        // Heads lie side by side.
        Work::Heads(heads) => (&heads.product, heads.o.dims[1] == 1 || heads.o.strides[1] == heads.o.dims[3]),
        Work::Product(product) => (product, true),
        _ => return None,
    };
    let is_constant = |view: &View| program.is_constant(view);
    let constant = [&product.b, b].into_iter().chain(&product.bias).chain(bias).all(is_constant);
    let adds = *alpha == 1.0 && activation.is_none() && norm.is_none();
    let adds = adds && residual.as_ref().is_some_and(|read| is_same(read, row));
    let reads = row_of(of_first).is_some_and(|read| is_same(read, row)) && is_same(a, between);
    let alone = touching(program, between.buffer).eq([first, second])
        && ![between.buffer, y.buffer].iter().any(|buffer| is_output(program, *buffer));
    // The first is done where the second was: nobody in between changes what it reads, or reads what it changes.
    let (read, _) = of_first.views();
    let unchanged = program.steps[first + 1..second].iter().all(|step| {
        let (others, written) = step.work.views();
        let changed: Vec<BufferId> = of_first.updates().iter().map(|view| view.buffer).collect();
        read.iter().all(|view| view.buffer != written.buffer)
            && others.iter().all(|view| !changed.contains(&view.buffer))
    });
    let fits = first < second && in_rows && constant && adds && reads && alone && unchanged && y.dims[..2] == [1, 1];
    fits.then(|| Link { first, second, row: y.clone() })
}
