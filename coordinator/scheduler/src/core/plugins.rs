//! Plugins: native code that runs in workers, so only what the farm's operator allowed is accepted.

use super::{
    effects::Effects,
    model::{Change, Failure, JobId, JobState, PluginRecord},
    state::{Now, State},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{BuildSpec, Digest, FailureClass};

impl State {
    fn is_allowed(&self, plugin: &Digest) -> bool {
        self.config.plugins.contains(plugin) || self.plugins.contains_key(plugin)
    }

    /// Refuses a spec that names a plugin nobody allowed.
    pub(super) fn plugins_allowed(&self, spec: &BuildSpec) -> Result<(), ApiError> {
        let Some(plugin) = spec.plugins.iter().find(|plugin| !self.is_allowed(plugin)) else { return Ok(()) };
        let message = format!("the plugin sha256:{plugin} is native code that nobody allowed on this farm");
        Err(ApiError::new(ErrorCode::Refused, message).with_hint(format!(
            "its operator allows it with 'planforge plugins allow {plugin}', or for good with --allow-plugin at the \
             coordinator's start"
        )))
    }

    pub(super) fn allow_plugin(&mut self, plugin: PluginRecord, effects: &mut Effects) {
        effects.changes.push(Change::Plugin(plugin.clone()));
        self.plugins.insert(plugin.digest, plugin);
    }

    /// Takes an allowance back. Jobs that wait with the plugin fail; what runs already goes on.
    pub(super) fn forbid_plugin(&mut self, plugin: Digest, now: Now, effects: &mut Effects) {
        if self.plugins.remove(&plugin).is_some() {
            effects.changes.push(Change::ForgetPlugin(plugin));
        }
        if self.is_allowed(&plugin) {
            return;
        }
        let waits = |state| matches!(state, JobState::Queued | JobState::Blocked | JobState::Unplaceable);
        let waiting: Vec<JobId> = self
            .jobs
            .values()
            .filter(|job| waits(job.state) && !self.holds.contains_key(&job.id) && job.spec.plugins.contains(&plugin))
            .map(|job| job.id.clone())
            .collect();
        for id in waiting {
            let message = format!("the plugin sha256:{plugin} is not allowed on this farm any more");
            let failure = Failure::new(FailureClass::Resource, message, "ask the farm's operator");
            self.end(&id, JobState::Failed, Some(failure), "coordinator", "", now, effects);
        }
    }

    /// Plugins that an administrator allowed.
    pub fn plugins(&self) -> impl Iterator<Item = &PluginRecord> {
        self.plugins.values()
    }
}
