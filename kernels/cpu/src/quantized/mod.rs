//! Products of 8-bit integers with exact sums, and what they become: `C = to((A - a) (B - b))`.
//!
//! | module | holds |
//! |---|---|
//! | `tile` | microkernels of unsigned rows by signed columns, per instruction set |
//! | `pack` | the right operand in the kernels' order, with the sums of its columns |
//! | `rows` | the left operand: rows of a matrix, windows of an image |
//! | `product` | the product in blocks, spread over threads |
//! | `finish` | from exact sums to integers or floats |
//! | `depthwise`, `channels` | depthwise convolution; its sums in registers, per instruction set |
//! | `window` | the largest of each window |
//! | `attention` | attention whose operands and weights are bytes |
//!
//! Kernels multiply unsigned rows by signed columns. Signed rows and unsigned columns are moved by 128, with their zero
//! points: `(a - z)` stays what it is. Zero points come in at the end, by the sums of columns (known when the weights are
//! packed) and of rows. Sums are of 32 bits and wrap, so they are exact as long as the true sum has 32 bits.
//!
//! Invariant: every instruction set gives the same sums, bit for bit; nothing saturates on the way.

mod attention;
mod channels;
mod depthwise;
mod finish;
mod pack;
mod product;
mod rows;
#[cfg(test)]
mod tests;
mod tile;
mod window;

pub use attention::{Attention, AttentionSizes, Bytes, Steps, attention};
pub use depthwise::{Depthwise, depthwise};
pub use finish::{Finish, Output};
pub use pack::{PackedSize, depthwise_weights, pack};
pub use product::{Blocking, Product, multiply};
pub use rows::{ImageRows, MatrixRows, Rows};
pub use tile::{Kernel, kernel_by_name, kernels};
pub use window::max_pool;

/// What makes a signed byte an unsigned one that is larger by 128, and back.
const FLIP: u8 = 0x80;

/// What is combined with each byte of a left operand.
fn flip(signed: bool) -> u8 {
    if signed { FLIP } else { 0 }
}
