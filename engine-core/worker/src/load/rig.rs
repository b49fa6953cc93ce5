//! Instances of an engine, each loaded and run in a thread of its own, which keeps its processors.

use super::arrivals::Arrivals;
use planforge_backend::{Cancel, Meter, Pacing, Window};
use planforge_report::load::Served;
use planforge_types::{BackendError, FailureClass};
use std::{
    hint,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// Loads an instance and binds its inputs; called in the thread that runs it.
pub type Instance<'a> = dyn Fn() -> Result<Box<dyn Meter>, BackendError> + Sync + 'a;

/// The last of a wait is spent looking at the clock: threads are woken late by about as much.
const SPIN: Duration = Duration::from_micros(80);

/// A run that is behind by as much as it is long will not catch up: what has arrived by then is given up.
const PATIENCE: u32 = 2;

/// Requests that are kept of one run; more would take memory that the engine may need.
const SERVED_MAX: usize = 4_000_000;

/// Executions before the first run, so that memory is touched and threads have come up.
const WARM_UP: Duration = Duration::from_millis(300);

/// One run, as its threads see it.
#[derive(Debug)]
struct Run {
    arrivals: Mutex<Arrivals>,
    began: Instant,
    gives_up: Duration,
    cancel: Cancel,
}

impl Run {
    fn next(&self) -> Option<Duration> {
        let now = self.began.elapsed();
        if now >= self.gives_up || self.cancel.is_cancelled() {
            return None;
        }
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).next(now)
    }

    fn wait_until(&self, at: Duration) {
        loop {
            let Some(left) = at.checked_sub(self.began.elapsed()) else { return };
            match left.checked_sub(SPIN) {
                Some(long) if !long.is_zero() => thread::park_timeout(long),
                _ => hint::spin_loop(),
            }
        }
    }
}

/// What a thread is asked.
enum Ask {
    Serve(Arc<Run>, Sender<Result<Vec<Served>, BackendError>>),
    Pace(Sender<Option<f64>>),
}

/// Instances that are loaded and wait.
pub struct Rig<'a> {
    threads: Vec<Sender<Ask>>,
    cancel: &'a Cancel,
}

impl std::fmt::Debug for Rig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("instances", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Loads `instances`, hands them to `body` and ends them.
///
/// # Errors
///
/// When an instance cannot be loaded, or what `body` says.
pub fn with_rig<T>(
    instances: usize,
    make: &Instance<'_>,
    cancel: &Cancel,
    body: impl FnOnce(&Rig<'_>) -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    thread::scope(|scope| {
        let loaded = Arc::new(Barrier::new(instances + 1));
        let (tell, told) = mpsc::channel();
        let mut threads = Vec::with_capacity(instances);
        for _ in 0..instances {
            let (ask, asked) = mpsc::channel();
            let (tell, loaded) = (tell.clone(), Arc::clone(&loaded));
            scope.spawn(move || instance(make, &tell, &loaded, &asked));
            threads.push(ask);
        }
        drop(tell);
        loaded.wait();
        told.try_iter().collect::<Result<(), BackendError>>()?;
        body(&Rig { threads, cancel })
    })
}

/// What the thread of an instance does until nobody asks any more.
fn instance(make: &Instance<'_>, tell: &Sender<Result<(), BackendError>>, loaded: &Barrier, asked: &Receiver<Ask>) {
    let made = make().and_then(|mut meter| warm_up(&mut *meter).map(|()| meter));
    let mut meter = match made {
        Ok(meter) => meter,
        Err(error) => {
            // Whoever waits at the barrier hears of it.
            let _ = tell.send(Err(error));
            loaded.wait();
            return;
        }
    };
    loaded.wait();
    while let Ok(ask) = asked.recv() {
        match ask {
            Ask::Serve(run, reply) => drop(reply.send(serve(&mut *meter, &run))),
            Ask::Pace(reply) => drop(reply.send(meter.pace_ns())),
        }
    }
}

fn warm_up(meter: &mut dyn Meter) -> Result<(), BackendError> {
    if let Pacing::Process { .. } = meter.pacing() {
        return Err(BackendError::new(
            FailureClass::Model,
            "this backend runs every measurement as a process of its own, which serves no requests",
        )
        .with_hint("load is measured of engines that are loaded here: native ones, and ONNX Runtime's"));
    }
    let began = Instant::now();
    while began.elapsed() < WARM_UP {
        execute(meter)?;
    }
    Ok(())
}

fn execute(meter: &mut dyn Meter) -> Result<(), BackendError> {
    meter.window(Window { iterations: 1, duration_ms: 0.0 }).map(drop)
}

fn serve(meter: &mut dyn Meter, run: &Run) -> Result<Vec<Served>, BackendError> {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mut served = Vec::new();
    while let Some(at) = run.next() {
        run.wait_until(at);
        let began = run.began.elapsed();
        execute(meter)?;
        served.push(Served { scheduled_ms: ms(at), began_ms: ms(began), ended_ms: ms(run.began.elapsed()) });
        if served.len() >= SERVED_MAX {
            break;
        }
    }
    Ok(served)
}

