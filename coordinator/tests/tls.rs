//! TLS: both protocols on one port, clear errors for bad files, and certificates of agents.

mod served;

use planforge_coordinator::{
    auth::Actor,
    server::{Coordinator, CoordinatorConfig, StartError},
    tls::{TlsError, TlsFiles},
};
use planforge_proto::{
    ApiError, ErrorCode,
    v1::{self, fleet_client::FleetClient},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// An authority, a server certificate and an agent's certificate, as files.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", authority.pem());
        for name in ["server", "agent"] {
            let key = KeyPair::generate().unwrap();
            let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tls(&self) -> TlsFiles {
        TlsFiles { certificate: self.path("server.pem"), key: self.path("server.key"), client_ca: None }
    }

    async fn serve(&self, tls: TlsFiles) -> Result<Coordinator, StartError> {
        let mut config = CoordinatorConfig::new(self.path("data"));
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.tls = Some(tls);
        Coordinator::start(config).await
    }

    async fn connect(&self, coordinator: &Coordinator, protocol: &[u8], certified: bool) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if certified {
            let chain = vec![CertificateDer::from_pem_file(self.path("agent.pem")).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(self.path("agent.key")).unwrap()).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(coordinator.address().unwrap()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        stream
    }

    /// Opens an agent session with the administrator's token.
    async fn session(&self, coordinator: &Coordinator, certified: bool) -> Result<(), ApiError> {
        let stream = self.connect(coordinator, b"h2", certified).await;
        let mut stream = Some(hyper_util::rt::TokioIo::new(stream));
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
        let channel = endpoint
            .connect_with_connector(tower::service_fn(move |_| {
                let stream = stream.take();
                async move { stream.ok_or_else(|| std::io::Error::other("connected once already")) }
            }))
            .await
            .unwrap();
        let token = fs::read_to_string(self.path("data/admin.token")).unwrap();
        let hello = v1::AgentMessage {
            kind: Some(v1::agent_message::Kind::Hello(v1::Hello {
                agent_id: "a".into(),
                incarnation: "1".into(),
                name: "host".into(),
                version: planforge_proto::protocol::RELEASE.into(),
                ..Default::default()
            })),
        };
        let outbound = futures::StreamExt::chain(futures::stream::iter([hello]), futures::stream::pending());
        let mut request = tonic::Request::new(outbound);
        request.metadata_mut().insert("authorization", format!("Bearer {}", token.trim()).parse().unwrap());
        let mut inbound = FleetClient::new(channel).session(request).await?.into_inner();
        match inbound.message().await?.and_then(|message| message.kind) {
            Some(v1::coordinator_message::Kind::Welcome(_)) => Ok(()),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn one_tls_port_speaks_http1_and_http2() {
    let files = Files::new();
    let coordinator = files.serve(files.tls()).await.unwrap();
    assert!(coordinator.url().unwrap().starts_with("https://"));
    let mut stream = files.connect(&coordinator, b"http/1.1", false).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    files.session(&coordinator, false).await.unwrap();
    coordinator.shutdown().await;
}

#[tokio::test]
async fn with_a_client_authority_agents_need_a_certificate_and_others_do_not() {
    let files = Files::new();
    let tls = TlsFiles { client_ca: Some(files.path("ca.pem")), ..files.tls() };
    let coordinator = files.serve(tls).await.unwrap();
    let refused = files.session(&coordinator, false).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
    assert!(refused.hint.contains("certificate"), "{}", refused.hint);
    files.session(&coordinator, true).await.unwrap();
    let devices = coordinator.farm().list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await;
    assert!(devices.is_ok());
    coordinator.shutdown().await;
}

#[tokio::test]
async fn bad_files_are_named() {
    let files = Files::new();
    let missing = TlsFiles { certificate: files.path("none.pem"), ..files.tls() };
    let error = files.serve(missing).await.unwrap_err();
    assert!(error.to_string().contains("none.pem") && !error.hint().is_empty(), "{error}");

    fs::write(files.path("empty.pem"), "no certificate here\n").unwrap();
    let empty = TlsFiles { certificate: files.path("empty.pem"), ..files.tls() };
    let error = files.serve(empty).await.unwrap_err();
    assert!(matches!(error, StartError::Tls(TlsError::NoCertificate { .. })), "{error}");

    let no_key = TlsFiles { key: files.path("server.pem"), ..files.tls() };
    let error = files.serve(no_key).await.unwrap_err();
    assert!(matches!(error, StartError::Tls(TlsError::Read { what: "key file", .. })), "{error}");

    let mixed = TlsFiles { key: files.path("agent.key"), ..files.tls() };
    let error = files.serve(mixed).await.unwrap_err();
    assert!(matches!(error, StartError::Tls(TlsError::Mismatch { .. })), "{error}");
    assert!(error.hint().contains("key"));
    assert!(!files.path("data").exists(), "nothing is touched before the files are right");
}
