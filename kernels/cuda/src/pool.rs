//! Things that are made once, and lent again when nobody holds them any more.

use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub struct Pool<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    /// One that nobody holds, or what `make` makes, which the pool keeps from then on.
    pub fn take<E>(&self, make: impl FnOnce() -> Result<Arc<T>, E>) -> Result<Arc<T>, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the pool hands them out, and whoever holds one counts: at one holder that is the pool itself.
        if let Some(free) = all.iter().find(|one| Arc::strong_count(one) == 1) {
            return Ok(free.clone());
        }
        let made = make()?;
        all.push(made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, convert::Infallible};

    #[test]
    fn what_nobody_holds_is_lent_again() {
        let (pool, made) = (Pool::default(), Cell::new(0));
        let take = || {
            let taken = pool.take(|| {
                made.set(made.get() + 1);
                Ok::<_, Infallible>(Arc::new(made.get()))
            });
            let Ok(one) = taken;
            one
        };
        let (first, second) = (take(), take());
        assert_eq!((*first, *second), (1, 2));
        let also_first = first.clone();
        drop(first);
        assert_eq!(*take(), 3, "both are still held");
        drop(also_first);
        let again = take();
        assert_eq!((*again, *take(), made.get()), (1, 3, 3));
    }

    #[test]
    fn what_cannot_be_made_is_not_kept() {
        let pool = Pool::default();
        assert_eq!(pool.take(|| Err("no")), Err("no"));
        assert_eq!(pool.take(|| Ok::<_, Infallible>(Arc::new(7))), Ok(Arc::new(7)));
    }
}
