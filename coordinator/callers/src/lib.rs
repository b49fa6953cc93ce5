//! Who calls a coordinator, and how much of it one caller gets.
//!
//! | module | holds |
//! |---|---|
//! | `auth` | what a token allows, and who stands behind a call |
//! | `doors` | places at the port: who has one, and who has to go |
//! | `turns` | how many calls, submissions and open streams of one token there are at once |
//! | `rate` | so many at once, and so many more each second |

pub mod auth;
pub mod doors;
pub mod rate;
pub mod turns;
