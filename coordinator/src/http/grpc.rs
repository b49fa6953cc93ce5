//! The services of `planforge.v1` over the farm handle: who calls was found out before; here words are only passed on.

use super::{access, scrub};
use crate::{
    app::{App, Peer, Standing},
    auth::{Actor, Proof},
    farm::Reply,
    turns::StreamPlace,
};
use axum::{Router, response::Response};
use futures::{StreamExt, stream::BoxStream};
use planforge_proto::{
    ApiError, ErrorCode,
    v1::{
        self,
        farm_server::{Farm as FarmRpc, FarmServer},
        fleet_server::{Fleet as FleetRpc, FleetServer},
    },
};
use planforge_types::TraceContext;
use tonic::{Request, Response as Answer, Status, Streaming, service::Routes};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// Largest message taken in: a log chunk, an inventory of many devices, a submission of many specs.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

pub(super) fn routes(app: &App) -> Router {
    let service = Rpc { app: app.clone() };
    Routes::new(FarmServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(FleetServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(reflection())
        .into_axum_router()
        // tonic answers unknown methods itself; the outer router has its own fallback.
        .reset_fallback()
}

/// The contract, for tools that ask a server what it speaks; behind a token, as all of it is.
fn reflection() -> ServerReflectionServer<impl ServerReflection> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(planforge_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the committed descriptors are whole: a test writes them")
}

/// A refusal before any service was reached.
pub(crate) fn refused(error: ApiError) -> Response {
    Status::from(error).into_http()
}

#[derive(Clone)]
struct Rpc {
    app: App,
}

type Stream<T> = BoxStream<'static, Result<T, Status>>;

fn actor<T>(request: &Request<T>) -> Result<Actor, Status> {
    let missing = || ApiError::new(ErrorCode::Internal, "a service is not guarded").into();
    request.extensions().get::<Actor>().cloned().ok_or_else(missing)
}

fn proof<T>(request: &Request<T>) -> Result<Proof, Status> {
    standing(request).map(|standing| standing.proof)
}

fn standing<T>(request: &Request<T>) -> Result<Standing, Status> {
    let missing = || ApiError::new(ErrorCode::Internal, "a service is not guarded").into();
    request.extensions().get::<Standing>().cloned().ok_or_else(missing)
}

/// The place of a trace that a call came with, where it did.
fn caller<T>(request: &Request<T>) -> Option<TraceContext> {
    request.metadata().get("traceparent")?.to_str().ok()?.parse().ok()
}

impl Rpc {
    /// Ends with the farm or with the server, whichever is first; an agent's own stream, which the farm looks after.
    fn stream<T: Send + 'static>(&self, reply: Reply<T>) -> Stream<T> {
        reply.map(|item| item.map_err(Status::from)).take_until(self.app.closing.clone().cancelled_owned()).boxed()
    }

    /// Ends, with an error, when what its caller showed is worth nothing any more, too.
    fn stream_for<T: Send + 'static>(&self, (standing, place): (Standing, StreamPlace), reply: Reply<T>) -> Stream<T> {
        let guarded = standing.guard(&self.app, reply);
        guarded
            .map(move |item| {
                // It has its place until it ends.
                let _ = &place;
                item.map_err(Status::from)
            })
            .boxed()
    }
}

#[tonic::async_trait]
impl FarmRpc for Rpc {
    async fn get_server_info(
        &self,
        request: Request<v1::GetServerInfoRequest>,
    ) -> Result<Answer<v1::ServerInfo>, Status> {
        let info = self.app.farm.server_info(&actor(&request)?);
        Ok(Answer::new(v1::ServerInfo { url: self.app.options.page_url().to_owned(), ..info }))
    }

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Answer<v1::SubmitReply>, Status> {
        let (actor, proof) = (actor(&request)?, proof(&request)?);
        let caller = caller(&request);
        let reply = self.app.farm.submit_traced(&actor, request.into_inner(), caller).await?;
        self.app.turns.submitted(&actor, proof, reply.jobs.len());
        Ok(Answer::new(reply))
    }

