//! Chains of reshapes and transposes as one: what they do to the order of elements, and the shortest way to write it.
//!
//! Before: `x (S,B,H D) -> Reshape (S,B H,D) -> Transpose (B H,S,D) -> Reshape (B,H,S,D) -> y`.
//! After: `x -> Reshape (S,B,H,D) -> Transpose (B,H,S,D) -> y`; often a reshape alone is left, or nothing.
//!
//! Axes are split into atoms that every step of the chain moves as a whole; the chain is a permutation of these.

use super::edit::{Edit, joined_origins, producer};
use planforge_graph::ir::{DefUse, Graph, Node, Op, ValueId};

/// Longest chain that is looked at; exported models have some ten moves in a row.
const MAX_CHAIN: usize = 64;

/// A chain from `source` to the output of its last node.
#[derive(Debug)]
pub struct Chain {
    pub source: ValueId,
    /// Its nodes, the last one first.
    pub nodes: Vec<usize>,
    /// Sizes of the atoms in the source's order; none is 1.
    pub atoms: Vec<usize>,
    /// The atoms in the result's order.
    pub order: Vec<usize>,
}

impl Chain {
    /// The chain that ends in `id`, as far up as reshapes and transposes go.
    pub fn ending_in(graph: &Graph, found: &DefUse, id: ValueId) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut source = id;
        // Values that came after `found` are where a chain begins.
        while source.index() < found.definition.len()
            && let Some((at, node)) = producer(graph, found, source)
            && matches!(node.op, Op::Reshape | Op::Transpose { .. })
            && nodes.len() < MAX_CHAIN
        {
            nodes.push(at);
            source = node.input(0)?;
        }
        if nodes.is_empty() {
            return None;
        }
        let mut atoms = Atoms::of(&graph.static_shape(source)?)?;
        for &at in nodes.iter().rev() {
            match &graph.nodes[at].op {
                Op::Transpose { perm } => atoms.transpose(perm),
                _ => atoms.reshape(&graph.static_shape(graph.nodes[at].outputs[0])?)?,
            }
        }
        let (atoms, order) = atoms.merged();
        Some(Self { source, nodes, atoms, order })
    }

    /// Whether elements keep their order.
    pub fn is_reshape(&self) -> bool {
        self.order.len() <= 1
    }
}

/// Writes every chain the shortest way.
pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for end in 0..graph.nodes.len() {
        if !matches!(graph.nodes[end].op, Op::Reshape | Op::Transpose { .. }) {
            continue;
        }
        let output = graph.nodes[end].outputs[0];
        let goes_on = |&at: &usize| matches!(graph.nodes[at].op, Op::Reshape | Op::Transpose { .. });
        let uses = &found.uses[output.index()];
        if !found.is_output[output.index()] && !uses.is_empty() && uses.iter().all(goes_on) {
            continue;
        }
        let Some(chain) = Chain::ending_in(graph, &found, output) else { continue };
        let (Some(from), Some(to)) = (graph.static_shape(chain.source), graph.static_shape(output)) else { continue };
        let steps = steps(&chain, &from, &to);
        if steps.len() >= chain.nodes.len() {
            continue;
        }
        let origins = joined_origins(graph, &chain.nodes);
        changes.push(origins.join(" + "));
        write(graph, &mut edit, end, &chain, steps, origins);
    }
    edit.apply(graph);
}

/// Operators with the shapes they give.
fn steps(chain: &Chain, from: &[usize], to: &[usize]) -> Vec<(Op, Vec<usize>)> {
    let mut steps = Vec::new();
    let mut shape = from.to_vec();
    if !chain.is_reshape() {
        if shape != chain.atoms {
            shape.clone_from(&chain.atoms);
            steps.push((Op::Reshape, shape.clone()));
        }
        shape = chain.order.iter().map(|&atom| chain.atoms[atom]).collect();
        steps.push((Op::Transpose { perm: chain.order.clone() }, shape.clone()));
    }
    if shape != to {
        steps.push((Op::Reshape, to.to_vec()));
    }
    steps
}

