//! Who has a place at the port, and how long.
//!
//! Every connection is a *stranger* until one of its requests shows a good token, and *known* from then on. The two have
//! places of their own, so that no number of strangers takes one of those who may come in. A stranger that finds no
//! place gets the one of the stranger who has been waiting longest at the address that holds most: whoever shows a
//! token at once is never in the way, and whoever holds many connections displaces its own.
//!
//! | who | has at most |
//! |---|---|
//! | strangers of one address (IPv6: of one /64 network) | a quarter of the strangers' places |
//! | known connections of one token, administrators' aside | an eighth of the places of the known |
//! | of all tokens that join no agents | half of the places of the known, so that agents find one |
//!
//! A known connection on which nothing runs gives its place up when another needs it; clients open a new one by
//! themselves. How many places there are follows from how many files this process may have open (`budget`).
//!
//! | module | holds |
//! |---|---|
//! | `ledger` | who has a place and who has to go: no clock, no tasks |
//! | `place` | one connection's place, its time limits and what runs on it |
//! | `budget` | from open files to places |

mod budget;
mod ledger;
mod place;

pub use budget::{Budget, CONNECTIONS_MAX};
pub use ledger::{Counts, Full, Holder, Kind, Places, Source};
pub use place::{Activity, Ending, FIRST_REQUEST_WITHIN, Place};

use ledger::{Id, Ledger};
use planforge_types::auth::Proof;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// The places of one server. Clones share them.
#[derive(Clone, Debug)]
pub struct Doors {
    register: Arc<Mutex<Register>>,
    /// From a connection's acceptance to its first whole request.
    first_request_within: Duration,
}

#[derive(Debug)]
struct Register {
    ledger: Ledger,
    /// Ends the connection of whoever has to go.
    ends: HashMap<Id, CancellationToken>,
}

impl Register {
    fn dismiss(&mut self, id: Option<Id>) {
        if let Some(end) = id.and_then(|id| self.ends.get(&id)) {
            end.cancel();
        }
    }
}

impl Doors {
    pub fn new(places: Places, first_request_within: Duration) -> Self {
        let register = Register { ledger: Ledger::new(places), ends: HashMap::new() };
        Self { register: Arc::new(Mutex::new(register)), first_request_within }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Register) -> T) -> T {
        work(&mut self.register.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A place for somebody who has shown nothing yet; somebody else may lose theirs.
    pub fn enter(&self, source: Source) -> Arc<Place> {
        let over = CancellationToken::new();
        let id = self.with(|register| {
            let (id, leaves) = register.ledger.enter(source);
            register.dismiss(leaves);
            register.ends.insert(id, over.clone());
            id
        });
        Arc::new(Place::new(self.clone(), id, over))
    }

    /// A place for the owner of the data folder, whom the kernel vouches for.
    pub fn enter_owner(&self) -> Result<Arc<Place>, Full> {
        let over = CancellationToken::new();
        let id = self.with(|register| {
            let (id, leaves) = register.ledger.enter_known(Holder::Owner, Kind::Operator)?;
            register.dismiss(leaves);
            register.ends.insert(id, over.clone());
            Ok(id)
        })?;
        Ok(Arc::new(Place::new(self.clone(), id, over).known_by(Proof::Owner)))
    }

    pub fn counts(&self) -> Counts {
        self.with(|register| register.ledger.counts())
    }

    pub fn places(&self) -> Places {
        self.with(|register| register.ledger.places())
    }

    fn prove(&self, id: Id, holder: Holder, kind: Kind) -> Result<(), Full> {
        self.with(|register| {
            let leaves = register.ledger.prove(id, holder, kind)?;
            register.dismiss(leaves);
            Ok(())
        })
    }

    fn set_busy(&self, id: Id, busy: bool) {
        self.with(|register| register.ledger.set_busy(id, busy));
    }

    fn leave(&self, id: Id) {
        self.with(|register| {
            register.ledger.leave(id);
            register.ends.remove(&id);
        });
    }
}
