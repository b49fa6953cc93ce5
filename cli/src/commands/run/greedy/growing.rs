//! Caches that come out one place longer than they went in, as transformers' models have them.
//!
//! A plan computes a few lengths well, and every other one as a program of its own. So caches are as long as the next of
//! a few lengths, the tokens' places at their end, and the mask hides what is before. A run gives one place more, of
//! which the first, which held nothing, goes; where none is free, caches get the next length. Whether the model goes by
//! the mask is tried once: a run without a hidden place and one with some have to give the same.

use super::numbers::scores;
use crate::failure::Failure;
use planforge_types::{DimRange, ElementType, HostTensor, NamedTensors, OptimizationProfile, Port};

/// How far scores of two lengths may be apart, of the largest of them: sums in another order in fp16 stay far below, and
/// a place too much that is seen, or another position, far above.
pub const SAME: f64 = 0.02;

/// An input that is given an output of one more place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grown {
    pub input: String,
    pub output: String,
    /// Along which it grows.
    pub axis: usize,
}

/// A length that caches may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length {
    places: usize,
    /// The profile that takes it.
    profile: usize,
}

/// The caches of a plan that grow, and what tells which places of them hold something.
#[derive(Clone, Debug, PartialEq)]
pub struct Growing {
    pub caches: Vec<Grown>,
    pub mask: String,
    mask_element: ElementType,
    /// At least one, the shortest first.
    lengths: Vec<Length>,
    /// What profiles take.
    ranges: Vec<(DimRange, usize)>,
    /// Caches without a place, in the order of `caches`.
    empty: Vec<HostTensor>,
}

/// The axis along which an output has one place more than an input; both may leave it open.
pub fn grows(input: &Port, output: &Port, profiles: &[OptimizationProfile]) -> Option<usize> {
    if input.element != output.element || input.shape.len() != output.shape.len() {
        return None;
    }
    let is_fixed = |axis: usize| {
        let mut ranges = profiles.iter().filter_map(|profile| profile.inputs.get(&input.name)?.get(axis));
        ranges.next().is_some_and(|first| first.min == first.max && ranges.all(|range| range == first))
    };
    let mut found = None;
    for (axis, sizes) in input.shape.iter().zip(&output.shape).enumerate() {
        let is_longer = match sizes {
            (Some(before), Some(after)) if before == after => continue,
            (Some(before), Some(after)) => before.checked_add(1) == Some(*after),
            // Open, and of one size all the same.
            (None, None) if is_fixed(axis) => continue,
            (None, None) => true,
            _ => false,
        };
        if !is_longer || found.is_some() {
            return None;
        }
        found = Some(axis);
    }
    found
}

impl Growing {
    /// `caches` are inputs with outputs that have one place more.
    pub fn of(
        caches: Vec<(Port, String, usize)>,
        inputs: &[Port],
        profiles: &[OptimizationProfile],
    ) -> Result<Self, Failure> {
        let mask = mask(inputs)?;
        let (first, _, axis) = &caches[0];
        let fixed = first.shape[*axis].and_then(|places| usize::try_from(places).ok());
        let ranges: Vec<(DimRange, usize)> = profiles
            .iter()
            .enumerate()
            .filter_map(|(number, profile)| {
                let named = caches.iter().find_map(|(cache, _, axis)| profile.inputs.get(&cache.name)?.get(*axis));
                let by_mask = || {
                    let range = profile.inputs.get(&mask.name)?.last()?;
                    let less = |size: u64| size.saturating_sub(1);
                    Some(DimRange { min: less(range.min).max(1), opt: less(range.opt), max: less(range.max) })
                };
                Some((named.copied().or_else(by_mask)?, number))
            })
            .collect();
        let mut lengths: Vec<Length> = ranges.iter().flat_map(|(range, number)| steps(range, *number)).collect();
        lengths.extend(fixed.filter(|_| lengths.is_empty()).map(|places| Length { places, profile: 0 }));
        lengths.sort_unstable();
        lengths.dedup_by_key(|length| length.places);
        if lengths.is_empty() {
            return Err(Failure::usage(format!("the plan does not say how long '{}' may be", first.name)).hint(
                format!(
                    "build the model with a range of it, such as --shapes {}:{}",
                    first.name,
                    example(first, *axis)
                ),
            ));
        };
        let empty = caches.iter().map(|(cache, _, axis)| empty(cache, *axis, profiles)).collect::<Result<_, _>>()?;
        let grown = |(cache, output, axis): &(Port, String, usize)| Grown {
            input: cache.name.clone(),
            output: output.clone(),
            axis: *axis,
        };
        Ok(Self {
            caches: caches.iter().map(grown).collect(),
            mask: mask.name.clone(),
            mask_element: mask.element,
            lengths,
            ranges,
            empty,
        })
    }

