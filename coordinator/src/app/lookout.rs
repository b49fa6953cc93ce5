//! Whether those who are sent streams may still have them. One task looks for all streams, so that none of them is woken
//! before there is something for it to do.

use super::{App, Standing};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// How often it is looked: within a second a revocation ends a stream.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The streams that are looked after.
#[derive(Clone, Debug, Default)]
pub struct Lookout(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    streams: BTreeMap<u64, (Standing, CancellationToken)>,
    /// A task looks.
    is_looking: bool,
}

/// A stream that is looked after for as long as this lives.
#[derive(Debug)]
pub(super) struct Watch {
    lookout: Lookout,
    number: u64,
    over: CancellationToken,
}

impl Watch {
    /// Completes when what let the caller in is worth nothing any more.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.lookout.watched().streams.remove(&self.number);
    }
}

impl Lookout {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after a stream of whoever was let in by `standing`.
    pub(super) fn watch(&self, app: &App, standing: Standing) -> Watch {
        let over = CancellationToken::new();
        let mut watched = self.watched();
        let number = watched.next;
        watched.next += 1;
        watched.streams.insert(number, (standing, over.clone()));
        let is_first = !std::mem::replace(&mut watched.is_looking, true);
        drop(watched);
        if is_first {
            tokio::spawn(look(app.clone()));
        }
        Watch { lookout: self.clone(), number, over }
    }

    /// The streams as they are now; `None`: there are none, and whoever looked stops.
    fn now(&self) -> Option<Vec<(Standing, CancellationToken)>> {
        let mut watched = self.watched();
        watched.is_looking = !watched.streams.is_empty();
        watched.is_looking.then(|| watched.streams.values().cloned().collect())
    }
}

async fn look(app: App) {
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    while app.closing.run_until_cancelled(looks.tick()).await.is_some() {
        // A look takes the farm's own locks, so it holds none here.
        let Some(streams) = app.lookout.now() else { return };
        streams.iter().filter(|(standing, _)| !standing.stands(&app)).for_each(|(_, over)| over.cancel());
    }
}
