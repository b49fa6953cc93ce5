//! What a CPU's packages use, as they count it themselves (running average power limit, RAPL) and the kernel shows it:
//! Intel's and AMD's, where a guest is shown them at all. Since 2020 only the administrator may read the counters.

use std::{
    fs,
    path::{Path, PathBuf},
};

const FOLDER: &str = "/sys/class/powercap";

/// Most packages that are looked for.
const MOST: usize = 64;

/// The counters of all packages together.
#[derive(Debug)]
pub struct Packages {
    counters: Vec<Counter>,
    used_uj: u64,
}

/// A counter that begins again from 0 after `range_uj`.
#[derive(Debug)]
struct Counter {
    file: PathBuf,
    range_uj: u64,
    last_uj: u64,
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Default for Packages {
    fn default() -> Self {
        Self::of(Path::new(FOLDER))
    }
}

impl Packages {
    /// The packages below `folder`. What would count twice is left out: their parts (cores, memory), the platform's sum,
    /// and the same counters again through memory-mapped registers.
    fn of(folder: &Path) -> Self {
        let mut counters = Vec::new();
        for zone in fs::read_dir(folder).into_iter().flatten().flatten().take(MOST) {
            let again = zone.file_name().to_string_lossy().contains("mmio");
            let name = fs::read_to_string(zone.path().join("name")).unwrap_or_default();
            let file = zone.path().join("energy_uj");
            if name.trim().starts_with("package-")
                && !again
                && let Some(last_uj) = number(&file)
                && let Some(range_uj) = number(&zone.path().join("max_energy_range_uj"))
            {
                counters.push(Counter { file, range_uj, last_uj });
            }
        }
        Self { counters, used_uj: 0 }
    }

    /// Used since this was made; `None` where nothing is counted, or one of the counters can no longer be read.
    pub fn used_uj(&mut self) -> Option<u64> {
        if self.counters.is_empty() {
            return None;
        }
        for counter in &mut self.counters {
            let now_uj = number(&counter.file)?;
            let round_uj = if now_uj < counter.last_uj { counter.range_uj } else { 0 };
            self.used_uj += (now_uj + round_uj).saturating_sub(counter.last_uj);
            counter.last_uj = now_uj;
        }
        Some(self.used_uj)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy_uj: u64) {
        let zone = folder.join(zone);
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("{name}\n")).unwrap();
        fs::write(zone.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "1000000\n").unwrap();
    }

    #[test]
    fn packages_are_counted_once_and_round_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        zone(at, "intel-rapl:0", "package-0", 900_000);
        zone(at, "intel-rapl:0:0", "core", 100);
        zone(at, "intel-rapl:1", "package-1", 10);
        zone(at, "intel-rapl:2", "psys", 5);
        zone(at, "intel-rapl-mmio:0", "package-0", 900_000);
        let mut packages = Packages::of(at);
        assert_eq!(packages.used_uj(), Some(0));
        zone(at, "intel-rapl:0", "package-0", 100_000);
        zone(at, "intel-rapl:1", "package-1", 60);
        zone(at, "intel-rapl:2", "psys", 999_999);
        zone(at, "intel-rapl-mmio:0", "package-0", 999_999);
        assert_eq!(packages.used_uj(), Some(200_050));
        fs::remove_file(at.join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(packages.used_uj(), None);
    }

    #[test]
    fn a_host_that_counts_nothing_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Packages::of(folder.path()).used_uj(), None);
        assert_eq!(Packages::of(Path::new("/nonexistent")).used_uj(), None);
    }
}