    /// Whether all of the caches are among those that a backend keeps on its device.
    pub fn stays(&self, kept: &[(String, String)]) -> bool {
        self.caches
            .iter()
            .all(|cache| kept.iter().any(|(input, output)| (input, output) == (&cache.input, &cache.output)))
    }

    /// Tokens that the longest caches and a new one come to.
    pub fn room(&self) -> usize {
        self.lengths.last().map_or(0, |length| length.places + 1)
    }

    /// The shortest length with room for so many places.
    pub fn length(&self, held: usize) -> Option<Length> {
        self.lengths.iter().copied().find(|length| length.places >= held)
    }

    /// Another length than `length` that has room for so many places.
    pub fn other(&self, length: Length, held: usize) -> Option<Length> {
        self.lengths.iter().copied().find(|other| other.places != length.places && other.places >= held)
    }

    /// The length of just so many places, where a profile takes it.
    fn exact(&self, held: usize) -> Option<Length> {
        let size = held as u64;
        let (_, profile) = self.ranges.iter().find(|(range, _)| (range.min..=range.max).contains(&size))?;
        Some(Length { places: held, profile: *profile })
    }

    /// When of the runs from `held` on, and with which other length, a run is compared: first where the caches are full
    /// in one of the two and not in the other, else at once with two of which the mask hides some.
    pub fn trial(&self, held: usize, runs: usize) -> Option<(usize, Length)> {
        let full = (held..held + runs).find_map(|held| {
            let (exact, length) = (self.exact(held)?, self.length(held)?);
            let other = if exact.places == length.places { self.other(length, held)? } else { exact };
            Some((held, other))
        });
        full.or_else(|| Some((held, self.other(self.length(held)?, held)?)))
    }

    /// Takes the caches that were given; how many places they hold.
    pub fn begin(&self, given: &mut NamedTensors) -> Result<usize, Failure> {
        if given.contains_key(&self.mask) {
            return Err(Failure::usage(format!("the file has '{}', which says how long caches are", self.mask))
                .hint("leave it out: it follows from the caches that are given"));
        }
        let mut held: Option<(&str, usize)> = None;
        for (cache, empty) in self.caches.iter().zip(&self.empty) {
            let tensor = given.entry(cache.input.clone()).or_insert_with(|| empty.clone());
            let mut shape = tensor.shape.clone();
            let places = shape.get(cache.axis).copied().unwrap_or(0);
            shape.get_mut(cache.axis).into_iter().for_each(|size| *size = 0);
            if (tensor.element, &shape) != (empty.element, &empty.shape) {
                let told = format!("'{}' is {} {:?}", cache.input, tensor.element, tensor.shape);
                return Err(Failure::usage(told).hint("see planforge inspect for what the plan takes"));
            }
            match held {
                Some((other, count)) if count != places => {
                    let told = format!("'{other}' has {count} places, and '{}' has {places}", cache.input);
                    return Err(Failure::usage(told).hint("give all caches of one length, or none"));
                }
                _ => held = Some((&cache.input, places)),
            }
        }
        Ok(held.map_or(0, |(_, places)| places))
    }

