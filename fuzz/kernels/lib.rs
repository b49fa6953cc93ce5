//! Nothing: the tests are the kernels' own.
