//! Attention of one query over caches that steps change in place: keys and values are read where they lie, and a new key
//! and value are written by the kernel that reads them.
//!
//! Passes give attention its operands with heads side by side, which caches do not have; heads of keys that several heads
//! of queries share are repeated there. What of that only arranges is followed back to the cache and never done.

use super::{Lowering, Outcome, one_row::Rows, states::States};
use crate::{
    codegen::one_token::{fits, joined, keys_of_block},
    program::{Append, OneTokenWork, Place, Seen, Work},
    view::{Kind, View},
};
use planforge_graph::ir::{Attention, Compare, DefUse, Graph, Node, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Attentions of one query, and what is computed together with them.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// By number of the node.
    by_node: BTreeMap<usize, Site>,
    /// Nodes that need no steps of their own.
    absorbed: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Site {
    k: Followed,
    v: Followed,
    append: Option<Appended>,
    /// Queries and new keys before they are turned, and by what.
    turn: Option<Turned>,
    /// In the place of the mask, which says no more: whether what is not seen counts by a finite number.
    seen: Option<bool>,
}

/// Rotary positions that the kernel makes itself.
#[derive(Clone, Copy, Debug)]
struct Turned {
    query: ValueId,
    key: ValueId,
    cosines: ValueId,
    sines: ValueId,
}

/// A value that another one is arranged from.
#[derive(Clone, Debug)]
struct Followed {
    source: ValueId,
    /// Numbers of the nodes between the two, in their order.
    nodes: Vec<usize>,
}

/// The nodes that write a key and a value: scatters, or concatenations with one place behind what was there.
#[derive(Clone, Debug)]
struct Appended {
    writers: [usize; 2],
    place: Written,
}

/// Where a place is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Where a value says.
    At(ValueId),
    /// Behind all others.
    Last,
}

/// An axis by what it is made of: sizes with strides, slowest first; sizes of 1 are left out.
type Axis = Vec<(u64, u64)>;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: u64,
    heads: u64,
    places: u64,
    size: u64,
}

impl Sites {
    pub fn of(graph: &Graph, uses: &DefUse, states: &States, rows: &Rows) -> Self {
        let mut sites = Self::default();
        if states.pairs.is_empty() {
            return sites;
        }
        for (number, node) in graph.nodes.iter().enumerate() {
            let Op::Attention(attention) = &node.op else { continue };
            if let Some((mut site, mut absorbed)) = Site::of(graph, uses, states, (number, node), attention) {
                if let Some((turn, more)) = site.turned(graph, uses, rows, (number, node)) {
                    site.turn = Some(turn);
                    absorbed.extend(more);
                }
                sites.by_node.insert(number, site);
                sites.absorbed.extend(absorbed);
            }
        }
        // A mask that nobody reads any more.
        for (number, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == Op::Where) {
            let result = node.outputs[0];
            let unread = |user: &usize| {
                let knows = sites.by_node.get(user).is_some_and(|site| site.seen.is_some());
                knows && graph.nodes[*user].input(3) == Some(result)
            };
            let readers = &uses.uses[result.index()];
            if !uses.is_output[result.index()] && !readers.is_empty() && readers.iter().all(unread) {
                sites.absorbed.insert(number);
            }
        }
        sites
    }

    pub fn at(&self, node: usize) -> Option<&Site> {
        self.by_node.get(&node)
    }

    pub fn absorbs(&self, node: usize) -> bool {
        self.absorbed.contains(&node)
    }
}

