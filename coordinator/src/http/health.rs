//! gRPC's own health protocol, for probes that speak nothing else. It is open, as `/readyz` is, and says the same.

use crate::app::App;
use axum::Router;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, service::Routes};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

/// What may be asked about; the first is the server as a whole.
const SERVICES: [&str; 3] = ["", "planforge.v1.Farm", "planforge.v1.Fleet"];
/// A name is at most this long.
const MAX_MESSAGE_BYTES: usize = 1_024;

pub(super) fn routes(app: &App) -> Router {
    let service = HealthServer::new(Probe { app: app.clone() }).max_decoding_message_size(MAX_MESSAGE_BYTES);
    Routes::new(service).into_axum_router().reset_fallback()
}

#[derive(Clone)]
struct Probe {
    app: App,
}

#[tonic::async_trait]
impl Health for Probe {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no service has that name; ask about planforge.v1.Farm, or about none"));
        }
        let status = match self.app.ready() {
            Ok(()) => ServingStatus::Serving,
            Err(_) => ServingStatus::NotServing,
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    /// A stream of somebody without a token would hold a place for as long as they like.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask again and again with Check"))
    }
}
