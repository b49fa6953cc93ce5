//! Who has which place. Everything here is a question of numbers; time and tasks are elsewhere.

use planforge_types::Digest;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr},
};

/// A connection, in the order in which they came.
pub type Id = u64;

/// Where a connection comes from, as far as it counts: whoever has one IPv6 address has the whole /64 network of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    V4(Ipv4Addr),
    V6(u64),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// Whose a known connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The owner of the data folder.
    Owner,
    /// Whoever has the token of this hash.
    Token(Digest),
}

/// What a holder may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Administrators and the owner: any place there is.
    Operator,
    /// Agents: one token's share of all places.
    Agent,
    /// Everybody else: one token's share, of half of the places.
    Person,
}

/// How many connections there may be, by who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub strangers: usize,
    pub strangers_of_one_address: usize,
    pub known: usize,
    pub known_of_one_token: usize,
    /// Of all tokens that are neither an agent's nor an administrator's.
    pub known_people: usize,
}

/// Strangers at once: each has ten seconds to say who it is.
const STRANGERS_MAX: usize = 1024;
/// Fewest places of each sort, however few there are in all.
const STRANGERS_MIN: usize = 8;
const KNOWN_MIN: usize = 8;

impl Places {
    /// Divides so many connections.
    pub fn of(connections: usize) -> Self {
        let strangers = (connections / 8).clamp(STRANGERS_MIN, STRANGERS_MAX);
        let known = connections.saturating_sub(strangers).max(KNOWN_MIN);
        Self {
            strangers,
            strangers_of_one_address: (strangers / 4).max(STRANGERS_MIN / 2),
            known,
            known_of_one_token: (known / 8).max(KNOWN_MIN / 2),
            known_people: known / 2,
        }
    }

    pub fn all(&self) -> usize {
        self.strangers + self.known
    }
}

/// Connections there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub strangers: usize,
    pub known: usize,
    /// That lost their place to another.
    pub displaced: u64,
    /// That showed a good token and found no place.
    pub turned_away: u64,
}

/// Why a good token finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    OfToken(usize),
    OfPeople(usize),
    All(usize),
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfToken(limit) => write!(f, "this token has {limit} connections in use, its share"),
            Self::OfPeople(limit) => {
                write!(f, "all {limit} connections for tokens that are not an agent's are in use")
            }
            Self::All(limit) => write!(f, "all {limit} connections that this coordinator can hold are in use"),
        }
    }
}

#[derive(Debug)]
enum Standing {
    Stranger(Source),
    /// `idle`: since when nothing runs on it, as a number that only grows.
    Known {
        holder: Holder,
        kind: Kind,
        idle: Option<u64>,
    },
    /// Told to go, and still here. Counts no more.
    Leaving,
}

/// Who is here.
#[derive(Debug)]
pub struct Ledger {
    places: Places,
    next: Id,
    all: BTreeMap<Id, Standing>,
    strangers: BTreeMap<Source, BTreeSet<Id>>,
    /// Every address that strangers come from, by how many they are, then by whose oldest has been here longest: who goes
    /// is found in no more steps the more addresses there are.
    weights: BTreeSet<(usize, Reverse<Id>, Source)>,
    /// Known connections on which nothing runs, the longest first.
    idle: BTreeMap<u64, Id>,
    next_idle: u64,
    by_holder: BTreeMap<Holder, BTreeSet<Id>>,
    people: usize,
    counts: Counts,
}

