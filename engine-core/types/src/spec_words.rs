//! What a build spec asks for, in the words of its flags: for lists in which rows would else look alike.

use crate::BuildSpec;

impl BuildSpec {
    /// `images:1..8..32x3x224x224`, a profile after the other; `None` where sizes are those of the model.
    pub fn shape_words(&self) -> Option<String> {
        let profiles = self.profiles.iter().map(ToString::to_string).collect::<Vec<_>>();
        (!profiles.is_empty()).then(|| profiles.join(" "))
    }

    /// What it asks for beyond precision, threads, shapes and the defaults.
    pub fn other_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.hardware_compatibility.iter().cloned().collect();
        words.extend(self.version_compatible.then(|| "version-compatible".to_owned()));
        words.extend(self.approximate_gelu.then(|| "approximate GELU".to_owned()));
        let level = self.optimization_level;
        words.extend((level != Default::default()).then(|| format!("level {}", level.0)));
        words.extend(self.workspace_mib.map(|mib| format!("workspace {mib} MiB")));
        words.extend(self.calibration.map(|digest| format!("calibration {}", digest.short())));
        words.extend(self.plugins.iter().map(|digest| format!("plugin {}", digest.short())));
        words.extend(self.options.iter().map(|(name, value)| format!("{name}={value}")));
        words
    }

    /// All of it in one line: `fp16, 2 threads, x:1..8..32x3, level 5`.
    pub fn words(&self) -> String {
        let threads = self.threads.map(|threads| match threads {
            1 => "1 thread".to_owned(),
            more => format!("{more} threads"),
        });
        let mut words = vec![self.precision.to_string()];
        words.extend(threads);
        words.extend(self.shape_words());
        words.extend(self.other_words());
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use crate::BuildSpec;

    #[test]
    fn a_spec_says_what_it_asks_for() {
        let words = |json: &str| BuildSpec::parse(json).unwrap().words();
        assert_eq!(words("{}"), "fp32");
        assert_eq!(words(r#"{"threads":1,"optimization_level":5}"#), "fp32, 1 thread, level 5");
        let ranged =
            r#"{"precision":"fp16","profiles":[{"x":[{"min":1,"opt":8,"max":32},{"min":3,"opt":3,"max":3}]}]}"#;
        assert_eq!(words(ranged), "fp16, x:1..8..32x3");
        assert_eq!(words(r#"{"options":{"force_tactic":"a"}}"#), "fp32, force_tactic=a");
    }
}
