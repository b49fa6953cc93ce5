//! A farm of the release before: the real one, behind a door that does not know what is new.

use crate::farm::Farm;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode, Version, header},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{net::TcpListener, thread};

/// Calls of the contract and routes below `/api/v1` that the release before did not have.
const NEW: [&str; 8] = [
    "/planforge.v1.Farm/PinEngines",
    "/planforge.v1.Farm/ListPins",
    "/planforge.v1.Farm/UnpinEngines",
    "/planforge.v1.Farm/DeclareEngines",
    "/planforge.v1.Farm/ListDeclarations",
    "/api/v1/pins",
    "/api/v1/pins/remove",
    "/api/v1/declarations",
];

#[derive(Clone)]
struct Door {
    /// The farm behind it.
    url: String,
    plain: Client<HttpConnector, Body>,
    /// As gRPC is spoken.
    http2: Client<HttpConnector, Body>,
}

/// Opens such a door to `farm` for as long as the test runs; its URL.
pub fn previous(farm: &Farm) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let behind = farm.url.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let door = Door {
                url: behind,
                plain: Client::builder(TokioExecutor::new()).build_http(),
                http2: Client::builder(TokioExecutor::new()).http2_only(true).build_http(),
            };
            listener.set_nonblocking(true).expect("a listener");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let router = Router::new().fallback(pass).with_state(door);
            axum::serve(listener, router).await.expect("it serves");
        });
    });
    url
}

async fn pass(State(door): State<Door>, mut request: Request) -> Response<Body> {
    let is_grpc = request.version() == Version::HTTP_2;
    if NEW.contains(&request.uri().path()) {
        // As a service answers a method that it does not have, and a router a path.
        let unknown = match is_grpc {
            true => Response::builder().header(header::CONTENT_TYPE, "application/grpc").header("grpc-status", "12"),
            false => Response::builder().status(StatusCode::NOT_FOUND),
        };
        return unknown.body(Body::empty()).expect("an answer");
    }
    let rest = request.uri().path_and_query().map_or("/", |rest| rest.as_str());
    *request.uri_mut() = format!("{}{rest}", door.url).parse().expect("an address");
    let client = if is_grpc { &door.http2 } else { &door.plain };
    match client.request(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => {
            let gone = Response::builder().status(StatusCode::BAD_GATEWAY);
            gone.body(error.to_string().into()).expect("an answer")
        }
    }
}