impl Ledger {
    pub fn new(places: Places) -> Self {
        Self {
            places,
            next: 0,
            all: BTreeMap::new(),
            strangers: BTreeMap::new(),
            weights: BTreeSet::new(),
            idle: BTreeMap::new(),
            next_idle: 0,
            by_holder: BTreeMap::new(),
            people: 0,
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn places(&self) -> Places {
        self.places
    }

    /// Lets somebody in; and who has to go for that.
    pub fn enter(&mut self, source: Source) -> (Id, Option<Id>) {
        let here = self.strangers.get(&source).map_or(0, BTreeSet::len);
        let leaves = if here >= self.places.strangers_of_one_address {
            self.strangers.get(&source).and_then(|ids| ids.first().copied())
        } else if self.counts.strangers >= self.places.strangers {
            // Of the addresses that hold most, the one whose oldest has been here longest.
            self.weights.last().map(|(_, Reverse(oldest), _)| *oldest)
        } else {
            None
        };
        self.displace(leaves);
        let id = self.next;
        self.next += 1;
        self.all.insert(id, Standing::Stranger(source));
        self.change_strangers(source, |ids| ids.insert(id));
        self.counts.strangers += 1;
        (id, leaves)
    }

    /// Makes a stranger known, and says who has to go for that. Whoever is known already stays who it was; a connection
    /// that was told to go stays told so.
    pub fn prove(&mut self, id: Id, holder: Holder, kind: Kind) -> Result<Option<Id>, Full> {
        let Some(&Standing::Stranger(source)) = self.all.get(&id) else { return Ok(None) };
        let leaves = self.make_room(holder, kind)?;
        self.remove_stranger(id, source);
        self.settle(id, holder, kind);
        Ok(leaves)
    }

    /// Lets somebody in who showed at the door who it is; and who has to go for that.
    pub fn enter_known(&mut self, holder: Holder, kind: Kind) -> Result<(Id, Option<Id>), Full> {
        let leaves = self.make_room(holder, kind)?;
        let id = self.next;
        self.next += 1;
        self.settle(id, holder, kind);
        Ok((id, leaves))
    }

    fn settle(&mut self, id: Id, holder: Holder, kind: Kind) {
        self.all.insert(id, Standing::Known { holder, kind, idle: None });
        self.by_holder.entry(holder).or_default().insert(id);
        self.counts.known += 1;
        self.people += usize::from(kind == Kind::Person);
    }

    fn make_room(&mut self, holder: Holder, kind: Kind) -> Result<Option<Id>, Full> {
        let room = self.room_for(holder, kind);
        match room {
            Ok(leaves) => self.displace(leaves),
            Err(_) => self.counts.turned_away += 1,
        }
        room
    }

    /// Who has to go for another connection of that holder; `None` where there is room.
    fn room_for(&self, holder: Holder, kind: Kind) -> Result<Option<Id>, Full> {
        let Places { known, known_of_one_token, known_people, .. } = self.places;
        let of_holder = self.by_holder.get(&holder).map_or(0, BTreeSet::len);
        if kind != Kind::Operator && of_holder >= known_of_one_token {
            let own = |id: &Id| self.by_holder.get(&holder).is_some_and(|ids| ids.contains(id));
            return self.longest_idle(own).map(Some).ok_or(Full::OfToken(known_of_one_token));
        }
        if kind == Kind::Person && self.people >= known_people {
            let person = |id: &Id| matches!(self.all.get(id), Some(Standing::Known { kind: Kind::Person, .. }));
            return self.longest_idle(person).map(Some).ok_or(Full::OfPeople(known_people));
        }
        if self.counts.known >= known {
            return self.longest_idle(|_| true).map(Some).ok_or(Full::All(known));
        }
        Ok(None)
    }

    fn longest_idle(&self, fits: impl Fn(&Id) -> bool) -> Option<Id> {
        self.idle.values().copied().find(fits)
    }

    /// Whether something runs on a known connection; of a stranger nobody asks.
    pub fn set_busy(&mut self, id: Id, busy: bool) {
        let Some(Standing::Known { idle, .. }) = self.all.get_mut(&id) else { return };
        match (busy, *idle) {
            (true, Some(since)) => {
                *idle = None;
                self.idle.remove(&since);
            }
            (false, None) => {
                *idle = Some(self.next_idle);
                self.idle.insert(self.next_idle, id);
                self.next_idle += 1;
            }
            _ => {}
        }
    }

    /// The connection is closed.
    pub fn leave(&mut self, id: Id) {
        self.let_go(id);
        self.all.remove(&id);
    }

    fn displace(&mut self, id: Option<Id>) {
        let Some(id) = id else { return };
        self.let_go(id);
        self.all.insert(id, Standing::Leaving);
        self.counts.displaced += 1;
    }

    /// Takes a connection's place from it.
    fn let_go(&mut self, id: Id) {
        match self.all.get(&id) {
            Some(&Standing::Stranger(source)) => self.remove_stranger(id, source),
            Some(&Standing::Known { holder, kind, idle }) => {
                if let Some(since) = idle {
                    self.idle.remove(&since);
                }
                if let Some(ids) = self.by_holder.get_mut(&holder) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.by_holder.remove(&holder);
                    }
                }
                self.counts.known -= 1;
                self.people -= usize::from(kind == Kind::Person);
            }
            Some(Standing::Leaving) | None => {}
        }
    }

