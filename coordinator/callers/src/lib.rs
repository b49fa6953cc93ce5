//! Who calls a coordinator, and how much of it one caller gets.
//!
//! | module | holds |
//! |---|---|
//! | `doors` | places at the port: who has one, and who has to go |
//! | `turns` | how many calls, submissions and open streams of one token there are at once |
//! | `rate` | so many at once, and so many more each second |

pub mod doors;
pub mod rate;
pub mod turns;