    async fn dry_run(&self, request: Request<v1::SubmitRequest>) -> Result<Answer<v1::DryRunReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.dry_run(&actor, request.into_inner()).await?))
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Answer<v1::ListJobsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_jobs(&actor, request.into_inner()).await?))
    }

    async fn list_requests(
        &self,
        request: Request<v1::ListRequestsRequest>,
    ) -> Result<Answer<v1::ListRequestsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_requests(&actor, request.into_inner()).await?))
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Answer<v1::ListEventsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_events(&actor, request.into_inner()).await?))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Answer<v1::Job>, Status> {
        Ok(Answer::new(self.app.farm.get_job(&actor(&request)?, &request.get_ref().id).await?))
    }

    type WatchJobsStream = Stream<v1::JobEvent>;

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Answer<Self::WatchJobsStream>, Status> {
        let (actor, standing) = (actor(&request)?, standing(&request)?);
        let place = self.app.turns.stream(&actor, standing.proof, request.get_ref().ids.is_empty())?;
        let events = self.app.farm.watch(&actor, request.into_inner()).await?;
        Ok(Answer::new(self.stream_for((standing, place), events)))
    }

    type ReadLogStream = Stream<v1::LogChunk>;

    async fn read_log(&self, request: Request<v1::ReadLogRequest>) -> Result<Answer<Self::ReadLogStream>, Status> {
        let (actor, standing) = (actor(&request)?, standing(&request)?);
        let place = self.app.turns.stream(&actor, standing.proof, false)?;
        let chunks = self.app.farm.read_log(&actor, request.into_inner()).await?;
        Ok(Answer::new(self.stream_for((standing, place), chunks)))
    }

    async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Answer<v1::CancelJobsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.cancel_jobs(&actor, request.into_inner()).await?))
    }

    async fn set_priority(
        &self,
        request: Request<v1::SetPriorityRequest>,
    ) -> Result<Answer<v1::SetPriorityReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.set_priority(&actor, request.into_inner()).await?))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Result<Answer<v1::ListDevicesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_devices(&actor, request.into_inner()).await?))
    }

    async fn list_engines(
        &self,
        request: Request<v1::ListEnginesRequest>,
    ) -> Result<Answer<v1::ListEnginesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_engines(&actor, request.into_inner()).await?))
    }

    async fn find_engine(&self, request: Request<v1::FindEngineRequest>) -> Result<Answer<v1::Engine>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.find_engine(&actor, request.into_inner()).await?))
    }

    async fn get_history(
        &self,
        request: Request<v1::GetHistoryRequest>,
    ) -> Result<Answer<v1::GetHistoryReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.get_history(&actor, request.into_inner()).await?))
    }

    async fn list_reports(
        &self,
        request: Request<v1::ListReportsRequest>,
    ) -> Result<Answer<v1::ListReportsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_reports(&actor, request.into_inner()).await?))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Answer<v1::CreateTokenReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.create_token(&actor, request.into_inner()).await?))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Answer<v1::ListTokensReply>, Status> {
        Ok(Answer::new(self.app.farm.list_tokens(&actor(&request)?).await?))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Answer<v1::RevokeTokenReply>, Status> {
        Ok(Answer::new(self.app.farm.revoke_token(&actor(&request)?, &request.get_ref().id).await?))
    }

    async fn rebind_token(
        &self,
        request: Request<v1::RebindTokenRequest>,
    ) -> Result<Answer<v1::RebindTokenReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.rebind_token(&actor, request.into_inner()).await?))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Answer<v1::ListAgentsReply>, Status> {
        Ok(Answer::new(self.app.farm.list_agents(&actor(&request)?).await?))
    }

    async fn drain_agent(
        &self,
        request: Request<v1::DrainAgentRequest>,
    ) -> Result<Answer<v1::DrainAgentReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.drain_agent(&actor, request.into_inner()).await?))
    }

    async fn resume_agent(
        &self,
        request: Request<v1::ResumeAgentRequest>,
    ) -> Result<Answer<v1::ResumeAgentReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.resume_agent(&actor, request.into_inner()).await?))
    }

    async fn forget_agent(
        &self,
        request: Request<v1::ForgetAgentRequest>,
    ) -> Result<Answer<v1::ForgetAgentReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.forget_agent(&actor, request.into_inner()).await?))
    }

    async fn create_login_link(
        &self,
        request: Request<v1::CreateLoginLinkRequest>,
    ) -> Result<Answer<v1::CreateLoginLinkReply>, Status> {
        let (actor, proof) = (actor(&request)?, proof(&request)?);
        let link = self.app.farm.make_login_link(&actor, proof)?;
        let url = self.app.options.page_url().to_owned();
        Ok(Answer::new(v1::CreateLoginLinkReply { path: link.path, url, expires_in_s: link.life.as_secs() }))
    }

    async fn create_share(
        &self,
        request: Request<v1::CreateShareRequest>,
    ) -> Result<Answer<v1::CreateShareReply>, Status> {
        let actor = actor(&request)?;
        let reply = self.app.farm.create_share(&actor, request.into_inner()).await?;
        Ok(Answer::new(v1::CreateShareReply { url: self.app.options.page_url().to_owned(), ..reply }))
    }

    async fn list_shares(
        &self,
        request: Request<v1::ListSharesRequest>,
    ) -> Result<Answer<v1::ListSharesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_shares(&actor, request.into_inner()).await?))
    }

    async fn revoke_share(
        &self,
        request: Request<v1::RevokeShareRequest>,
    ) -> Result<Answer<v1::RevokeShareReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.revoke_share(&actor, request.into_inner()).await?))
    }

    async fn list_caches(
        &self,
        request: Request<v1::ListCachesRequest>,
    ) -> Result<Answer<v1::ListCachesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_caches(&actor, request.into_inner()).await?))
    }

    async fn drop_cache(&self, request: Request<v1::DropCacheRequest>) -> Result<Answer<v1::DropCacheReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.drop_cache(&actor, request.into_inner()).await?))
    }

    async fn list_plugins(
        &self,
        request: Request<v1::ListPluginsRequest>,
    ) -> Result<Answer<v1::ListPluginsReply>, Status> {
        Ok(Answer::new(self.app.farm.list_plugins(&actor(&request)?).await?))
    }

    async fn list_pauses(
        &self,
        request: Request<v1::ListPausesRequest>,
    ) -> Result<Answer<v1::ListPausesReply>, Status> {
        Ok(Answer::new(self.app.farm.list_pauses(&actor(&request)?).await?))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Answer<v1::PauseReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.pause(&actor, request.into_inner()).await?))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Answer<v1::ResumeReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.resume(&actor, request.into_inner()).await?))
    }

    async fn allow_plugin(
        &self,
        request: Request<v1::AllowPluginRequest>,
    ) -> Result<Answer<v1::AllowPluginReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.allow_plugin(&actor, request.into_inner()).await?))
    }

    async fn forbid_plugin(
        &self,
        request: Request<v1::ForbidPluginRequest>,
    ) -> Result<Answer<v1::ForbidPluginReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.forbid_plugin(&actor, request.into_inner()).await?))
    }

    async fn list_projects(
        &self,
        request: Request<v1::ListProjectsRequest>,
    ) -> Result<Answer<v1::ListProjectsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_projects(&actor, request.into_inner()).await?))
    }

    async fn set_project(
        &self,
        request: Request<v1::SetProjectRequest>,
    ) -> Result<Answer<v1::SetProjectReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.set_project(&actor, request.into_inner()).await?))
    }

    async fn list_audit(&self, request: Request<v1::ListAuditRequest>) -> Result<Answer<v1::ListAuditReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_audit(&actor, request.into_inner()).await?))
    }

    async fn pin_engines(
        &self,
        request: Request<v1::PinEnginesRequest>,
    ) -> Result<Answer<v1::PinEnginesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.pin_engines(&actor, request.into_inner()).await?))
    }

    async fn list_pins(&self, request: Request<v1::ListPinsRequest>) -> Result<Answer<v1::ListPinsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_pins(&actor, request.into_inner()).await?))
    }

    async fn unpin_engines(
        &self,
        request: Request<v1::UnpinEnginesRequest>,
    ) -> Result<Answer<v1::UnpinEnginesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.unpin_engines(&actor, request.into_inner()).await?))
    }

    async fn declare_engines(
        &self,
        request: Request<v1::DeclareEnginesRequest>,
    ) -> Result<Answer<v1::DeclareEnginesReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.declare_engines(&actor, request.into_inner()).await?))
    }

    async fn list_declarations(
        &self,
        request: Request<v1::ListDeclarationsRequest>,
    ) -> Result<Answer<v1::ListDeclarationsReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.list_declarations(&actor, request.into_inner()).await?))
    }

    async fn refresh(&self, request: Request<v1::RefreshRequest>) -> Result<Answer<v1::RefreshReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.refresh(&actor, request.into_inner()).await?))
    }

    async fn collect_garbage(
        &self,
        request: Request<v1::CollectGarbageRequest>,
    ) -> Result<Answer<v1::CollectGarbageReply>, Status> {
        let actor = actor(&request)?;
        Ok(Answer::new(self.app.farm.collect_garbage(&actor, request.into_inner()).await?))
    }

    type ScrubStream = Stream<v1::ScrubProgress>;

    async fn scrub(&self, request: Request<v1::ScrubRequest>) -> Result<Answer<Self::ScrubStream>, Status> {
        let (actor, standing) = (actor(&request)?, standing(&request)?);
        let place = self.app.turns.stream(&actor, standing.proof, false)?;
        let told = scrub::told(&self.app, &actor, request.get_ref().bytes_per_s).await?;
        Ok(Answer::new(self.stream_for((standing, place), told)))
    }
}

#[tonic::async_trait]
impl FleetRpc for Rpc {
    type SessionStream = Stream<v1::CoordinatorMessage>;

    async fn session(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Answer<Self::SessionStream>, Status> {
        let (actor, proof) = (actor(&request)?, proof(&request)?);
        let certified = request.extensions().get::<Peer>().is_some_and(|peer| peer.certificate.is_some());
        // The kernel vouches for the owner's own agents.
        if self.app.options.require_agent_certificate && !certified && proof != Proof::Owner {
            return Err(ApiError::new(ErrorCode::Unauthenticated, "agents must show a client certificate here")
                .with_hint(access::CERTIFICATE_HINT)
                .into());
        }
        let inbound = request.into_inner().map(|item| item.map_err(ApiError::from)).boxed();
        let outbound = self.app.farm.session(&actor, proof, inbound).await?;
        Ok(Answer::new(self.stream(outbound)))
    }
}
