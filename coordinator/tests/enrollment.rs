//! Agents that the coordinator certifies itself: from a one-time token to a certificate that is its agent's.

use planforge_client::{BlobError, Blobs, Client, Endpoint, EndpointOptions, Identity, Token};
use planforge_coordinator::{
    auth::Actor,
    server::{AgentCertificates, Coordinator, CoordinatorConfig},
    tls::TlsFiles,
};
use planforge_proto::{
    ApiError, ErrorCode,
    enrollment::{self, Certified, Enrollment},
    v1::{self, agent_message::Kind as Say, coordinator_message::Kind as Hear},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SigningKey as _};
use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

const DEADLINE: Duration = Duration::from_secs(30);

struct Farm {
    folder: TempDir,
    coordinator: Coordinator,
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

impl Farm {
    async fn start(how: AgentCertificates) -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("ca.pem"), &authority.pem());
        write(&path("server.pem"), &certificate.pem());
        write(&path("server.key"), &key.serialize_pem());
        let mut config = CoordinatorConfig::new(path("data"));
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.tls = Some(TlsFiles {
            certificate: path("server.pem"),
            key: path("server.key"),
            client_ca: None,
            allow_readable_key: false,
        });
        config.agent_certificates = Some(how);
        Self { coordinator: Coordinator::start(config).await.unwrap(), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn endpoint(&self) -> Endpoint {
        let url = format!("https://localhost:{}", self.coordinator.address().unwrap().port());
        Endpoint::parse(&url, &EndpointOptions { ca_file: Some(self.path("ca.pem")), insecure: false }).unwrap()
    }

    async fn token(&self, name: &str, role: &str) -> Token {
        let request = v1::CreateTokenRequest { name: name.into(), role: role.into(), ..Default::default() };
        Token::new(&self.coordinator.farm().create_token(&Actor::local(), request).await.unwrap().secret).unwrap()
    }

    /// A key that a one-time token certifies for an agent, and the certificate.
    async fn enroll(&self, token: &Token, agent: &str) -> Result<(KeyPair, Certified), BlobError> {
        let key = KeyPair::generate().unwrap();
        let signature = key.sign(&enrollment::words(agent)).unwrap();
        let asked = Enrollment { agent_id: agent.into(), public_key: key.public_key_raw().to_vec(), signature };
        let certified = Blobs::new(&self.endpoint(), Some(token.clone())).unwrap().enroll(&asked).await?;
        Ok((key, certified))
    }

    /// What the certificate is shown with.
    fn identity(&self, name: &str, key: &KeyPair, certified: &Certified) -> Identity {
        let (certificate, secret) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        write(&certificate, &certified.certificate);
        write(&secret, &key.serialize_pem());
        Identity::load(&certificate, &secret, false).unwrap()
    }

    fn client(&self, identity: &Identity) -> Client {
        Client::lazy(self.endpoint().with_identity(identity.clone()).unwrap(), None).unwrap()
    }
}

/// Joins as an agent; what the coordinator says first, and the stream.
async fn join(
    client: &Client,
    agent: &str,
) -> Result<(Hear, tokio::sync::mpsc::Sender<v1::AgentMessage>, tonic::Streaming<v1::CoordinatorMessage>), ApiError> {
    let (say, said) = tokio::sync::mpsc::channel(4);
    let hello = v1::Hello {
        agent_id: agent.into(),
        incarnation: "1".into(),
        name: "host".into(),
        version: planforge_proto::protocol::RELEASE.into(),
        ..Default::default()
    };
    say.send(v1::AgentMessage { kind: Some(Say::Hello(hello)) }).await.unwrap();
    let opened = client.fleet().session(ReceiverStream::new(said)).await;
    let mut inbound = opened.map_err(|status| client.error(status))?.into_inner();
    let first = inbound.message().await.map_err(|status| client.error(status))?;
    Ok((first.and_then(|message| message.kind).expect("a word"), say, inbound))
}

fn refused(result: Result<(KeyPair, Certified), BlobError>) -> ApiError {
    match result {
        Ok(_) => panic!("it was certified"),
        Err(error) => error.into(),
    }
}

#[tokio::test]
async fn a_one_time_token_makes_one_agent_whose_certificate_is_its_token() {
    let farm = Farm::start(AgentCertificates { required: true, ..Default::default() }).await;
    let once = farm.token("rack-1", "enroll").await;
    let (key, certified) = farm.enroll(&once, "agent-1").await.unwrap();
    let again = refused(farm.enroll(&once, "agent-1").await);
    assert_eq!(again.code, ErrorCode::Unauthenticated, "it is good once: {again:?}");

    // The certificate alone lets its agent in, and no other identity with it.
    let client = farm.client(&farm.identity("rack-1", &key, &certified));
    let (first, _say, mut session) = join(&client, "agent-1").await.unwrap();
    assert!(matches!(first, Hear::Welcome(_)), "{first:?}");
    let (other, ..) = join(&client, "agent-2").await.unwrap();
    let Hear::Refused(other) = other else { panic!("{other:?}") };
    assert!(other.reason.contains("belongs to agent agent-1"), "{}", other.reason);
    assert!(client.blobs().size(planforge_types::Digest::of(b"x")).await.unwrap().is_none(), "blobs, too");

    // A token alone does not, nor does it take the identity of an enrolled agent.
    let plain = farm.token("rack-9", "agent").await;
    let stranger = Client::lazy(farm.endpoint(), Some(plain)).unwrap();
    assert_eq!(join(&stranger, "agent-9").await.unwrap_err().code, ErrorCode::Unauthenticated);
    let second = farm.token("rack-2", "enroll").await;
    let taken = refused(farm.enroll(&second, "agent-1").await);
    assert_eq!(taken.code, ErrorCode::PermissionDenied, "{taken:?}");
    farm.enroll(&second, "agent-2").await.expect("a refusal does not use it up");

    // Its token in the list is revoked like any other, and that ends its session and its renewals.
    let tokens = farm.coordinator.farm().list_tokens(&Actor::local()).await.unwrap().tokens;
    let listed = tokens.iter().find(|token| token.name == "rack-1" && !token.revoked).unwrap();
    assert_eq!((listed.role.as_str(), listed.agent.as_str()), ("agent", "agent-1"));
    client.blobs().renew_certificate().await.unwrap();
    farm.coordinator.farm().revoke_token(&Actor::local(), "rack-1").await.unwrap();
    let ended = async { while session.next().await.is_some_and(|message| message.is_ok()) {} };
    tokio::time::timeout(DEADLINE, ended).await.expect("the session ends");
    let renewed = ApiError::from(client.blobs().renew_certificate().await.unwrap_err());
    assert_eq!(renewed.code, ErrorCode::Unauthenticated);
    assert!(renewed.message.contains("revoked"), "{renewed:?}");
    farm.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_one_time_token_is_good_for_nothing_else_and_many_at_once_get_one_certificate() {
    let farm = Farm::start(AgentCertificates::default()).await;
    let once = farm.token("rack-1", "enroll").await;
    let client = Client::lazy(farm.endpoint(), Some(once.clone())).unwrap();
    let listed = client.farm().list_jobs(v1::ListJobsRequest::default()).await.unwrap_err();
    assert_eq!(client.error(listed).code, ErrorCode::PermissionDenied);
    assert!(client.blobs().size(planforge_types::Digest::of(b"x")).await.is_err());
    assert_eq!(join(&client, "agent-1").await.unwrap_err().code, ErrorCode::PermissionDenied);

    // Words of somebody else's key certify nothing.
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let signature = other.sign(&enrollment::words("agent-1")).unwrap();
    let asked = Enrollment { agent_id: "agent-1".into(), public_key: key.public_key_raw().to_vec(), signature };
    let unproven = client.blobs().enroll(&asked).await.map_err(ApiError::from).unwrap_err();
    assert_eq!(unproven.code, ErrorCode::InvalidArgument, "{unproven:?}");

    let tries: Vec<String> = (0..8).map(|number| format!("agent-{number}")).collect();
    let tries = tries.iter().map(|agent| farm.enroll(&once, agent));
    let certified = futures::future::join_all(tries).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(certified, 1);

    // Tokens of role agent go on to work where certificates are offered only.
    let plain = Client::lazy(farm.endpoint(), Some(farm.token("plain", "agent").await)).unwrap();
    assert!(matches!(join(&plain, "agent-plain").await.unwrap().0, Hear::Welcome(_)));
    let foreign = plain.blobs().renew_certificate().await.map_err(ApiError::from).unwrap_err();
    assert_eq!(foreign.code, ErrorCode::PermissionDenied);
    farm.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_certificate_that_ends_ends_its_connections() {
    // Long enough for a loaded machine to join; the test waits for its end.
    let life = Duration::from_secs(8);
    let farm = Farm::start(AgentCertificates { required: true, life }).await;
    let (key, certified) = farm.enroll(&farm.token("rack-1", "enroll").await, "agent-1").await.unwrap();
    let identity = farm.identity("rack-1", &key, &certified);
    let client = farm.client(&identity);
    let (first, _say, mut session) = join(&client, "agent-1").await.unwrap();
    assert!(matches!(first, Hear::Welcome(_)));
    let ended = async { while session.next().await.is_some_and(|message| message.is_ok()) {} };
    tokio::time::timeout(DEADLINE, ended).await.expect("the session ends with its certificate");
    assert!(join(&client, "agent-1").await.is_err(), "it opens no other");

    farm.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_the_same_agents_and_holds_longer() {
    let life = Duration::from_secs(3600);
    let farm = Farm::start(AgentCertificates { required: true, life }).await;
    let (key, certified) = farm.enroll(&farm.token("rack-1", "enroll").await, "agent-1").await.unwrap();
    let identity = farm.identity("rack-1", &key, &certified);
    let client = farm.client(&identity);
    let renewed = client.blobs().renew_certificate().await.unwrap();
    assert!(renewed.expires_ms >= certified.expires_ms && renewed.renew_in_s == 2400, "{renewed:?}");
    write(identity.certificate(), &renewed.certificate);
    identity.reload().unwrap();
    assert!(matches!(join(&client, "agent-1").await.unwrap().0, Hear::Welcome(_)));
    write(identity.certificate(), "nothing");
    identity.reload().unwrap_err();
    assert!(client.blobs().size(planforge_types::Digest::of(b"x")).await.unwrap().is_none(), "the last good one stays");
    farm.coordinator.shutdown().await;
}
