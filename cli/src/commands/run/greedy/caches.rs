//! Caches that grow, while a decode goes on: through the host at every run, or on the device.
//!
//! On the host a run's new place comes last, and a place that holds nothing goes. On the device it is laid in the last
//! place that still holds nothing: nothing else moves, the mask is the same, and tokens lie in another order. That is done
//! with models that do not go by the order of places, which is tried once: the same caches in two orders have to give the
//! same.

use super::{
    check_room,
    growing::{Growing, Length, SAME, differ, first_places, reversed},
    numbers::is_scores,
    output_of,
};
use crate::failure::Failure;
use planforge_backend::Meter;
use planforge_types::{HostTensor, NamedTensors, Port};

/// With fewer places that hold something their order is not tried.
const LEAST_TRIED: usize = 4;
/// How far scores of two orders may be apart, of the largest of them.
const SAME_IN_ANY_ORDER: f64 = SAME / 2.0;

/// Whether a model goes by the order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Untried,
    Any,
    AsGiven,
}

/// Caches that grow, while they do.
pub struct Caches<'a> {
    pub growing: &'a Growing,
    /// The profile that is current.
    profile: usize,
    /// Places that hold something.
    pub held: usize,
    /// How many places hold something when another length is tried, and which: the two have to give the same.
    trial: Option<(usize, Length)>,
    pub order: Order,
    /// How long caches are that lie on the device, where those of the host are older.
    on_device: Option<Length>,
    /// Nothing was run yet.
    is_first: bool,
}

impl<'a> Caches<'a> {
    /// Takes the caches that were given, where they have room for so many runs, which give so many tokens.
    pub fn begin(
        growing: &'a Growing,
        profile: usize,
        given: &mut NamedTensors,
        [runs, tokens]: [usize; 2],
    ) -> Result<Self, Failure> {
        let held = growing.begin(given)?;
        let (room, cache) = (growing.room(), &growing.caches[0].input);
        let more =
            format!("build the model with a range of '{cache}' that goes to {}", (held + runs).saturating_sub(1));
        check_room(cache, [room, held], [runs, tokens], &more)?;
        let trial = growing.trial(held, runs);
        Ok(Self { growing, profile, held, trial, order: Order::Untried, on_device: None, is_first: true })
    }

    /// Whether something will show that the model goes by the mask.
    pub fn is_tried(&self) -> bool {
        self.trial.is_some()
    }

    /// Runs once, with `changed` in the place of what was given before; gives every output but caches. `from` is the
    /// output by which two runs are compared.
    pub fn run(
        &mut self,
        meter: &mut dyn Meter,
        given: &mut NamedTensors,
        mut changed: NamedTensors,
        from: &str,
    ) -> Result<NamedTensors, Failure> {
        let length = self.growing.length(self.held).ok_or_else(|| Failure::usage("the caches are full"))?;
        let other = self.trial.take_if(|(held, _)| *held == self.held).map(|(_, other)| other);
        if other.is_some() {
            self.fetch(meter, given)?;
        }
        given.extend(changed.clone());
        let outputs = if self.on_device == Some(length) {
            self.growing.fit(given, length, self.held);
            changed.insert(self.growing.mask.clone(), given[&self.growing.mask].clone());
            self.step(meter, given, &changed, length)?
        } else {
            self.run_on_host(meter, given, length, other, from)?
        };
        self.held += 1;
        Ok(outputs)
    }

    /// Runs on what is bound with `changed` in its place. Caches stay on the device while they have room.
    fn step(
        &mut self,
        meter: &mut dyn Meter,
        given: &mut NamedTensors,
        changed: &NamedTensors,
        length: Length,
    ) -> Result<NamedTensors, Failure> {
        let stay = length.places().checked_sub(self.held + 1);
        let is_cache = |name: &String| self.growing.caches.iter().any(|cache| cache.output == *name);
        let names = meter.outputs().into_iter().map(|port| port.name);
        let wanted: Vec<String> = names.filter(|name| stay.is_none() || !is_cache(name)).collect();
        let mut outputs = stepped(meter, changed, &wanted)?;
        match stay {
            Some(place) => {
                meter.keep(place as u64)?;
                self.on_device = Some(length);
            }
            None => {
                self.growing.keep(given, &mut outputs, false)?;
                self.on_device = None;
            }
        }
        Ok(outputs)
    }

