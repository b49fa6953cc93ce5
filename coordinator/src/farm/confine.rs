//! Projects confine: whoever belongs to one reaches models, plans, reports and logs only through something of it.
//!
//! A digest is a name, and names get around: in cards, logs, a colleague's terminal. So naming one opens nothing. Bytes are
//! a project's because it uploaded them, because its jobs name them, or because they are of an engine that it may see; an
//! agent reads what it was leased, no more. What a project has not shown that it has, it is told nothing about: not
//! whether it is stored, and not what others made of it.
//!
//! With `share_projects` the digest is enough, as among people who trust each other.

use super::{Farm, convert};
use crate::{
    auth::{Actor, Proof, Role},
    core::{BlobHolder, Change, Engine, Hold, Tenure},
    store::JobFilter,
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;

impl Farm {
    /// The project that a caller is kept to; `None`: it may reach everything.
    pub(super) fn confined_to<'a>(&self, actor: &'a Actor) -> Option<&'a str> {
        actor.project.as_deref().filter(|_| !self.config().share_projects)
    }

    /// Whether a caller may read a blob, if it is stored.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn may_read_blob(&self, actor: &Actor, proof: Proof, digest: Digest) -> Result<bool, ApiError> {
        if actor.role == Role::Agent {
            let agent = self.agent_behind(proof);
            let Some(agent) = agent else { return Ok(false) };
            return self.ask(move |state, _| state.lends(&agent, digest)).await;
        }
        match self.confined_to(actor) {
            Some(project) => self.timed("blob", self.store().may_see_blob(project, digest)).await,
            None => Ok(true),
        }
    }

    /// The agent that the token behind `proof` belongs to.
    fn agent_behind(&self, proof: Proof) -> Option<String> {
        let Proof::Token(hash) = proof else { return None };
        self.tokens().with(|known| known.by_hash.get(&hash).and_then(|token| token.agent.clone()))
    }

    /// Remembers that a caller's project has these bytes: it sent them. Durable when this returns.
    ///
    /// # Errors
    /// When the store takes no writes.
    pub async fn hold_blob(&self, actor: &Actor, digest: Digest, size_bytes: u64) -> Result<(), ApiError> {
        let mut changes = self.audit_of_upload(actor, digest, size_bytes);
        let project = actor.project.as_ref().filter(|_| actor.role != Role::Agent);
        let holder = project.map(|project| BlobHolder::Project(project.clone()));
        let hold = Hold { size_bytes, tenure: Tenure::Sent, since_ms: self.clock().wall_ms() };
        changes.extend(holder.map(|holder| Change::Blob { digest, holder, hold }));
        if !changes.is_empty() {
            self.commit(changes).await?;
        }
        project.into_iter().for_each(|project| self.forget_stored_bytes(project));
        Ok(())
    }

    /// An engine as the caller's project knows it. One that another project had built answers it too, because it has shown
    /// that it has the model; what that project called it, and by which job it was built, is nobody else's.
    pub(super) async fn as_its_own(
        &self,
        actor: &Actor,
        engine: &Engine,
        view: v1::Engine,
    ) -> Result<v1::Engine, ApiError> {
        let Some(project) = self.confined_to(actor).filter(|project| engine.project != *project) else {
            return Ok(view);
        };
        let filter = JobFilter {
            project: Some(project.to_owned()),
            model: Some(engine.model.digest.to_string()),
            limit: 1,
            ..JobFilter::default()
        };
        let own = self.timed("jobs", self.store().jobs(filter)).await?.pop();
        let model = own.as_ref().map_or_else(
            || v1::Model { digest: engine.model.digest.to_string(), ..v1::Model::default() },
            |job| convert::model_out(&job.model),
        );
        let preparation = own.as_ref().and_then(|job| convert::preparation_out(job, Some(project)));
        let job = own.filter(|job| job.key == Some(engine.key)).map(|job| job.id.into()).unwrap_or_default();
        Ok(v1::Engine { model: Some(model), job, project: project.to_owned(), preparation, ..view })
    }

    /// Whether a caller has shown that it has these bytes, or is not asked to.
    pub(super) async fn has_shown(&self, actor: &Actor, digest: Digest) -> Result<bool, ApiError> {
        match self.confined_to(actor) {
            Some(project) => self.timed("blob", self.store().may_see_blob(project, digest)).await,
            None => Ok(true),
        }
    }
}

/// Refuses agents: what they may know of jobs they are told with their leases.
pub(super) fn may_look(actor: &Actor) -> Result<(), ApiError> {
    if actor.role != Role::Agent {
        return Ok(());
    }
    let message = format!("the token '{}' has role agent, which reads what it is leased and nothing else", actor.name);
    Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint("use a token with role read, submit or admin"))
}
