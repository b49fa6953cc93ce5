//! Heads of a decoder's step in one kernel each, on devices that have one for them: the product that gives queries, keys and
//! values, the attention of one query, and what puts its parts together become one step.

use super::{is_output, memory, origins_of, touching, traffic};
use crate::{
    codegen::{gemm, heads},
    program::{HeadsWork, Program, Step, Work},
};

/// Steps that become one, by number.
struct Site {
    product: usize,
    attention: usize,
    joined: usize,
    work: Box<HeadsWork>,
}

/// The same with one step for every such three; `None` where there are none that the device has a kernel for. The program
/// has no tactics yet.
pub fn fused(program: &Program, device: gemm::Device) -> Option<Program> {
    let sites = (0..program.steps.len()).filter_map(|step| site(program, step));
    let sites: Vec<Site> = sites.filter(|site| !heads::kernels(&site.work, device).is_empty()).collect();
    if sites.is_empty() {
        return None;
    }
    let mut program = program.clone();
    let mut gone = vec![false; program.steps.len()];
    for site in sites {
        let Site { product, attention, joined, work } = site;
        let of_three = [product, attention, joined].map(|number| program.steps[number].clone());
        let work = Work::Heads(work);
        program.steps[attention] = Step {
            origins: origins_of(&of_three),
            bytes: traffic::of_work(&work),
            flops: of_three.iter().map(|step| step.flops).sum(),
            work,
            ..of_three[1].clone()
        };
        gone[product] = true;
        gone[joined] = true;
    }
    let mut number = 0..;
    program.steps.retain(|_| number.next().is_some_and(|number: usize| !gone[number]));
    memory::plan(&mut program);
    Some(program)
}

/// The three steps around an attention, where nothing else reads what lies between them.
fn site(program: &Program, attention: usize) -> Option<Site> {
    let Work::OneToken(work) = &program.steps[attention].work else { return None };
    let touching = |buffer| touching(program, buffer);
    let [between, parts] = [work.q.buffer, work.parts.buffer];
    let [product, reader] = <[usize; 2]>::try_from(touching(between).collect::<Vec<_>>()).ok()?;
    let [writer, joined] = <[usize; 2]>::try_from(touching(parts).collect::<Vec<_>>()).ok()?;
    let Work::Product(of_product) = &program.steps[product].work else { return None };
    let Work::Kernel(join) = &program.steps[joined].work else { return None };
    let ours = (reader, writer) == (attention, attention) && join.role == "join_parts" && product < attention;
    let constant =
        program.is_constant(&of_product.b) && of_product.bias.as_ref().is_none_or(|bias| program.is_constant(bias));
    if !ours || !constant || is_output(program, between) || of_product.y.buffer != between {
        return None;
    }
    let o = join.operands.last()?.clone();
    // Nobody between the attention and what puts it together may touch what that writes, which is written earlier now.
    let untouched = touching(o.buffer).all(|step| step <= product || step >= joined);
    // The product comes later: what it reads is still there.
    let writes = |step: &Step| step.work.views().1.buffer == of_product.a.buffer;
    let untouched = untouched && !program.steps[product + 1..attention].iter().any(writes);
    let work = HeadsWork { product: of_product.clone(), attention: work.clone(), o };
    let work = Work::Heads(Box::new(work));
    let fits = untouched && work.check_shapes().is_ok();
    let Work::Heads(work) = work else { return None };
    fits.then_some(Site { product, attention, joined, work })
}
