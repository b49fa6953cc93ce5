use crate::server::Store;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use planforge_client::{BlobError, Blobs, Client, Endpoint, EndpointOptions, Token, blobs::Retries};
use planforge_proto::ErrorCode;
use planforge_types::Digest;
use std::{path::Path, sync::Arc, time::Duration};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// An authority, written to `path`, and a server's configuration signed by it.
fn authority(path: &Path) -> Arc<ServerConfig> {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(path, ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn serve_tls(store: &Store, config: Arc<ServerConfig>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = store.router();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, router) = (TlsAcceptor::from(config.clone()), router.clone());
            tokio::spawn(async move {
                // Clients that do not trust us hang up here.
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = TowerToHyperService::new(router);
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

fn once() -> Retries {
    Retries { idle_tries: 1, first: Duration::ZERO, longest: Duration::ZERO }
}

#[tokio::test]
async fn tls_is_verified_by_the_given_authority() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (folder.path().join("ca.pem"), folder.path().join("other.pem"));
    let store = Store::default();
    let port = serve_tls(&store, authority(&ours)).await;
    authority(&other);
    let endpoint = |ca: &Path| {
        let options = EndpointOptions { ca_file: Some(ca.to_owned()), insecure: false };
        Endpoint::parse(&format!("https://localhost:{port}"), &options).unwrap()
    };
    let digest = Blobs::new(&endpoint(&ours), None).unwrap().put_bytes("over TLS".into()).await.unwrap();
    assert_eq!(store.get(digest).unwrap(), b"over TLS");

    // This server knows no gRPC, but it is reached: the answer is its own.
    let client = Client::connect(endpoint(&ours), None).await.unwrap();
    let status = client.farm().get_server_info(planforge_proto::v1::GetServerInfoRequest {}).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status:?}");

    let error = Blobs::new(&endpoint(&other), None).unwrap().with_retries(once()).size(digest).await.unwrap_err();
    let error = planforge_proto::ApiError::from(error);
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("certificate") && error.hint.contains("other.pem"), "{error:?}");

    let error = Client::connect(endpoint(&folder.path().join("missing.pem")), None).await.unwrap_err();
    assert!(error.message.contains("missing.pem"), "{error:?}");
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let error = Client::connect(endpoint(&folder.path().join("empty.pem")), None).await.unwrap_err();
    assert!(error.message.contains("no usable certificate"), "{error:?}");
}

#[tokio::test]
async fn unix_sockets_carry_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("farm.sock");
    let store = Store::default();
    let listener = UnixListener::bind(&path).unwrap();
    let router = store.router();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let blobs = Blobs::new(&Endpoint::unix(&path), None).unwrap();
    let digest = blobs.put_bytes("over a socket".into()).await.unwrap();
    assert_eq!(digest, Digest::of(b"over a socket"));
    assert_eq!(blobs.get_bytes(digest, 100).await.unwrap(), "over a socket");
}

#[tokio::test]
async fn a_token_follows_no_redirect() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/", elsewhere.local_addr().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = axum::Router::new().fallback(async move || axum::response::Redirect::temporary(&target));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let endpoint = Endpoint::Http { host: "127.0.0.1".into(), port };
    let blobs = Blobs::new(&endpoint, Some(Token::new("secret").unwrap())).unwrap().with_retries(once());
    let asked = async {
        let error = blobs.get_bytes(Digest::of(b"x"), 10).await.unwrap_err();
        assert!(matches!(&error, BlobError::Refused { status, .. } if status.as_u16() == 307), "{error}");
        assert!(matches!(blobs.put_bytes("x".into()).await, Err(BlobError::Refused { .. })));
    };
    tokio::select! {
        biased;
        came = elsewhere.accept() => panic!("the redirect was followed: {came:?}"),
        () = asked => {}
    }
}

#[tokio::test]
async fn an_unreachable_coordinator_is_named_with_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let endpoint = Endpoint::parse(&format!("http://{address}"), &EndpointOptions::default()).unwrap();
    let error = Client::connect(endpoint.clone(), None).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains(&endpoint.to_string()) && error.message.contains("refused"), "{error:?}");
    assert!(error.hint.contains("planforge coordinator"), "{error:?}");

    let lazy = Client::lazy(endpoint.clone(), Some(Token::new("secret").unwrap())).unwrap();
    let status = lazy.farm().get_server_info(planforge_proto::v1::GetServerInfoRequest {}).await.unwrap_err();
    assert_eq!(lazy.error(status).message, error.message);
    assert!(!format!("{lazy:?}").contains("secret"));

    let folder = tempfile::tempdir().unwrap();
    let error = Client::connect(Endpoint::unix(folder.path().join("no.sock")), None).await.unwrap_err();
    assert!(error.message.contains("no.sock") && error.hint.contains("data folder"), "{error:?}");
}