    /// Makes the inputs of a run: caches of this length of which the last places hold something, and the mask.
    pub fn fit(&self, given: &mut NamedTensors, length: Length, held: usize) {
        for cache in &self.caches {
            if let Some(tensor) = given.get_mut(&cache.input)
                && tensor.shape[cache.axis] != length.places
            {
                *tensor = last_places(tensor, cache.axis, length.places);
            }
        }
        let hidden = length.places.saturating_sub(held);
        let seen: Vec<f64> = (0..=length.places).map(|place| f64::from(u8::from(place >= hidden))).collect();
        let mask = HostTensor::of_values(self.mask_element, vec![1, seen.len()], &seen);
        given.insert(self.mask.clone(), mask);
    }

    /// Moves what a run gave into the caches. Of the first run it is looked at where that put what is new.
    pub fn keep(&self, given: &mut NamedTensors, outputs: &mut NamedTensors, is_first: bool) -> Result<(), Failure> {
        for cache in &self.caches {
            let (Some(after), Some(before)) = (outputs.remove(&cache.output), given.get_mut(&cache.input)) else {
                return Err(Failure::usage(format!("there is no output '{}'", cache.output)));
            };
            let mut longer = before.shape.clone();
            longer[cache.axis] += 1;
            if after.shape != longer {
                let told = format!(
                    "'{}' {:?} is not one place longer than '{}' {:?}",
                    cache.output, after.shape, cache.input, before.shape
                );
                return Err(Failure::usage(told).hint("one token a run makes caches grow by one place"));
            }
            if is_first && first_places(&after, cache.axis, longer[cache.axis] - 1) != before.bytes {
                let told = format!("'{}' is not '{}' with one place behind it", cache.output, cache.input);
                return Err(Failure::usage(told).hint(
                    "what is new has to come behind what was there, as Concat and Attention have it; operators that write \
                     it elsewhere (GroupQueryAttention) cannot be decoded with",
                ));
            }
            *before = after;
        }
        Ok(())
    }
}

impl Length {
    pub fn places(self) -> usize {
        self.places
    }

    pub fn profile(self) -> usize {
        self.profile
    }
}

/// Whether two runs gave the same token, or scores as far apart as they may be; how far apart they are, of the largest,
/// where not.
pub fn differ(one: &HostTensor, other: &HostTensor, may_be: f64) -> Option<f64> {
    let (Some(one_scores), Some(other_scores)) = (scores(one), scores(other)) else {
        return (one != other).then_some(f64::INFINITY);
    };
    let largest = one_scores.iter().chain(&other_scores).fold(0.0, |most: f64, score| most.max(score.abs()));
    let apart = one_scores.iter().zip(&other_scores).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
    let share = apart / largest.max(f64::MIN_POSITIVE);
    (share > may_be || one_scores.len() != other_scores.len()).then_some(share)
}

/// A profile's usual length, those twice as long again and again, and its longest.
fn steps(range: &DimRange, profile: usize) -> Vec<Length> {
    let doubled = std::iter::successors(Some(range.opt.max(1)), |places| places.checked_mul(2));
    let all = doubled.take_while(|places| *places < range.max).chain([range.max]);
    all.filter_map(|places| Some(Length { places: usize::try_from(places).ok()?, profile })).collect()
}

/// The input that says which places hold something: a number for each, under a name that says so.
fn mask(inputs: &[Port]) -> Result<&Port, Failure> {
    let named: Vec<&Port> = inputs.iter().filter(|input| input.name.contains("mask")).collect();
    let is_row = |input: &&&Port| matches!(input.shape[..], [Some(1), _]);
    match named.iter().find(is_row) {
        Some(mask) => Ok(mask),
        None => {
            let told = match named.first() {
                Some(mask) => format!("'{}' [{}] is none of one row", mask.name, mask.sizes()),
                None => "it has none".to_owned(),
            };
            Err(Failure::usage(format!(
                "caches of this plan grow at every run, which needs a mask of places that hold nothing yet: {told}"
            ))
            .hint("export the model with its attention_mask [batch, past + new tokens] as an input"))
        }
    }
}