impl Site {
    fn of(
        graph: &Graph,
        uses: &DefUse,
        states: &States,
        (number, node): (usize, &Node),
        attention: &Attention,
    ) -> Option<(Self, Vec<usize>)> {
        let sizes = Sizes::of(graph, node, attention)?;
        let mut absorbed = Vec::new();
        let mut operands = Vec::new();
        for position in [1, 2] {
            let followed = Followed::of(graph, uses, node.input(position)?);
            let dims: Vec<u64> = graph.static_shape(followed.source)?.iter().map(|&size| size as u64).collect();
            let dense = View::rows(crate::view::BufferId(0), Kind::F16, &dims);
            let cache = followed.cache(graph, &dense, sizes)?;
            if !fits(sizes.size, sizes.heads / cache.dims[1]) {
                return None;
            }
            let own = followed.only_for(graph, uses, number);
            let whole = own.len() == followed.nodes.len();
            absorbed.extend(own);
            operands.push((followed, whole && cache.dims == dims && cache.has_strides(&dense.strides)));
        }
        let [(k, k_whole), (v, v_whole)] = <[(Followed, bool); 2]>::try_from(operands).ok()?;
        let mut append = None;
        if k_whole && v_whole {
            let first = |followed: &Followed| followed.nodes.first().copied().unwrap_or(number);
            let writers = [(&k, first(&k)), (&v, first(&v))]
                .map(|(followed, reader)| appended(graph, uses, states, followed.source, reader));
            if let [Some((k, k_place)), Some((v, v_place))] = writers
                && k_place == v_place
                && sizes.batch == 1
            {
                absorbed.extend([k, v]);
                append = Some(Appended { writers: [k, v], place: k_place });
            }
        }
        let place = append.as_ref().and_then(|append| match append.place {
            Written::At(place) => Some(place),
            Written::Last => None,
        });
        let seen = place.and_then(|place| seen_up_to(graph, uses, node.input(3)?, place, sizes.places));
        Some((Self { k, v, append, turn: None, seen }, absorbed))
    }

    /// Rotary positions of the queries and of the new key alike, and the nodes that make them.
    fn turned(
        &self,
        graph: &Graph,
        uses: &DefUse,
        rows: &Rows,
        (number, node): (usize, &Node),
    ) -> Option<(Turned, Vec<usize>)> {
        let [writer, _] = self.append.as_ref()?.writers;
        let query = Followed::of(graph, uses, node.input(0)?);
        // As heads side by side, which is how the turned queries lie, each with one place.
        let dims: Vec<u64> = graph.static_shape(query.source)?.iter().map(|&size| size as u64).collect();
        let dense = View::rows(crate::view::BufferId(0), Kind::F16, &dims);
        let [1, heads, 1, size] = dims[..] else { return None };
        let same = query.axes(graph, &dense)? == reshaped(&[vec![(heads * size, 1)]], &[1, 1, heads * size])?;
        let first = query.nodes.first().copied().unwrap_or(number);
        let whole = query.only_for(graph, uses, number).len() == query.nodes.len();
        let query_at = uses.definition[query.source.index()]?;
        let key = put_by(&graph.nodes[writer])?;
        let key_at = uses.definition[key.index()]?;
        let (by, key_by) = (rows.turn(query_at)?, rows.turn(key_at)?);
        let alone = uses.sole_use(query.source) == Some(first) && uses.sole_use(key) == Some(writer);
        let alike = (by.cosines, by.sines) == (key_by.cosines, key_by.sines);
        let whole_angles =
            |id: ValueId| graph.static_shape(id).is_some_and(|shape| shape.iter().product::<usize>() as u64 == size);
        let fits = same && whole && alone && alike && size >= 16 && whole_angles(by.cosines) && whole_angles(by.sines);
        let turned = Turned { query: by.x, key: key_by.x, cosines: by.cosines, sines: by.sines };
        let mut nodes = query.nodes;
        nodes.extend([query_at, key_at]);
        fits.then_some((turned, nodes))
    }
}

/// Whether a mask says of each place that it is seen up to this one, and of the others that they count as little as a
/// finite number says, or not at all.
fn seen_up_to(graph: &Graph, uses: &DefUse, mask: ValueId, place: ValueId, places: u64) -> Option<bool> {
    let node = &graph.nodes[uses.definition[mask.index()]?];
    let shape = graph.static_shape(mask)?;
    let in_a_row =
        shape.iter().product::<usize>() as u64 == places && shape.last().map(|&size| size as u64) == Some(places);
    if node.op != Op::Where || !in_a_row {
        return None;
    }
    let scalar = |position: usize| {
        let tensor = graph.constant(node.input(position)?)?;
        (tensor.shape().iter().product::<usize>() == 1).then(|| tensor.to_f64s()[0])
    };
    let asks = &graph.nodes[uses.definition[node.input(0)?.index()]?];
    let Op::Compare(compare) = asks.op else { return None };
    let counts = |id: ValueId| {
        graph.constant(id).is_some_and(|tensor| {
            tensor.shape().iter().product::<usize>() as u64 == places
                && tensor.to_f64s().iter().enumerate().all(|(at, &value)| value == at as f64)
        })
    };
    let is_place = |id: ValueId| Followed::of(graph, uses, id).source == place;
    let (a, b) = (asks.input(0)?, asks.input(1)?);
    let yes = match compare {
        Compare::LessOrEqual if counts(a) && is_place(b) => true,
        Compare::GreaterOrEqual if is_place(a) && counts(b) => true,
        Compare::Greater if counts(a) && is_place(b) => false,
        Compare::Less if is_place(a) && counts(b) => false,
        _ => return None,
    };
    let (seen, unseen) = if yes { (scalar(1)?, scalar(2)?) } else { (scalar(2)?, scalar(1)?) };
    (seen == 0.0 && unseen <= UNSEEN).then(|| unseen.is_finite())
}

