//! The contract's services over simulated TCP.

use futures::{StreamExt as _, stream::BoxStream};
use hyper_util::rt::TokioIo;
use planforge_coordinator::{
    auth::{Actor, Proof},
    farm::Farm,
};
use planforge_proto::v1::{
    self,
    farm_client::FarmClient,
    farm_server::{Farm as FarmRpc, FarmServer},
    fleet_server::{Fleet, FleetServer},
};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server, Uri, server::Connected},
};
use turmoil::net::{TcpListener, TcpStream};

const CALL_LIMIT: Duration = Duration::from_millis(800);
const PAUSE: Duration = Duration::from_millis(100);

type Stream<T> = BoxStream<'static, Result<T, Status>>;
type Answer<T> = Result<Response<T>, Status>;

struct Rpc(Farm);

#[tonic::async_trait]
impl Fleet for Rpc {
    type SessionStream = Stream<v1::CoordinatorMessage>;

    async fn session(&self, request: Request<Streaming<v1::AgentMessage>>) -> Answer<Self::SessionStream> {
        let inbound = request.into_inner().map(|message| message.map_err(Into::into)).boxed();
        let outbound = self.0.session(&Actor::local(), Proof::Owner, inbound).await?;
        Ok(Response::new(outbound.map(|message| message.map_err(Into::into)).boxed()))
    }
}

macro_rules! unused {
    ($($name:ident($request:ty) -> $reply:ty;)*) => { $(
        fn $name<'life0, 'async_trait>(
            &'life0 self,
            _request: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$reply>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented("not part of the simulation")) })
        }
    )* };
}

#[tonic::async_trait]
impl FarmRpc for Rpc {
    type WatchJobsStream = Stream<v1::JobEvent>;
    type ReadLogStream = Stream<v1::LogChunk>;
    type ScrubStream = Stream<v1::ScrubProgress>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Answer<v1::SubmitReply> {
        Ok(Response::new(self.0.submit(&Actor::local(), request.into_inner()).await?))
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsReply> {
        Ok(Response::new(self.0.list_jobs(&Actor::local(), request.into_inner()).await?))
    }

    async fn cancel_jobs(&self, request: Request<v1::CancelJobsRequest>) -> Answer<v1::CancelJobsReply> {
        Ok(Response::new(self.0.cancel_jobs(&Actor::local(), request.into_inner()).await?))
    }

    unused! {
        get_server_info(v1::GetServerInfoRequest) -> v1::ServerInfo;
        get_job(v1::GetJobRequest) -> v1::Job;
        list_requests(v1::ListRequestsRequest) -> v1::ListRequestsReply;
        list_events(v1::ListEventsRequest) -> v1::ListEventsReply;
        dry_run(v1::SubmitRequest) -> v1::DryRunReply;
        list_projects(v1::ListProjectsRequest) -> v1::ListProjectsReply;
        set_project(v1::SetProjectRequest) -> v1::SetProjectReply;
        list_audit(v1::ListAuditRequest) -> v1::ListAuditReply;
        collect_garbage(v1::CollectGarbageRequest) -> v1::CollectGarbageReply;
        watch_jobs(v1::WatchJobsRequest) -> Self::WatchJobsStream;
        read_log(v1::ReadLogRequest) -> Self::ReadLogStream;
        set_priority(v1::SetPriorityRequest) -> v1::SetPriorityReply;
        create_share(v1::CreateShareRequest) -> v1::CreateShareReply;
        list_shares(v1::ListSharesRequest) -> v1::ListSharesReply;
        revoke_share(v1::RevokeShareRequest) -> v1::RevokeShareReply;
        list_devices(v1::ListDevicesRequest) -> v1::ListDevicesReply;
        list_engines(v1::ListEnginesRequest) -> v1::ListEnginesReply;
        find_engine(v1::FindEngineRequest) -> v1::Engine;
        get_history(v1::GetHistoryRequest) -> v1::GetHistoryReply;
        list_reports(v1::ListReportsRequest) -> v1::ListReportsReply;
        create_token(v1::CreateTokenRequest) -> v1::CreateTokenReply;
        list_tokens(v1::ListTokensRequest) -> v1::ListTokensReply;
        revoke_token(v1::RevokeTokenRequest) -> v1::RevokeTokenReply;
        create_login_link(v1::CreateLoginLinkRequest) -> v1::CreateLoginLinkReply;
        list_caches(v1::ListCachesRequest) -> v1::ListCachesReply;
        rebind_token(v1::RebindTokenRequest) -> v1::RebindTokenReply;
        list_agents(v1::ListAgentsRequest) -> v1::ListAgentsReply;
        drain_agent(v1::DrainAgentRequest) -> v1::DrainAgentReply;
        resume_agent(v1::ResumeAgentRequest) -> v1::ResumeAgentReply;
        forget_agent(v1::ForgetAgentRequest) -> v1::ForgetAgentReply;
        drop_cache(v1::DropCacheRequest) -> v1::DropCacheReply;
        list_pauses(v1::ListPausesRequest) -> v1::ListPausesReply;
        pause(v1::PauseRequest) -> v1::PauseReply;
        resume(v1::ResumeRequest) -> v1::ResumeReply;
        list_plugins(v1::ListPluginsRequest) -> v1::ListPluginsReply;
        allow_plugin(v1::AllowPluginRequest) -> v1::AllowPluginReply;
        forbid_plugin(v1::ForbidPluginRequest) -> v1::ForbidPluginReply;
        pin_engines(v1::PinEnginesRequest) -> v1::PinEnginesReply;
        list_pins(v1::ListPinsRequest) -> v1::ListPinsReply;
        unpin_engines(v1::UnpinEnginesRequest) -> v1::UnpinEnginesReply;
        declare_engines(v1::DeclareEnginesRequest) -> v1::DeclareEnginesReply;
        list_declarations(v1::ListDeclarationsRequest) -> v1::ListDeclarationsReply;
        refresh(v1::RefreshRequest) -> v1::RefreshReply;
        scrub(v1::ScrubRequest) -> Self::ScrubStream;
    }
}

struct Io(TcpStream);

impl Connected for Io {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

pub async fn serve(farm: Farm, address: (std::net::Ipv4Addr, u16)) -> turmoil::Result {
    let listener = TcpListener::bind(address).await?;
    let incoming = futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| Io(stream));
        Some((accepted, listener))
    });
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_millis(500)))
        .http2_keepalive_timeout(Some(Duration::from_millis(500)))
        .add_service(FarmServer::new(Rpc(farm.clone())))
        .add_service(FleetServer::new(Rpc(farm)))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// A connection to one of the coordinators; who is asked changes from one to the next, since one of them leads.