/// A cache without a place. A dimension that the plan leaves open is the usual one of the first profile.
fn empty(cache: &Port, axis: usize, profiles: &[OptimizationProfile]) -> Result<HostTensor, Failure> {
    let ranges = profiles.first().and_then(|profile| profile.inputs.get(&cache.name));
    let size = |(place, size): (usize, &Option<u64>)| {
        if place == axis {
            return Some(0);
        }
        let usual = || Some(ranges?.get(place)?.opt);
        usize::try_from(size.or_else(usual)?).ok()
    };
    let shape = cache.shape.iter().enumerate().map(size).collect::<Option<Vec<usize>>>().ok_or_else(|| {
        Failure::usage(format!("how large '{}' [{}] is, the plan leaves open", cache.name, cache.sizes()))
            .hint("build the model with one size for every dimension but the one that grows")
    })?;
    Ok(HostTensor { element: cache.element, shape, bytes: Vec::new() })
}

fn example(cache: &Port, axis: usize) -> String {
    let size = |(place, size): (usize, &Option<u64>)| match size {
        _ if place == axis => "1..128..1023".to_owned(),
        Some(size) => size.to_string(),
        None => "1".to_owned(),
    };
    cache.shape.iter().enumerate().map(size).collect::<Vec<_>>().join("x")
}

/// Bytes of so many places of an axis, the first ones.
pub fn first_places(tensor: &HostTensor, axis: usize, places: usize) -> Vec<u8> {
    let inner = tensor.shape[axis + 1..].iter().product::<usize>() * tensor.element.bytes();
    let rows = tensor.bytes.chunks_exact((tensor.shape[axis] * inner).max(1));
    rows.flat_map(|row| &row[..places * inner]).copied().collect()
}

/// The same with so many places of an axis, the last ones, in the other order.
pub fn reversed(tensor: &HostTensor, axis: usize, places: usize) -> HostTensor {
    let inner = tensor.shape[axis + 1..].iter().product::<usize>() * tensor.element.bytes();
    let (all, places) = (tensor.shape[axis], places.min(tensor.shape[axis]));
    let mut bytes = tensor.bytes.clone();
    for (to, from) in bytes.chunks_exact_mut((all * inner).max(1)).zip(tensor.bytes.chunks_exact((all * inner).max(1)))
    {
        for place in 0..places {
            let [into, of] = [all - places + place, all - 1 - place].map(|place| place * inner..(place + 1) * inner);
            to[into].copy_from_slice(&from[of]);
        }
    }
    HostTensor { bytes, ..tensor.clone() }
}