fn write(
    graph: &mut Graph,
    edit: &mut Edit,
    end: usize,
    chain: &Chain,
    mut steps: Vec<(Op, Vec<usize>)>,
    origins: Vec<String>,
) {
    let output = graph.nodes[end].outputs[0];
    let Some((last, _)) = steps.pop() else {
        edit.kill(end);
        edit.redirect(output, chain.source);
        return;
    };
    let (name, element) = (graph.value(output).name.clone(), graph.value(output).element);
    let mut from = chain.source;
    for (op, shape) in steps {
        // A chain may be shortened more than once: the number makes the name new.
        let value = graph.add_value(format!("{name}/moved{}", graph.values.len()), element, &shape);
        edit.insert(end, Node { op, inputs: vec![Some(from)], outputs: vec![value], origins: origins.clone() });
        from = value;
    }
    let node = &mut graph.nodes[end];
    (node.op, node.inputs, node.origins) = (last, vec![Some(from)], origins);
}

/// Axes as lists of atoms.
struct Atoms {
    /// Sizes by atom.
    sizes: Vec<usize>,
    /// The atoms in the source's order.
    source: Vec<usize>,
    axes: Vec<Vec<usize>>,
}

impl Atoms {
    /// `None` for tensors without elements, whose axes cannot be told apart.
    fn of(shape: &[usize]) -> Option<Self> {
        if shape.contains(&0) {
            return None;
        }
        let mut atoms = Self { sizes: Vec::new(), source: Vec::new(), axes: Vec::new() };
        for &size in shape {
            let axis = if size == 1 { Vec::new() } else { vec![atoms.sizes.len()] };
            atoms.source.extend(&axis);
            atoms.sizes.extend(axis.iter().map(|_| size));
            atoms.axes.push(axis);
        }
        Some(atoms)
    }

    fn transpose(&mut self, perm: &[usize]) {
        self.axes = perm.iter().map(|&axis| self.axes[axis].clone()).collect();
    }

    /// `None` when an axis is cut where no atom ends and none can be split.
    fn reshape(&mut self, shape: &[usize]) -> Option<()> {
        let mut left: std::collections::VecDeque<usize> =
            std::mem::take(&mut self.axes).into_iter().flatten().collect();
        for &size in shape {
            let mut axis = Vec::new();
            let mut wanted = size;
            while wanted > 1 {
                let atom = left.pop_front()?;
                let have = self.sizes[atom];
                if wanted.is_multiple_of(have) {
                    axis.push(atom);
                    wanted /= have;
                } else if have.is_multiple_of(wanted) {
                    let inner = self.split(atom, wanted);
                    axis.push(atom);
                    left.push_front(inner);
                    wanted = 1;
                } else {
                    return None;
                }
            }
            self.axes.push(axis);
        }
        left.is_empty().then_some(())
    }

    /// Leaves `outer` of the atom, and makes an atom of what is inside; returns that.
    fn split(&mut self, atom: usize, outer: usize) -> usize {
        let inner = self.sizes.len();
        self.sizes.push(self.sizes[atom] / outer);
        self.sizes[atom] = outer;
        let place = self.source.iter().position(|&other| other == atom).expect("every atom comes from the source");
        self.source.insert(place + 1, inner);
        inner
    }

    /// Sizes in the source's order and the result's order of them, with neighbours that stay neighbours as one.
    fn merged(self) -> (Vec<usize>, Vec<usize>) {
        let place: std::collections::BTreeMap<usize, usize> =
            self.source.iter().enumerate().map(|(place, &atom)| (atom, place)).collect();
        let order: Vec<usize> = self.axes.iter().flatten().map(|atom| place[atom]).collect();
        // Runs of the result that are runs of the source.
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &at in &order {
            match runs.last_mut() {
                Some((_, end)) if *end == at => *end += 1,
                _ => runs.push((at, at + 1)),
            }
        }
        let mut sorted = runs.clone();
        sorted.sort_unstable();
        let size = |&(from, to): &(usize, usize)| self.source[from..to].iter().map(|&atom| self.sizes[atom]).product();
        let sizes = sorted.iter().map(size).collect();
        let order = runs.iter().map(|run| sorted.binary_search(run).expect("the same runs")).collect();
        (sizes, order)
    }
}
