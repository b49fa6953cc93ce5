//! `planforge compile-kernels`: workers start it, send it sources and get machine code.

use planforge_kernels_cuda::compilers;
use std::io;

/// Answers until standard input ends.
pub fn serve() -> io::Result<()> {
    compilers::serve(io::stdin(), io::stdout())
}
