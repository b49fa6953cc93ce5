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
use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
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

/// How long a connection has for its first request; a working client needs far less, and a test waits for its end.
const FIRST_REQUEST: Duration = Duration::from_secs(2);

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
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
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
        TlsFiles {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: None,
            allow_readable_key: false,
        }
    }

    async fn serve(&self, tls: TlsFiles) -> Result<Coordinator, StartError> {
        let mut config = CoordinatorConfig::new(self.path("data"));
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.tls = Some(tls);
        config.limits.first_request_within = FIRST_REQUEST;
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
        let token = fs::read_to_string(self.path("data/admin.token")).unwrap();
        self.session_as(coordinator, certified, token.trim()).await
    }

    /// Opens one with that token.
    async fn session_as(&self, coordinator: &Coordinator, certified: bool, token: &str) -> Result<(), ApiError> {
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
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
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
async fn a_coordinator_names_itself_by_a_host_that_its_certificate_covers() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["farm.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(files.path("server.pem"), certificate.pem()).unwrap();
    fs::write(files.path("server.key"), key.serialize_pem()).unwrap();
    let coordinator = files.serve(files.tls()).await.unwrap();
    let own = format!("https://farm.example:{}", coordinator.address().unwrap().port());
    assert_eq!(coordinator.url(), Some(own.as_str()));
    let (link, _) = coordinator.login_link().unwrap().unwrap();
    assert!(link.starts_with(&own), "{link}");
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

#[tokio::test]
async fn an_agents_token_is_worth_nothing_without_a_certificate_made_out_to_it() {
    let files = Files::new();
    let tls = TlsFiles { client_ca: Some(files.path("ca.pem")), ..files.tls() };
    let coordinator = files.serve(tls).await.unwrap();
    let token = async |name: &str| {
        let request = v1::CreateTokenRequest { name: name.into(), role: "agent".into(), ..Default::default() };
        coordinator.farm().create_token(&Actor::local(), request).await.unwrap().secret
    };
    // The certificate is made out to localhost.
    let (own, other) = (token("localhost").await, token("rack-2").await);
    let refused = files.session_as(&coordinator, false, &own).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
    assert!(refused.hint.contains("--cert"), "{}", refused.hint);
    let refused = files.session_as(&coordinator, true, &other).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    assert!(refused.message.contains("rack-2") && refused.hint.contains("DNS name"), "{refused:?}");
    files.session_as(&coordinator, true, &own).await.unwrap();

    // Nor does it open anything else.
    let mut stream = files.connect(&coordinator, b"http/1.1", false).await;
    let head = format!(
        "GET /api/v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {own}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    coordinator.shutdown().await;
}

#[tokio::test]
async fn files_that_are_read_again_hold_from_then_on_and_bad_ones_change_nothing() {
    let files = Files::new();
    let coordinator = files.serve(files.tls()).await.unwrap();
    let healthz = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut before = files.connect(&coordinator, b"http/1.1", false).await;
    before.write_all(healthz.as_bytes()).await.unwrap();
    assert_eq!(before.read_u8().await.unwrap(), b'H');

    let others = Files::new();
    fs::copy(others.path("server.key"), files.path("server.key")).unwrap();
    let error = coordinator.reload_tls().unwrap_err();
    assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
    files.connect(&coordinator, b"h2", false).await;

    fs::copy(others.path("server.pem"), files.path("server.pem")).unwrap();
    assert!(coordinator.reload_tls().unwrap());
    fs::copy(others.path("ca.pem"), files.path("ca.pem")).unwrap();
    files.connect(&coordinator, b"h2", false).await;
    // Who was connected stays.
    before.write_all(healthz.as_bytes()).await.unwrap();
    assert_eq!(before.read_u8().await.unwrap(), b'T');
    coordinator.shutdown().await;
}

#[tokio::test]
async fn a_key_that_others_may_read_is_refused_unless_that_is_allowed() {
    let files = Files::new();
    fs::set_permissions(files.path("server.key"), fs::Permissions::from_mode(0o640)).unwrap();
    let error = files.serve(files.tls()).await.unwrap_err();
    assert!(matches!(error, StartError::Tls(TlsError::Exposed(_))), "{error}");
    assert!(error.to_string().contains("server.key") && error.hint().contains("chmod 600"), "{error}");
    assert!(!files.path("data").exists());
    let allowed = TlsFiles { allow_readable_key: true, ..files.tls() };
    files.serve(allowed).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn a_handshake_that_is_not_made_or_followed_by_nothing_ends() {
    let files = Files::new();
    let coordinator = files.serve(files.tls()).await.unwrap();
    let address = coordinator.address().unwrap();
    let ended = async |mut stream: Box<dyn AsyncRead + Unpin>| {
        let mut bytes = [0; 1024];
        let end = async { while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(Duration::from_secs(30), end).await.expect("the connection is closed in time");
    };
    ended(Box::new(TcpStream::connect(address).await.unwrap())).await;
    // The beginning of a record that never comes.
    let mut begun = TcpStream::connect(address).await.unwrap();
    begun.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await.unwrap();
    ended(Box::new(begun)).await;
    for protocol in [&b"h2"[..], b"http/1.1"] {
        ended(Box::new(files.connect(&coordinator, protocol, false).await)).await;
    }
    files.session(&coordinator, false).await.unwrap();
    coordinator.shutdown().await;
}