pub async fn connect(tries: &mut usize, coordinators: usize) -> Option<Channel> {
    let name = super::coordinator_name(*tries % coordinators);
    *tries += 1;
    let endpoint = Endpoint::from_static("http://farm:7000")
        .http2_keep_alive_interval(Duration::from_millis(400))
        .keep_alive_timeout(Duration::from_millis(400))
        .keep_alive_while_idle(true);
    let connector = tower::service_fn(move |_: Uri| {
        let name = name.clone();
        async move { TcpStream::connect((name, super::PORT)).await.map(|stream| TokioIo::new(Io(stream))) }
    });
    let connecting = tokio::time::timeout(CALL_LIMIT, endpoint.connect_with_connector(connector));
    connecting.await.ok()?.ok()
}

/// A client that asks until it is answered.
pub struct Caller {
    channel: Option<FarmClient<Channel>>,
    tries: usize,
    coordinators: usize,
}

macro_rules! ask {
    ($caller:ident, $method:ident, $request:expr) => {
        loop {
            if $caller.channel.is_none() {
                $caller.channel = connect(&mut $caller.tries, $caller.coordinators).await.map(FarmClient::new);
            }
            if let Some(farm) = &mut $caller.channel {
                match tokio::time::timeout(CALL_LIMIT, farm.$method($request)).await {
                    Ok(Ok(reply)) => break Ok(reply.into_inner()),
                    Ok(Err(status)) if is_final(&status) => break Err(status),
                    _ => $caller.channel = None,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
}

/// Whether asking again brings the same answer.
fn is_final(status: &Status) -> bool {
    matches!(status.code(), tonic::Code::NotFound | tonic::Code::FailedPrecondition)
}

impl Caller {
    pub fn new(coordinators: usize) -> Self {
        Self { channel: None, tries: 0, coordinators }
    }

    /// # Errors
    /// When it is refused.
    pub async fn submit(&mut self, request: v1::SubmitRequest) -> Result<Vec<String>, Status> {
        let reply = ask!(self, submit, request.clone())?;
        assert!(reply.missing_blobs.is_empty());
        Ok(reply.jobs.into_iter().map(|job| job.id).collect())
    }

    pub async fn cancel(&mut self, jobs: &[String]) {
        let request = v1::CancelJobsRequest { ids: jobs.to_vec(), ..v1::CancelJobsRequest::default() };
        let _: Result<v1::CancelJobsReply, Status> = ask!(self, cancel_jobs, request.clone());
    }

    pub async fn all_ended(&mut self, jobs: &[String]) -> bool {
        let request = v1::ListJobsRequest { ids: jobs.to_vec(), ..v1::ListJobsRequest::default() };
        let reply = ask!(self, list_jobs, request.clone()).expect("acknowledged jobs are found");
        reply.jobs.len() == jobs.len() && reply.jobs.iter().all(|job| job.ended_ms > 0)
    }
}
