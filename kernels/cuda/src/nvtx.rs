//! Named ranges that profilers show beside what the device does.
//!
//! NVTX is no library but an agreement. A profiler names a library of its own in `NVTX_INJECTION64_PATH`; the program
//! loads it and calls its `InitializeInjectionNvtx2` with a function that gives out tables of places for functions. The
//! profiler fills in its own, and the program calls those that are there. Without the variable nothing is loaded.

use libloading::Library;
use std::{
    env,
    ffi::{CString, OsStr, c_char, c_int, c_uint, c_void},
    marker::PhantomData,
    mem, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

/// Where a profiler names the library that takes the ranges.
pub const INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2\0";

/// Version of the agreement.
const VERSION: u32 = 3;
/// Numbers of the export tables that a profiler may ask for.
const TABLE_CALLBACKS: u32 = 1;
const TABLE_VERSION: u32 = 3;
/// Places of each module's table, by the module's number; the first place of a table is never used.
const PLACES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const PLACES_MAX: usize = 16;
/// The module of ranges and marks, and the numbers of the two functions that are called.
const CORE: usize = 1;
const RANGE_PUSH_A: usize = 9;
const RANGE_POP: usize = 11;

type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// A place for one function of the profiler.
type Place = AtomicPtr<c_void>;

/// The places of every module, and the tables that point to them; a null ends each table.
static FUNCTIONS: [[Place; PLACES_MAX]; PLACES.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; PLACES_MAX] }; PLACES.len()];
static TABLES: [[AtomicPtr<Place>; PLACES_MAX + 1]; PLACES.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; PLACES_MAX + 1] }; PLACES.len()];

#[repr(C)]
struct Callbacks {
    struct_bytes: usize,
    module_table: unsafe extern "C" fn(c_uint, *mut *const AtomicPtr<Place>, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    struct_bytes: usize,
    version: u32,
    reserved: u32,
    set_profilers_version: unsafe extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { struct_bytes: size_of::<Callbacks>(), module_table };
static VERSION_INFO: VersionInfo =
    VersionInfo { struct_bytes: size_of::<VersionInfo>(), version: VERSION, reserved: 0, set_profilers_version };

unsafe extern "C" fn export_table(number: u32) -> *const c_void {
    match number {
        TABLE_CALLBACKS => (&raw const CALLBACKS).cast(),
        TABLE_VERSION => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

unsafe extern "C" fn set_profilers_version(_: u32) {}

/// Tells a module's table and its size. 0: there is no such module.
///
/// # Safety
/// Each of the two places is null or takes one value.
unsafe extern "C" fn module_table(module: c_uint, table: *mut *const AtomicPtr<Place>, places: *mut c_uint) -> c_int {
    let module = module as usize;
    let Some(&count) = PLACES.get(module).filter(|count| **count > 0) else { return 0 };
    // SAFETY: by contract.
    unsafe {
        if !table.is_null() {
            *table = TABLES[module].as_ptr();
        }
        if !places.is_null() {
            *places = count as c_uint;
        }
    }
    1
}

/// What a profiler gave.
#[derive(Clone, Copy)]
struct Profiler {
    push: Push,
    pop: Pop,
}

static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();

fn profiler() -> Option<Profiler> {
    *PROFILER.get_or_init(|| {
        let path = env::var_os(INJECTION_VARIABLE).filter(|path| !path.is_empty())?;
        let attached = attach(&path);
        if attached.is_none() {
            tracing::warn!(path = %path.display(), "the profiler's library takes no ranges");
        }
        attached
    })
}

/// Loads the profiler's library and lets it fill in its functions. It stays loaded.
fn attach(path: &OsStr) -> Option<Profiler> {
    for (module, count) in PLACES.into_iter().enumerate() {
        for place in 1..count {
            TABLES[module][place].store((&raw const FUNCTIONS[module][place]).cast_mut(), Ordering::Release);
        }
    }
    // SAFETY: whoever set the variable asks for this library to run in here.
    let library = unsafe { Library::new(path) }.ok()?;
    // SAFETY: the agreement gives this name this type.
    let initialize = unsafe { *library.get::<Initialize>(INITIALIZE).ok()? };
    // SAFETY: as the agreement wants it; what is given out lives as long as the process.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    mem::forget(library);
    let function = |number: usize| {
        let function = FUNCTIONS[CORE][number].load(Ordering::Acquire);
        (!function.is_null()).then_some(function)
    };
    let (push, pop) = (function(RANGE_PUSH_A)?, function(RANGE_POP)?);
    // SAFETY: the agreement gives the functions at these numbers these types.
    Some(unsafe {
        Profiler { push: mem::transmute::<*mut c_void, Push>(push), pop: mem::transmute::<*mut c_void, Pop>(pop) }
    })
}

/// A range of this thread, which ends when it is dropped. Ranges nest.
#[derive(Debug)]
#[must_use = "the range ends at once when it is not kept"]
pub struct Range {
    began: bool,
    /// Ranges belong to their thread.
    _here: PhantomData<*const ()>,
}

/// Begins a range. Nothing is done, and `name` is not looked at, where no profiler asked for ranges.
pub fn range(name: &str) -> Range {
    let profiler = profiler();
    if let Some(profiler) = profiler {
        let name: Vec<u8> = name.bytes().filter(|byte| *byte != 0).collect();
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the profiler's own function; the text lives until it returns.
        unsafe { (profiler.push)(name.as_ptr()) };
    }
    Range { began: profiler.is_some(), _here: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.began
            && let Some(profiler) = profiler()
        {
            // SAFETY: the profiler's own function; the range was begun on this thread.
            unsafe { (profiler.pop)() };
        }
    }
}
