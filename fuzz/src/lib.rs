//! What every fuzz target does before its first input.

/// The reader of machine code, without the crate around it: the bindings of NVIDIA's libraries took longer to build than
/// all that is fuzzed.
#[path = "../../kernels/cuda/src/cubin.rs"]
pub mod cubin;

use std::{mem::zeroed, ptr::null_mut};

/// Bytes of the stack that signals are handled on: libFuzzer prints what happened and writes the input there.
const SIGNAL_STACK_BYTES: usize = 256 << 10;

/// Lets libFuzzer report an overflown stack as it reports any crash, with the input that caused it.
///
/// Its handler of segmentation faults runs on the very stack that has ended, unless the thread has another one for
/// signals: without this, such a run ends without a word and the input is lost. Holds for the thread that inputs are
/// tried in and for those of the thread pool that it shares work with.
pub fn report_stack_overflows() {
    take_signal_stack();
    // SAFETY: an action of all zeros is the default one, and only its flag is set.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0, "the fault's action can be set");
    }
    let pool = rayon::ThreadPoolBuilder::new().start_handler(|_| take_signal_stack()).build_global();
    pool.expect("nothing has used the thread pool yet");
}

/// Gives the calling thread a stack of its own for signals.
fn take_signal_stack() {
    let stack = Box::leak(vec![0u8; SIGNAL_STACK_BYTES].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the stack lives as long as the process and is this thread's alone.
    assert_eq!(unsafe { libc::sigaltstack(&stack, null_mut()) }, 0, "the thread can have a stack for signals");
}
