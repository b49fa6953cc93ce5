//! How urgent jobs are that wait already.

use super::{
    Farm,
    convert::invalid,
    pages::Page,
    requests::{NAMED_MAX, PRIORITY_MAX, may_submit},
};
use crate::{
    auth::Actor,
    core::{AuditKind, Input, Prioritize, Reply},
};
use planforge_proto::{ApiError, ErrorCode, v1};

impl Farm {
    /// Changes how urgent jobs are that have not ended: of what the caller's project asked for. Needs role submit.
    ///
    /// # Errors
    /// Without the role, for a priority out of bounds, or when the project has none of these jobs.
    pub async fn set_priority(
        &self,
        actor: &Actor,
        request: v1::SetPriorityRequest,
    ) -> Result<v1::SetPriorityReply, ApiError> {
        let object = format!("{}: {}", request.priority, request.ids.join(" "));
        let set = self.prioritized(actor, request);
        self.audited(actor, AuditKind::Use, "priority", &object, set).await
    }

    async fn prioritized(
        &self,
        actor: &Actor,
        request: v1::SetPriorityRequest,
    ) -> Result<v1::SetPriorityReply, ApiError> {
        may_submit(actor)?;
        if request.ids.is_empty() || request.ids.len() > NAMED_MAX {
            return Err(invalid(format!("name 1 to {NAMED_MAX} jobs, not {}", request.ids.len())));
        }
        let priority = request.priority;
        if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) {
            return Err(invalid(format!("a priority is -{PRIORITY_MAX} to {PRIORITY_MAX}, not {priority}")));
        }
        let mut jobs = Vec::with_capacity(request.ids.len());
        for id in &request.ids {
            jobs.push(self.find_job(actor, id).await?.id);
        }
        let asked = Prioritize { actor: actor.clone(), jobs, priority };
        let Reply::Prioritized(jobs) = self.input(Input::Prioritize(asked)).await? else {
            return Err(ApiError::new(ErrorCode::Internal, "the leader answered something else"));
        };
        let (mut views, mut remarks) = (Page::new(), Vec::new());
        for (job, remark) in jobs? {
            let mut view = [self.job_ref(job, actor.project.as_deref()).await?];
            self.fill_live(&mut view).await?;
            let [view] = view;
            views.push_or_shorten(view);
            remarks.push(remark);
        }
        Ok(v1::SetPriorityReply { jobs: views.into_items(), remarks })
    }
}