/// So many places of an axis, the last ones; zeros come before where there are fewer.
fn last_places(tensor: &HostTensor, axis: usize, places: usize) -> HostTensor {
    let had = tensor.shape[axis];
    let inner = tensor.shape[axis + 1..].iter().product::<usize>() * tensor.element.bytes();
    let outer: usize = tensor.shape[..axis].iter().product();
    let (dropped, kept) = (had.saturating_sub(places), had.min(places));
    let mut shape = tensor.shape.clone();
    shape[axis] = places;
    let mut bytes = Vec::with_capacity(outer * places * inner);
    for row in 0..outer {
        bytes.resize(bytes.len() + (places - kept) * inner, 0);
        bytes.extend_from_slice(&tensor.bytes[(row * had + dropped) * inner..(row + 1) * had * inner]);
    }
    HostTensor { element: tensor.element, shape, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn port(name: &str, element: ElementType, shape: &[Option<u64>]) -> Port {
        Port { name: name.into(), element, shape: shape.to_vec() }
    }

    fn cache(name: &str, places: Option<u64>) -> Port {
        port(name, ElementType::F32, &[Some(1), Some(2), places, Some(1)])
    }

    fn profile(ranges: [u64; 3]) -> OptimizationProfile {
        let range = |[min, opt, max]: [u64; 3]| DimRange { min, opt, max };
        let dims = vec![range([1; 3]), range([2; 3]), range(ranges), range([1; 3])];
        OptimizationProfile { inputs: BTreeMap::from([("past.0".to_owned(), dims)]) }
    }

    fn growing(profiles: &[OptimizationProfile]) -> Result<Growing, Failure> {
        let mask = port("attention_mask", ElementType::I64, &[Some(1), None]);
        Growing::of(vec![(cache("past.0", None), "present.0".into(), 2)], &[cache("past.0", None), mask], profiles)
    }

    fn lengths(profiles: &[OptimizationProfile]) -> Vec<(usize, usize)> {
        growing(profiles).unwrap().lengths.iter().map(|length| (length.places, length.profile)).collect()
    }

    #[test]
    fn the_axis_that_grows_is_open_or_one_longer() {
        let grows = |input: &Port, output: &Port| grows(input, output, &[]);
        assert_eq!(grows(&cache("a", None), &cache("b", None)), Some(2));
        assert_eq!(grows(&cache("a", Some(7)), &cache("b", Some(8))), Some(2));
        assert_eq!(grows(&cache("a", Some(7)), &cache("b", Some(7))), None);
        assert_eq!(grows(&cache("a", Some(7)), &cache("b", Some(9))), None);
        let both = port("a", ElementType::F32, &[None, Some(2), None, Some(1)]);
        assert_eq!(grows(&both, &both), None, "which of the two grows is not clear");
        let mut profile = profile([1, 4, 8]);
        profile.inputs = BTreeMap::from([("a".to_owned(), profile.inputs["past.0"].clone())]);
        assert_eq!(super::grows(&both, &both, &[profile]), Some(2), "the batch is one");
        let named = |places: u64| {
            let of = super::tests::profile([places; 3]);
            OptimizationProfile { inputs: BTreeMap::from([("a".to_owned(), of.inputs["past.0"].clone())]) }
        };
        assert_eq!(super::grows(&both, &both, &[named(4), named(8)]), Some(2), "one length in each profile");
    }

    #[test]
    fn lengths_double_and_come_from_every_profile() {
        assert_eq!(lengths(&[profile([1, 8, 47])]), [(8, 0), (16, 0), (32, 0), (47, 0)]);
        assert_eq!(lengths(&[profile([16, 16, 16]), profile([64, 64, 64])]), [(16, 0), (64, 1)]);
        let all = growing(&[profile([1, 8, 47])]).unwrap();
        assert_eq!((all.room(), all.length(8).unwrap().places, all.length(9).unwrap().places), (48, 8, 16));
        assert_eq!(all.length(48), None);
        // Compared where one of the two lengths is full.
        let trial = |profiles: &[OptimizationProfile], held: usize, runs: usize| {
            let (at, length) = growing(profiles).unwrap().trial(held, runs)?;
            Some((at, length.places, length.profile))
        };
        assert_eq!(trial(&[profile([1, 8, 47])], 0, 40), Some((1, 1, 0)));
        assert_eq!(trial(&[profile([1, 8, 47])], 8, 40), Some((8, 16, 0)), "the usual length is full");
        assert_eq!(trial(&[profile([1, 8, 47])], 0, 1), Some((0, 16, 0)), "there is no second run");
        assert_eq!(trial(&[profile([16, 16, 16]), profile([64, 64, 64])], 0, 40), Some((16, 64, 1)));
        assert_eq!(trial(&[profile([3, 8, 8])], 0, 9), Some((3, 3, 0)));
        assert_eq!(trial(&[profile([8, 8, 8])], 0, 9), None, "there is one length alone");
        let failure = growing(&[]).unwrap_err();
        assert_eq!(failure.to_string(), "the plan does not say how long 'past.0' may be");
        assert!(failure.hint.contains("--shapes past.0:1x2x1..128..1023x1"), "{}", failure.hint);
    }

    #[test]
    fn what_is_new_comes_last_and_what_holds_nothing_goes() {
        let of = |shape: [usize; 4], values: &[f64]| HostTensor::of_values(ElementType::F32, shape.to_vec(), values);
        let growing = growing(&[profile([1, 3, 6])]).unwrap();
        let mut given = NamedTensors::from([("past.0".to_owned(), of([1, 2, 2, 1], &[1.0, 2.0, 5.0, 6.0]))]);
        let held = growing.begin(&mut given).unwrap();
        let length = growing.length(held).unwrap();
        growing.fit(&mut given, length, held);
        assert_eq!(given["past.0"], of([1, 2, 3, 1], &[0.0, 1.0, 2.0, 0.0, 5.0, 6.0]));
        let mask = |values: &[f64]| HostTensor::of_values(ElementType::I64, vec![1, values.len()], values);
        assert_eq!(given["attention_mask"], mask(&[0.0, 1.0, 1.0, 1.0]));
        let longer = of([1, 2, 4, 1], &[0.0, 1.0, 2.0, 3.0, 0.0, 5.0, 6.0, 7.0]);
        let mut outputs = NamedTensors::from([("present.0".to_owned(), longer)]);
        let mut elsewhere =
            NamedTensors::from([("present.0".to_owned(), of([1, 2, 4, 1], &[0.0, 1.0, 2.0, 3.0, 0.0, 5.0, 7.0, 6.0]))]);
        let failure = growing.keep(&mut given.clone(), &mut elsewhere, true).unwrap_err();
        assert_eq!(failure.to_string(), "'present.0' is not 'past.0' with one place behind it");
        growing.keep(&mut given, &mut outputs, true).unwrap();
        assert!(outputs.is_empty());
        growing.fit(&mut given, growing.length(3).unwrap(), 3);
        assert_eq!(given["past.0"], of([1, 2, 3, 1], &[1.0, 2.0, 3.0, 5.0, 6.0, 7.0]));
        assert_eq!(given["attention_mask"], mask(&[1.0; 4]));
        growing.fit(&mut given, growing.length(4).unwrap(), 3);
        assert_eq!(given["past.0"].shape, [1, 2, 6, 1]);
        assert_eq!(given["attention_mask"], mask(&[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]));
    }

    #[test]
    fn only_places_that_hold_something_change_their_order() {
        let of = |values: &[f64]| HostTensor::of_values(ElementType::F32, vec![1, 2, 3, 1], values);
        let turned = reversed(&of(&[0.0, 1.0, 2.0, 0.0, 5.0, 6.0]), 2, 2);
        assert_eq!(turned, of(&[0.0, 2.0, 1.0, 0.0, 6.0, 5.0]));
        assert_eq!(reversed(&turned, 2, 9), of(&[1.0, 2.0, 0.0, 5.0, 6.0, 0.0]));
        assert_eq!(reversed(&turned, 2, 0), turned);
    }

    #[test]
    fn a_plan_without_a_mask_of_one_row_is_refused() {
        let refused = |inputs: &[Port]| {
            let caches = vec![(cache("past.0", None), "present.0".to_owned(), 2)];
            Growing::of(caches, inputs, &[profile([1, 8, 47])]).unwrap_err()
        };
        assert!(refused(&[]).to_string().ends_with("hold nothing yet: it has none"));
        let mask = port("mask", ElementType::F32, &[Some(1), Some(1), Some(1), None]);
        assert!(refused(&[mask]).to_string().ends_with("'mask' [1, 1, 1, ?] is none of one row"));
        let given = HostTensor::of_values(ElementType::I64, vec![1, 2], &[1.0, 1.0]);
        let mut given = NamedTensors::from([("attention_mask".to_owned(), given)]);
        let failure = growing(&[profile([1, 8, 47])]).unwrap().begin(&mut given).unwrap_err();
        assert!(failure.hint.contains("leave it out"), "{}", failure.hint);
    }

    #[test]
    fn scores_that_differ_by_the_length_are_told() {
        let of = |values: &[f64]| HostTensor::of_values(ElementType::F32, vec![1, values.len()], values);
        assert_eq!(differ(&of(&[1.0, -4.0]), &of(&[1.001, -4.0]), SAME), None);
        assert!(differ(&of(&[1.0, -4.0]), &of(&[2.0, -4.0]), SAME).is_some_and(|share| share > 0.2));
        let token = |value: f64| HostTensor::of_values(ElementType::I64, vec![1], &[value]);
        assert_eq!(differ(&token(3.0), &token(3.0), SAME), None);
        assert!(differ(&token(3.0), &token(4.0), SAME).is_some());
    }
}
