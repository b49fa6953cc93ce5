//! Fills a data folder as years leave it: `cargo run --release -p planforge-grown --example grown_farm -- FOLDER
//! [WAITING [FINISHED [HOSTS [PLAN_BYTES]]]]`, 100,000, 1,000,000 and 10 by default, without the files of models and plans
//! where no size is named. `planforge coordinator --data FOLDER` serves it then.

#![expect(clippy::print_stdout, reason = "an example says what it did")]

use planforge_grown::{Size, Trouble, grow, grow_hosts};
use std::{
    path::PathBuf,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().ok_or("name a folder")?);
    let mut number = |usual: usize| words.next().map_or(Ok(usual), |word| word.parse());
    let (waiting, finished, hosts) = (number(100_000)?, number(1_000_000)?, number(10)?);
    let size = Size { waiting, finished, plan_bytes: words.next().map(|word| word.parse()).transpose()? };
    std::fs::create_dir_all(&folder)?;
    let begin = Instant::now();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let grown = grow(&folder, size, now_ms, |grown| {
        if grown.jobs % 100_000 == 0 {
            println!("{} jobs after {:.0} s", grown.jobs, begin.elapsed().as_secs_f64());
        }
    });
    let grown = grown.await?;
    grow_hosts(&folder, hosts, now_ms).await?;
    println!("{:?} in {:.0} s", grown, begin.elapsed().as_secs_f64());
    Ok(())
}