    fn remove_stranger(&mut self, id: Id, source: Source) {
        self.change_strangers(source, |ids| ids.remove(&id));
        self.counts.strangers -= 1;
    }

    fn change_strangers(&mut self, source: Source, change: impl FnOnce(&mut BTreeSet<Id>) -> bool) {
        let weight = |ids: &BTreeSet<Id>| ids.first().map(|oldest| (ids.len(), Reverse(*oldest), source));
        let ids = self.strangers.entry(source).or_default();
        let before = weight(ids);
        change(ids);
        let after = weight(ids);
        if ids.is_empty() {
            self.strangers.remove(&source);
        }
        before.inspect(|weight| _ = self.weights.remove(weight));
        self.weights.extend(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places =
        Places { strangers: 8, strangers_of_one_address: 4, known: 8, known_of_one_token: 3, known_people: 5 };

    fn from(last: u8) -> Source {
        IpAddr::from([127, 0, 0, last]).into()
    }

    fn token(name: &str) -> Holder {
        Holder::Token(Digest::of(name.as_bytes()))
    }

    #[test]
    fn one_address_displaces_its_own_and_many_displace_each_other() {
        let mut ledger = Ledger::new(PLACES);
        let first = ledger.enter(from(1));
        for _ in 0..3 {
            assert_eq!(ledger.enter(from(1)).1, None);
        }
        assert_eq!(ledger.enter(from(1)).1, Some(first.0), "the oldest of the same address, with room for others left");
        let quiet = ledger.enter(from(2)).0;
        for last in 3..6 {
            assert_eq!(ledger.enter(from(last)).1, None);
        }
        assert_eq!(ledger.counts().strangers, 8);
        let leaves = ledger.enter(from(9)).1.unwrap();
        assert!(leaves < quiet, "of the address that holds most");
        // Were every one of another address, the oldest of all would go.
        for last in 10..30 {
            ledger.enter(from(last));
        }
        assert_eq!(ledger.counts().strangers, 8);
    }

    #[test]
    fn whoever_is_known_keeps_its_place_however_many_strangers_come() {
        let mut ledger = Ledger::new(PLACES);
        let known = ledger.enter(from(1)).0;
        ledger.prove(known, token("ci"), Kind::Person).unwrap();
        for round in 0..1_000_u32 {
            let (id, leaves) = ledger.enter(from((round % 250) as u8));
            assert_ne!(leaves, Some(known));
            assert_ne!(id, known);
        }
        assert_eq!(ledger.counts(), Counts { strangers: 8, known: 1, displaced: 992, turned_away: 0 });
    }

    #[test]
    fn a_token_has_its_share_and_its_idle_connections_make_room() {
        let mut ledger = Ledger::new(PLACES);
        let mut join = |name: &str, kind| {
            let id = ledger.enter(from(1)).0;
            (id, ledger.prove(id, token(name), kind))
        };
        let (first, _) = join("ci", Kind::Person);
        let (second, _) = join("ci", Kind::Person);
        assert_eq!(join("ci", Kind::Person).1, Ok(None));
        assert_eq!(join("ci", Kind::Person).1, Err(Full::OfToken(3)));
        ledger.set_busy(second, false);
        ledger.set_busy(first, false);
        ledger.set_busy(first, true);
        let mut join = |name: &str, kind| {
            let id = ledger.enter(from(1)).0;
            ledger.prove(id, token(name), kind)
        };
        assert_eq!(join("ci", Kind::Person), Ok(Some(second)));
        assert_eq!(join("other", Kind::Person), Ok(None));
        assert_eq!(join("other", Kind::Person), Ok(None));
        assert_eq!(join("third", Kind::Person), Err(Full::OfPeople(5)), "agents find a place");
        assert_eq!(join("a1", Kind::Agent), Ok(None));
        assert_eq!(join("a2", Kind::Agent), Ok(None));
        assert_eq!(join("a3", Kind::Agent), Ok(None));
        assert_eq!(join("a4", Kind::Agent), Err(Full::All(8)));
        ledger.set_busy(first, false);
        let id = ledger.enter(from(1)).0;
        assert_eq!(ledger.prove(id, token("a4"), Kind::Agent), Ok(Some(first)));
        assert_eq!(ledger.counts().known, 8);
    }

    #[test]
    fn whatever_happens_the_numbers_are_those_of_who_is_here() {
        let mut ledger = Ledger::new(PLACES);
        let mut here = Vec::new();
        // A small generator of its own: the same steps each time.
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..2_000 {
            match draw(5) {
                0 | 1 => here.push(ledger.enter(from(draw(6) as u8)).0),
                2 if !here.is_empty() => {
                    let id = here[draw(here.len() as u64) as usize];
                    let kind = [Kind::Operator, Kind::Agent, Kind::Person][draw(3) as usize];
                    let _ = ledger.prove(id, token(&draw(4).to_string()), kind);
                }
                3 if draw(8) == 0 => here.extend(ledger.enter_known(Holder::Owner, Kind::Operator).map(|(id, _)| id)),
                3 if !here.is_empty() => {
                    let id = here[draw(here.len() as u64) as usize];
                    ledger.set_busy(id, draw(2) == 0);
                }
                4 if !here.is_empty() => ledger.leave(here.swap_remove(draw(here.len() as u64) as usize)),
                _ => {}
            }
            let strangers = ledger.all.values().filter(|standing| matches!(standing, Standing::Stranger(_))).count();
            let known = ledger.all.values().filter(|standing| matches!(standing, Standing::Known { .. })).count();
            let idle = ledger.all.values().filter(|s| matches!(s, Standing::Known { idle: Some(_), .. })).count();
            assert_eq!((ledger.counts.strangers, ledger.counts.known), (strangers, known));
            assert_eq!(ledger.strangers.values().map(BTreeSet::len).sum::<usize>(), strangers);
            let weights = ledger.strangers.iter().map(|(from, ids)| (ids.len(), Reverse(*ids.first().unwrap()), *from));
            assert_eq!(ledger.weights, weights.collect());
            assert_eq!(ledger.by_holder.values().map(BTreeSet::len).sum::<usize>(), known);
            assert_eq!(ledger.idle.len(), idle);
            assert!(strangers <= 8 && known <= 8 && ledger.people <= 5);
            assert!(ledger.strangers.values().all(|ids| (1..=4).contains(&ids.len())));
        }
        for id in here {
            ledger.leave(id);
        }
        assert!(ledger.all.is_empty() && ledger.idle.is_empty() && ledger.people == 0);
    }

    #[test]
    fn places_are_divided_of_few_connections_and_of_many() {
        let few = Places::of(768);
        assert_eq!((few.strangers, few.known, few.known_people), (96, 672, 336));
        let many = Places::of(8192);
        assert_eq!((many.strangers, many.strangers_of_one_address, many.known), (1024, 256, 7168));
        assert_eq!(many.all(), 8192);
        let none = Places::of(0);
        assert!(none.strangers > 0 && none.known > 0 && none.known_of_one_token > 0 && none.known_people > 0);
    }

    #[test]
    fn an_ipv6_network_is_one_address_and_a_mapped_ipv4_address_its_own() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
        assert_ne!(of("127.0.0.1"), of("127.0.0.2"));
    }
}