/// What no score of halves that is right at all makes up for.
const UNSEEN: f64 = -30_000.0;

impl Sizes {
    fn of(graph: &Graph, node: &Node, attention: &Attention) -> Option<Self> {
        let shape = |position: usize| -> Option<[u64; 3]> {
            let shape = graph.static_shape(node.input(position)?)?;
            <[usize; 3]>::try_from(shape).ok().map(|shape| shape.map(|size| size as u64))
        };
        let ([batch, queries, width], [_, places, k_width], [_, _, v_width]) = (shape(0)?, shape(1)?, shape(2)?);
        let heads = attention.heads as u64;
        let same = width == k_width && width == v_width && queries == 1 && heads > 0 && width.is_multiple_of(heads);
        same.then(|| Self { batch, heads, places, size: width / heads })
    }
}

impl Followed {
    /// As far back as only arrangement goes.
    fn of(graph: &Graph, uses: &DefUse, id: ValueId) -> Self {
        let mut nodes = Vec::new();
        let mut source = id;
        while let Some(number) = uses.definition[source.index()] {
            let node = &graph.nodes[number];
            if !matches!(node.op, Op::Reshape | Op::Transpose { .. } | Op::Expand | Op::Identity) {
                break;
            }
            let Some(before) = node.input(0) else { break };
            nodes.push(number);
            source = before;
        }
        nodes.reverse();
        Self { source, nodes }
    }

    /// Its last nodes that nobody but `reader` needs.
    fn only_for(&self, graph: &Graph, uses: &DefUse, reader: usize) -> Vec<usize> {
        let mut reader = reader;
        let mut own = Vec::new();
        for &number in self.nodes.iter().rev() {
            if uses.sole_use(graph.nodes[number].outputs[0]) != Some(reader) {
                break;
            }
            own.push(number);
            reader = number;
        }
        own
    }

    /// What its nodes make of the elements of `source`; `None` where that has no strides.
    fn axes(&self, graph: &Graph, source: &View) -> Option<Vec<Axis>> {
        let whole = |(&size, &stride): (&u64, &u64)| if size == 1 { Vec::new() } else { vec![(size, stride)] };
        let mut axes: Vec<Axis> = source.dims.iter().zip(&source.strides).map(whole).collect();
        for &number in &self.nodes {
            let node = &graph.nodes[number];
            let shape: Vec<u64> = graph.static_shape(node.outputs[0])?.iter().map(|&size| size as u64).collect();
            axes = match &node.op {
                Op::Identity => axes,
                Op::Transpose { perm } => perm.iter().map(|&axis| axes[axis].clone()).collect(),
                Op::Expand => {
                    let lead = shape.len().checked_sub(axes.len())?;
                    let along = |(at, &size): (usize, &u64)| match at.checked_sub(lead).map(|axis| &axes[axis]) {
                        Some(axis) if !axis.is_empty() || size == 1 => axis.clone(),
                        _ => vec![(size, 0)],
                    };
                    shape.iter().enumerate().map(along).collect()
                }
                _ => reshaped(&axes, &shape)?,
            };
        }
        Some(axes)
    }

    /// Keys or values as `[batch][shared heads][places][size]` in the memory of `source`.
    fn cache(&self, graph: &Graph, source: &View, sizes: Sizes) -> Option<View> {
        let Sizes { batch, heads, places, size } = sizes;
        let axes = reshaped(&self.axes(graph, source)?, &[batch, places, heads, size])?;
        let single = |axis: &Axis| match axis[..] {
            [] => Some(0),
            [(_, stride)] => Some(stride),
            _ => None,
        };
        let (shared, head) = match axes[2][..] {
            [] => (1, 0),
            [(_, 0)] => (1, 0),
            [(heads, stride)] | [(heads, stride), (_, 0)] => (heads, stride),
            _ => return None,
        };
        let strides = vec![single(&axes[0])?, head, single(&axes[1])?, single(&axes[3])?];
        (strides[3] == 1).then(|| View { dims: vec![batch, shared, places, size], strides, ..source.clone() })
    }
}