    /// Has the host know what lies on the device.
    fn fetch(&mut self, meter: &mut dyn Meter, given: &mut NamedTensors) -> Result<(), Failure> {
        if self.on_device.take().is_none() {
            return Ok(());
        }
        let wanted: Vec<String> = self.growing.caches.iter().map(|cache| cache.output.clone()).collect();
        // On what is bound a run gives the same again, behind what was there.
        let outputs = stepped(meter, &NamedTensors::new(), &wanted)?;
        for cache in &self.growing.caches {
            let all = output_of(&outputs, &cache.output)?;
            let mut shape = all.shape.clone();
            shape[cache.axis] -= 1;
            let bytes = first_places(all, cache.axis, shape[cache.axis]);
            given.insert(cache.input.clone(), HostTensor { element: all.element, shape, bytes });
        }
        Ok(())
    }

    /// Runs with caches that the host gives; `other` is a length that has to give the same.
    fn run_on_host(
        &mut self,
        meter: &mut dyn Meter,
        given: &mut NamedTensors,
        length: Length,
        other: Option<Length>,
        from: &str,
    ) -> Result<NamedTensors, Failure> {
        let of_other = match other {
            Some(other) => Some((other, self.run_at(other, meter, &mut given.clone())?)),
            None => None,
        };
        let stays = self.growing.stays(&meter.growing());
        if stays && self.order == Order::Any && of_other.is_none() && self.held < length.places() {
            self.bind(length, meter, given)?;
            if self.growing.stays(&meter.growing()) {
                return self.step(meter, given, &NamedTensors::new(), length);
            }
        }
        // A token alone says too little of two runs.
        let says = |port: &Port| port.name == from && is_scores(port);
        let is_tried = stays && self.order == Order::Untried && self.held >= LEAST_TRIED;
        let of_reversed = match is_tried && meter.outputs().iter().any(says) {
            true => {
                let mut turned = given.clone();
                for cache in &self.growing.caches {
                    turned.insert(cache.input.clone(), reversed(&given[&cache.input], cache.axis, self.held));
                }
                Some(self.run_at(length, meter, &mut turned)?)
            }
            false => None,
        };
        let mut outputs = self.run_at(length, meter, given)?;
        if let Some((other, of_other)) = of_other
            && let Some(share) = differ(output_of(&of_other, from)?, output_of(&outputs, from)?, SAME)
        {
            let (mask, [one, two]) = (&self.growing.mask, [length.places(), other.places()]);
            return Err(Failure::usage(format!(
                "the model does not go by '{mask}' alone: with caches of {one} and of {two} places, of which it shows the \
                 same, '{from}' is {share:.2} of its largest apart"
            ))
            .hint("export the model with position_ids as an input, and a mask that hides every place that it says"));
        }
        if let Some(of_reversed) = of_reversed {
            let apart = differ(output_of(&of_reversed, from)?, output_of(&outputs, from)?, SAME_IN_ANY_ORDER);
            self.order = if apart.is_none() { Order::Any } else { Order::AsGiven };
        }
        self.growing.keep(given, &mut outputs, std::mem::take(&mut self.is_first))?;
        Ok(outputs)
    }

    fn run_at(
        &mut self,
        length: Length,
        meter: &mut dyn Meter,
        given: &mut NamedTensors,
    ) -> Result<NamedTensors, Failure> {
        self.bind(length, meter, given)?;
        Ok(meter.run()?)
    }

    fn bind(&mut self, length: Length, meter: &mut dyn Meter, given: &mut NamedTensors) -> Result<(), Failure> {
        if self.profile != length.profile() {
            meter.switch_profile(length.profile())?;
            self.profile = length.profile();
        }
        self.growing.fit(given, length, self.held);
        Ok(meter.bind(given)?)
    }
}

fn stepped(meter: &mut dyn Meter, changed: &NamedTensors, wanted: &[String]) -> Result<NamedTensors, Failure> {
    let outputs = meter.step(changed, wanted)?;
    outputs.ok_or_else(|| Failure::usage("the backend keeps caches on its device, and does not run on them"))
}
