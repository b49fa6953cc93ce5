//! The tests of the CPU kernels that are worth a sanitizer, in the build of the fuzz targets.

#[path = "../../kernels/cpu/tests/edges.rs"]
mod edges;
#[path = "../../kernels/cpu/tests/hostile.rs"]
mod hostile;