/// The same elements under other sizes; `None` where a size would cut through what has one stride.
fn reshaped(axes: &[Axis], dims: &[u64]) -> Option<Vec<Axis>> {
    let mut left: Vec<(u64, u64)> = axes.iter().flatten().copied().rev().collect();
    let mut made = Vec::new();
    for &dim in dims {
        let mut axis: Axis = Vec::new();
        let mut needed = dim;
        while needed > 1 {
            let (size, stride) = left.pop()?;
            let taken = if needed.is_multiple_of(size) {
                size
            } else if size.is_multiple_of(needed) {
                left.push((size / needed, stride));
                needed
            } else {
                return None;
            };
            let step = stride * (size / taken);
            match axis.last_mut() {
                // Parts that lie one behind the other are one.
                Some((outer, outer_stride)) if *outer_stride == step * taken && *outer_stride > 0 => {
                    (*outer, *outer_stride) = (*outer * taken, step);
                }
                _ => axis.push((taken, step)),
            }
            needed /= taken;
        }
        made.push(axis);
    }
    left.is_empty().then_some(made)
}

/// The node that writes one place of a cache `[batch][heads][places][size]` which only `reader` looks at, and which place.
fn appended(graph: &Graph, uses: &DefUse, states: &States, cache: ValueId, reader: usize) -> Option<(usize, Written)> {
    let number = uses.definition[cache.index()]?;
    let node = &graph.nodes[number];
    let shape = graph.static_shape(cache)?;
    let new = graph.static_shape(put_by(node)?)?;
    let one_place =
        shape.len() == 4 && new == [shape[0], shape[1], 1, shape[3]] && uses.uses[cache.index()] == [reader];
    let place = match &node.op {
        Op::Concat { axis: 2 } if states.is_grown(cache) => Written::Last,
        Op::Named(named) if states.is_in_place(cache) => {
            // Every element's index is the same number.
            let index = Followed::of(graph, uses, node.input(1)?);
            let alone = graph.static_shape(index.source)?.iter().product::<usize>() == 1;
            let constant = graph.constant(index.source).is_some();
            let along = named.name == "scatter_elements" && named.size("axis") == 2;
            (along && alone && !constant).then_some(Written::At(index.source))?
        }
        _ => return None,
    };
    one_place.then_some((number, place))
}

/// What is new in what writes a cache.
fn put_by(node: &Node) -> Option<ValueId> {
    node.input(if matches!(node.op, Op::Concat { .. }) { 1 } else { 2 })
}