impl Rig<'_> {
    pub fn instances(&self) -> usize {
        self.threads.len()
    }

    /// Serves `arrivals`; what was served, and how many requests were given up.
    ///
    /// # Errors
    ///
    /// When an instance fails, or the work was cancelled.
    pub fn serve(&self, arrivals: Arrivals) -> Result<(Vec<Served>, u64), BackendError> {
        let gives_up = arrivals.length() * PATIENCE;
        let arrivals = Mutex::new(arrivals);
        let run = Arc::new(Run { arrivals, began: Instant::now(), gives_up, cancel: self.cancel.clone() });
        let (reply, replies) = mpsc::channel();
        for thread in &self.threads {
            thread.send(Ask::Serve(Arc::clone(&run), reply.clone())).map_err(|_| gone())?;
        }
        drop(reply);
        let mut all = Vec::new();
        for _ in &self.threads {
            all.extend(replies.recv().map_err(|_| gone())??);
        }
        if self.cancel.is_cancelled() {
            return Err(BackendError::cancelled("the measurement was cancelled"));
        }
        let left = run.arrivals.lock().unwrap_or_else(PoisonError::into_inner).left();
        Ok((all, left))
    }

    /// What a fixed piece of work takes now on the slowest core of any instance.
    pub fn pace_ns(&self) -> Option<f64> {
        let pace = |thread: &Sender<Ask>| {
            let (reply, replies) = mpsc::channel();
            thread.send(Ask::Pace(reply)).ok()?;
            replies.recv().ok()?
        };
        self.threads.iter().filter_map(pace).reduce(f64::max)
    }
}

fn gone() -> BackendError {
    BackendError::infrastructure("an instance of the engine ended by itself")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use planforge_backend::WindowSamples;
    use planforge_report::{LayerTime, load::LoadPoint};
    use planforge_types::{NamedTensors, Port};

    /// An engine that takes as long as it is told, without using a processor.
    #[derive(Debug)]
    pub struct Timed(pub Duration);

    impl Meter for Timed {
        fn inputs(&self) -> Vec<Port> {
            Vec::new()
        }
        fn outputs(&self) -> Vec<Port> {
            Vec::new()
        }
        fn bind(&mut self, _inputs: &NamedTensors) -> Result<(), BackendError> {
            Ok(())
        }
        fn run(&mut self) -> Result<NamedTensors, BackendError> {
            Ok(NamedTensors::new())
        }
        fn window(&mut self, _window: Window) -> Result<WindowSamples, BackendError> {
            let began = Instant::now();
            while let Some(left) = self.0.checked_sub(began.elapsed()) {
                thread::park_timeout(left);
            }
            Ok(WindowSamples::default())
        }
        fn layers(&mut self, _iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
            Ok(Vec::new())
        }
        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    pub fn timed() -> Result<Box<dyn Meter>, BackendError> {
        Ok(Box::new(Timed(Duration::from_millis(2))))
    }

    #[test]
    fn every_request_is_served_once_by_whoever_is_free() {
        let length = Duration::from_millis(500);
        let cancel = Cancel::default();
        let (served, left) = with_rig(4, &timed, &cancel, |rig| {
            assert_eq!(rig.instances(), 4);
            rig.serve(Arrivals::poisson(60.0, length, 5))
        })
        .unwrap();
        let mut expected = Arrivals::poisson(60.0, length, 5);
        let mut scheduled: Vec<f64> = served.iter().map(|one| one.scheduled_ms).collect();
        scheduled.sort_unstable_by(f64::total_cmp);
        let all = std::iter::from_fn(|| expected.next(Duration::ZERO)).map(|at| at.as_secs_f64() * 1e3);
        assert_eq!((scheduled, left), (all.collect::<Vec<_>>(), 0));
        assert!(served.iter().all(|one| one.began_ms >= one.scheduled_ms && one.ended_ms > one.began_ms));
    }

    #[test]
    fn more_than_can_be_served_is_given_up_and_told() {
        let cancel = Cancel::default();
        let length = Duration::from_millis(100);
        let rate = 5000.0;
        let (served, left) = with_rig(1, &timed, &cancel, |rig| rig.serve(Arrivals::poisson(rate, length, 5))).unwrap();
        assert!(left > 0 && !served.is_empty());
        let point = LoadPoint::of(&served, left, Some(rate), 100.0, 1).unwrap();
        assert!(point.fell_behind && point.latency_ms.max > point.service_ms.max, "{point:?}");
    }

    #[test]
    fn an_instance_that_cannot_be_loaded_is_told_and_a_cancelled_run_ends() {
        let cancel = Cancel::default();
        let broken = || Err(BackendError::model("no such plan"));
        let failed = with_rig(2, &broken, &cancel, |_| Ok(())).unwrap_err();
        assert_eq!(failed.message, "no such plan");
        cancel.cancel();
        let ended = with_rig(1, &timed, &cancel, |rig| rig.serve(Arrivals::closed(Duration::from_secs(3600))));
        assert!(ended.unwrap_err().message.contains("cancelled"));
    }
}
