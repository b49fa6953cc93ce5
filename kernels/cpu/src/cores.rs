//! Which cores an engine's threads run on.
//!
//! An engine wants one core per thread. Its process may use those of its affinity mask, so `taskset`, cpusets and
//! containers are respected. Of these it takes the ones that no other engine on this machine has taken, first threads
//! of physical cores that nobody uses, then their siblings; so two engines never share a core while others are idle.
//! A core is taken twice: by locking `core-N.lock` in the host's lock folder, which containers may share, and by binding a
//! socket name, which processes of one network namespace share whatever folder they were given. The kernel gives either
//! to one process at a time and takes it back when that process ends, however it ends. When fewer cores are free than
//! there are threads, nothing is pinned and the operating system places the threads. So it is on systems other than
//! Linux, too.

use std::fmt;

/// Cores taken for one engine, given back when this is dropped.
#[derive(Default)]
pub struct Cores {
    /// One per thread; empty when threads are not pinned.
    cpus: Vec<usize>,
    #[cfg(target_os = "linux")]
    _claims: Vec<linux::Claim>,
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cores").field(&self.cpus).finish()
    }
}

impl Cores {
    /// The core of thread `thread`, when threads are pinned.
    pub fn of(&self, thread: usize) -> Option<usize> {
        self.cpus.get(thread).copied()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::Cores;
    use planforge_types::host_lock::{self, Tried};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::{
        collections::BTreeMap,
        fs::{self, File},
        marker::PhantomData,
        os::{
            linux::net::SocketAddrExt as _,
            unix::net::{SocketAddr, UnixDatagram},
        },
        path::Path,
    };

    /// The lowest processor that shares a physical core with `cpu`: the core's name.
    fn physical_core(cpu: usize) -> usize {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let list = fs::read_to_string(file).unwrap_or_default();
        let digits: String = list.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(cpu)
    }

    /// Processors of `allowed`, one of every physical core before any sibling.
    fn in_order(allowed: &CpuSet, core_of: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        let mut ranked: Vec<(usize, usize)> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .map(|cpu| {
                let siblings = seen.entry(core_of(cpu)).or_default();
                *siblings += 1;
                (*siblings, cpu)
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, cpu)| cpu).collect()
    }

    /// What keeps a core ours until it is dropped.
    pub(super) struct Claim {
        _name: UnixDatagram,
        /// Absent where the host's lock folder cannot be used.
        _file: Option<File>,
    }

    /// Takes one core; `None` when somebody has it. Without a folder only processes of the same network namespace see it.
    fn take(locks: Option<&Path>, cpu: usize) -> Option<Claim> {
        let name = SocketAddr::from_abstract_name(format!("planforge-core-{cpu}")).ok()?;
        let name = UnixDatagram::bind_addr(&name).ok()?;
        let file = match locks.map(|folder| host_lock::try_lock(&folder.join(format!("core-{cpu}.lock")))) {
            Some(Ok(Tried::Ours(file))) => Some(file),
            Some(Ok(Tried::Taken(_))) => return None,
            Some(Err(error)) => {
                tracing::debug!(%error, cpu, "a core is taken within this network namespace only");
                None
            }
            None => None,
        };
        Some(Claim { _name: name, _file: file })
    }

    impl Cores {
        /// Takes `threads` cores; none when fewer are free.
        pub fn take(threads: usize) -> Self {
            let locks = host_lock::host_folder();
            if let Err(error) = &locks {
                tracing::warn!(%error, "other containers of this host may pin the same cores");
            }
            Self::take_in(locks.ok().as_deref(), threads)
        }

        fn take_in(locks: Option<&Path>, threads: usize) -> Self {
            let Ok(allowed) = sched_getaffinity(None) else { return Self::default() };
            let mut taken = Self::default();
            for cpu in in_order(&allowed, physical_core) {
                if taken.cpus.len() == threads {
                    break;
                }
                if let Some(claim) = take(locks, cpu) {
                    taken.cpus.push(cpu);
                    taken._claims.push(claim);
                }
            }
            if taken.cpus.len() < threads {
                tracing::debug!(threads, free = taken.cpus.len(), "too few cores are free: threads are not pinned");
                return Self::default();
            }
            taken
        }

        /// Keeps the calling thread on the core of thread `thread` until the result is dropped.
        pub fn pin(&self, thread: usize) -> Pinned {
            let Some(cpu) = self.of(thread) else { return Pinned(None, PhantomData) };
            let Ok(before) = sched_getaffinity(None) else { return Pinned(None, PhantomData) };
            let mut only = CpuSet::new();
            only.set(cpu);
            Pinned(sched_setaffinity(None, &only).is_ok().then_some(before), PhantomData)
        }
    }

    /// A thread on a core of its own; dropping it lets the thread go where it was allowed to go before.
    /// Stays with that thread.
    #[derive(Debug)]
    #[must_use = "the thread is let go when this is dropped"]
    pub struct Pinned(Option<CpuSet>, PhantomData<*const ()>);

    impl Drop for Pinned {
        fn drop(&mut self) {
            if let Some(before) = &self.0
                && let Err(error) = sched_setaffinity(None, before)
            {
                tracing::warn!(%error, "a thread cannot be given back the cores it had");
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn siblings_come_last() {
            let mut allowed = CpuSet::new();
            [0, 1, 2, 5, 6].into_iter().for_each(|cpu| allowed.set(cpu));
            assert_eq!(in_order(&allowed, |cpu| cpu % 4), [0, 1, 2, 5, 6]);
            assert_eq!(in_order(&allowed, |cpu| cpu / 2), [0, 2, 5, 6, 1]);
        }

        #[test]
        fn a_thread_is_pinned_to_what_it_may_use_and_let_go_again() {
            let before = sched_getaffinity(None).unwrap();
            let cores = Cores::take(1);
            let Some(cpu) = cores.of(0) else {
                return planforge_skipped::skipped("other engines hold every core, so nothing is pinned");
            };
            assert!(before.is_set(cpu));
            assert!(take(None, cpu).is_none(), "a second engine took the same core");
            let pinned = cores.pin(0);
            let now = sched_getaffinity(None).unwrap();
            assert!(now.is_set(cpu) && now.count() == 1);
            drop(pinned);
            assert!(sched_getaffinity(None).unwrap() == before);
            drop(cores);
        }

        /// A container with a network namespace of its own binds any socket name: the lock file keeps it away.
        #[test]
        fn a_core_that_another_container_took_is_left_alone() {
            let folder = tempfile::tempdir().unwrap();
            let allowed = sched_getaffinity(None).unwrap();
            let elsewhere = |cpu: usize| match host_lock::try_lock(&folder.path().join(format!("core-{cpu}.lock"))) {
                Ok(Tried::Ours(file)) => file,
                other => panic!("{other:?}"),
            };
            let held: Vec<_> = in_order(&allowed, physical_core).into_iter().map(elsewhere).collect();
            assert_eq!(Cores::take_in(Some(folder.path()), 1).of(0), None);
            drop(held);
            // Other engines of this machine may hold every core.
            let Some(cpu) = Cores::take_in(None, 1).of(0) else { return };
            assert!(take(Some(folder.path()), cpu).is_some(), "it is free again");
        }

        #[test]
        fn a_folder_that_cannot_be_used_costs_nothing_but_the_view_of_other_containers() {
            let Some(cpu) = Cores::take_in(None, 1).of(0) else { return };
            assert!(take(Some(Path::new("/nowhere")), cpu).is_some());
        }

        #[test]
        fn more_threads_than_cores_are_not_pinned() {
            let allowed = sched_getaffinity(None).unwrap().count() as usize;
            assert_eq!(Cores::take(allowed + 1).of(0), None);
        }
    }
}
#[cfg(target_os = "linux")]
pub use linux::Pinned;

/// A thread that runs wherever the system puts it.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct Pinned;

#[cfg(not(target_os = "linux"))]
impl Cores {
    /// No cores.
    pub fn take(_threads: usize) -> Self {
        Self::default()
    }

    /// Nothing.
    pub fn pin(&self, _thread: usize) -> Pinned {
        Pinned
    }
}