impl Lowering<'_> {
    pub(super) fn one_token(&mut self, node: &Node, attention: &Attention, site: &Site) -> Outcome<()> {
        let graph = self.graph;
        let sizes = Sizes::of(graph, node, attention).ok_or("sizes that are not known")?;
        let Sizes { batch, heads, places, size } = sizes;
        let q = match &site.turn {
            // As `[batch][heads][1][size]`, which of one place is the same.
            Some(turn) => {
                let view = self.view(turn.query)?;
                let dense = view.kind.is_float() && view.strides[3] == 1;
                let view = if dense { view } else { self.dense_rows(view)? };
                let flat = view.permuted(&[0, 2, 1, 3]).reshaped(&[batch, 1, heads * size]);
                match flat {
                    Some(flat) => flat,
                    None => {
                        self.dense_rows(view)?.reshaped(&[batch, 1, heads * size]).ok_or("a query of other sizes")?
                    }
                }
            }
            None => self.input_view(node, 0)?,
        };
        let q = if q.kind.is_float() && q.strides[2] == 1 { q } else { self.dense_rows(q)? };
        let by_head = |view: &View| Some(view.reshaped(&[batch, 1, heads, size])?.permuted(&[0, 2, 1, 3]));
        let q = by_head(&q).ok_or("heads that do not lie side by side")?;
        if let Some(append) = &site.append {
            for writer in append.writers {
                let writer = &graph.nodes[writer];
                let result = writer.outputs[0];
                let cache = match append.place {
                    Written::At(_) => self.input_view(writer, 0)?,
                    Written::Last => self.whole(result)?,
                };
                self.bind(result, cache)?;
            }
        }
        let [k, v] = [self.cache(&site.k, sizes)?, self.cache(&site.v, sizes)?];
        let append = match &site.append {
            Some(append) => {
                let [new_k, new_v] = append.writers.map(|writer| &graph.nodes[writer]);
                let key = site.turn.map_or_else(|| put_by(new_k), |turn| Some(turn.key));
                let k = self.new_row(new_k, key, k.kind)?;
                let v = self.new_row(new_v, put_by(new_v), v.kind)?;
                let place = match append.place {
                    Written::At(place) => self.view(place)?,
                    Written::Last => self.last_place(places),
                };
                Some(Append { k, v, place })
            }
            None => None,
        };
        let mask = match node.input(3) {
            Some(id) if site.seen.is_none() => {
                Some(self.view(id)?.broadcast(&[batch, heads, 1, places]).ok_or("its mask does not broadcast")?)
            }
            _ => None,
        };
        let turn = match site.turn {
            Some(turn) => {
                let mut angles = |id: ValueId| -> Outcome<View> {
                    let view = self.view(id)?;
                    let view = if view.kind == q.kind { view } else { self.dense_rows(view)? };
                    view.reshaped(&[size]).ok_or_else(|| "angles that do not lie in a row".into())
                };
                Some([angles(turn.cosines)?, angles(turn.sines)?])
            }
            None => None,
        };
        let seen = site.seen.map(|finite| {
            let place = append.as_ref().map(|append: &Append| self.program.buffer(append.place.buffer).place);
            let is_input = |number: u32| self.program.states.iter().all(|state| state.input != number);
            let early = matches!(place, Some(Place::Input(number)) if is_input(number));
            Seen { finite, early }
        });
        let keys = keys_of_block(batch * k.dims[1], heads / k.dims[1], places, size);
        let parts_dims = [batch, heads, places.div_ceil(keys), size + 2];
        let parts = View::rows(self.temporary("parts", Kind::F32, &parts_dims), Kind::F32, &parts_dims);
        let work = OneTokenWork {
            q,
            k,
            v,
            mask,
            append,
            turn,
            seen,
            parts: parts.clone(),
            scale: attention.scale,
            keys,
            guarded: attention.guarded,
        };
        let mut origins = node.origins.clone();
        for &writer in site.append.iter().flat_map(|append| &append.writers) {
            origins.extend(graph.nodes[writer].origins.iter().cloned());
        }
        let place = work.append.as_ref().filter(|_| work.seen.is_some()).map(|append| append.place.clone());
        self.step(Work::OneToken(work.clone()), &origins, 4 * batch * heads * places * size);
        let out = node.outputs[0];
        let y = self.place_strictly(out, |view| view.reshaped(&[batch, 1, heads, size]).is_some())?;
        let o = by_head(&y).ok_or("a result whose heads do not lie side by side")?;
        let generated = joined(&work, &o);
        let flops = 2 * parts.elements();
        let operands = [parts].into_iter().chain(place).chain([o]).collect();
        self.emit(generated, "join_parts", operands, &node.origins, flops);
        self.bind(out, y)
    }

    /// A cache where it lies; one that lies otherwise than was thought is copied.
    fn cache(&mut self, followed: &Followed, sizes: Sizes) -> Outcome<View> {
        let source = self.view(followed.source)?;
        let source = if source.kind.is_float() { source } else { self.dense_rows(source)? };
        if let Some(cache) = followed.cache(self.graph, &source, sizes) {
            return Ok(cache);
        }
        let rows = View::rows(self.temporary("cache", source.kind, &source.dims), source.kind, &source.dims);
        self.copy(&source, &rows, &[])?;
        followed.cache(self.graph, &rows, sizes).ok_or_else(|| "a cache that has no strides".into())
    }

    /// The number of the last of so many places, which all attentions share.
    fn last_place(&mut self, places: u64) -> View {
        let known = self.last_places.get(&places).cloned();
        known.unwrap_or_else(|| {
            let view = self.weights_view("last place", Kind::I64, &[1], &[(places - 1) as f64]);
            self.last_places.insert(places, view.clone());
            view
        })
    }

    /// What is put into a cache, as that stores it.
    fn new_row(&mut self, writer: &Node, row: Option<ValueId>, kind: Kind) -> Outcome<View> {
        let view = self.view(row.ok_or("nothing is put")?)?;
        if view.kind == kind && view.strides[3] == 1 {
            return Ok(view);
        }
        let rows = View::rows(self.temporary("new row", kind, &view.dims), kind, &view.dims);
        self.copy(&view, &rows, &writer.origins)?;
        Ok(rows)
    }
}
