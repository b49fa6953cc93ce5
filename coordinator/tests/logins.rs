//! Signing a browser in by a link that is good once, and what ends a log-in.

mod served;

use http::Method;
use planforge_coordinator::{
    auth::{Actor, Proof},
    server::Coordinator,
};
use planforge_proto::{ApiError, ErrorCode, v1, v1::farm_client::FarmClient};
use planforge_types::Digest;
use served::{Answer, Served};

/// The secret of the link that `up` prints.
fn link(served: &Served) -> String {
    let (url, _) = served.coordinator.login_link().unwrap().expect("a link");
    let start = format!("http://{}/login?once=", served.address());
    url.strip_prefix(&start).unwrap_or_else(|| panic!("{url}")).to_owned()
}

async fn use_link(served: &Served, secret: &str) -> Answer {
    let request = served.stranger(Method::POST, "/login").header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("origin", format!("http://{}", served.address()));
    served.send(request.header("sec-fetch-site", "same-origin"), format!("once={secret}&next=%2Fjobs%2F1")).await
}

/// Name and value of the cookie that an answer sets.
fn cookie(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{}", answer.text());
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

async fn info(served: &Served, cookie: &str) -> Answer {
    served.send(served.stranger(Method::GET, "/api/v1/info").header("cookie", cookie), "").await
}

#[tokio::test]
async fn a_link_signs_in_once() {
    let served = Served::start().await;
    let secret = link(&served);
    let path = format!("/login?once={secret}");
    // Looking uses nothing up: previews, scanners, a browser that asks ahead.
    for method in [Method::HEAD, Method::GET, Method::GET] {
        let seen = served.send(served.stranger(method, &path), "").await;
        assert_eq!((seen.status.as_u16(), seen.headers.get("set-cookie")), (200, None));
        assert_eq!(seen.header("cache-control"), "no-store");
    }
    let first = use_link(&served, &secret).await;
    assert_eq!(first.header("location"), "/jobs/1", "the secret is gone from the address");
    let flags = first.header("set-cookie").to_owned();
    assert!(flags.contains("HttpOnly") && flags.contains("SameSite=Strict") && flags.contains("Path=/"), "{flags}");
    let signed_in = cookie(&first);
    assert!(!signed_in.contains(&secret) && !signed_in.contains(&served.admin_token()), "{signed_in}");
    assert_eq!(info(&served, &signed_in).await.json()["actor"], "local");

    let second = use_link(&served, &secret).await;
    assert!(second.status == 401 && second.headers.get("set-cookie").is_none(), "{second:?}");
    assert!(second.text().contains("planforge open"), "{}", second.text());
    assert_eq!(info(&served, &signed_in).await.status, 200, "the first one stays signed in");
    for made_up in ["", "0", &"0".repeat(64), &"x".repeat(10_000)] {
        assert_eq!(use_link(&served, made_up).await.status, 401);
    }
}

#[tokio::test]
async fn a_link_that_ran_out_signs_nobody_in() {
    let served = Served::start_with(|config| config.farm.login_link_ms = 0).await;
    let late = use_link(&served, &link(&served)).await;
    assert!(late.status == 401 && late.headers.get("set-cookie").is_none(), "{late:?}");
}

#[tokio::test]
async fn a_link_of_a_foreign_page_signs_nobody_in_and_stays_good() {
    let served = Served::start().await;
    let secret = link(&served);
    let request = served.stranger(Method::POST, "/login").header("content-type", "application/x-www-form-urlencoded");
    let forged = served.send(request.header("origin", "http://evil.example"), format!("once={secret}")).await;
    forged.problem(403, "permission-denied");
    assert_eq!(use_link(&served, &secret).await.status, 303);
}

#[tokio::test]
async fn a_log_in_ends_with_its_token_and_outlives_its_coordinator() {
    let served = Served::start().await;
    let farm = served.coordinator.farm();
    let request = v1::CreateTokenRequest { name: "eve".into(), role: "admin".into(), ..Default::default() };
    let made = farm.create_token(&Actor::local(), request).await.unwrap();
    let proof = Proof::Token(Digest::of(made.secret.as_bytes()));
    let eve = farm.actor_of(proof).unwrap();
    let by_link = farm.make_login_link(&eve, proof).unwrap().path.trim_start_matches("/login?once=").to_owned();
    let unused = farm.make_login_link(&eve, proof).unwrap().path.trim_start_matches("/login?once=").to_owned();
    let by_link = cookie(&use_link(&served, &by_link).await);
    let form = served.stranger(Method::POST, "/login").header("content-type", "application/x-www-form-urlencoded");
    let by_token = cookie(&served.send(form, format!("token={}", made.secret)).await);
    for cookie in [&by_link, &by_token] {
        assert_eq!(info(&served, cookie).await.json()["actor"], "eve");
    }
    farm.revoke_token(&Actor::local(), &made.id).await.unwrap();
    for cookie in [&by_link, &by_token] {
        info(&served, cookie).await.problem(401, "unauthenticated");
    }
    assert_eq!(use_link(&served, &unused).await.status, 401, "nor does a link that it made before");

    let (owner, gone) =
        (cookie(&use_link(&served, &link(&served)).await), cookie(&use_link(&served, &link(&served)).await));
    assert_eq!(info(&served, &owner).await.status, 200);
    let out = served.stranger(Method::POST, "/logout").header("cookie", &gone);
    assert_eq!(served.send(out, "").await.status, 303);
    let left = link(&served);
    let (address, folder) = (served.address(), served.folder);
    served.coordinator.shutdown().await;
    let mut config = planforge_coordinator::server::CoordinatorConfig::new(folder.path().join("data"));
    config.listen = Some(address);
    let again = Served::around(Coordinator::start(config).await.unwrap(), folder);
    assert_eq!(info(&again, &owner).await.json()["actor"], "local");
    for cookie in [&gone, &by_link, &by_token] {
        info(&again, cookie).await.problem(401, "unauthenticated");
    }
    assert_eq!(use_link(&again, &left).await.status, 401, "a link ends with its coordinator");
    let (secret, file) = (owner.split('=').nth(1).unwrap(), again.folder.path().join("data/sessions.json"));
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(!kept.contains(secret) && kept.contains(&Digest::of(secret.as_bytes()).to_string()), "{kept}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn who_is_signed_out_comes_back_to_the_page_of_the_form() {
    let served = Served::start().await;
    let own = format!("http://{}", served.address());
    let form = |referer: &str| {
        let request = served.stranger(Method::POST, "/do/cancel").header("accept", "text/html");
        let request = request.header("content-type", "application/x-www-form-urlencoded").header("origin", &own);
        served.send(request.header("referer", referer), "id=1")
    };
    let page = form(&format!("{own}/jobs/1/clone?a=b")).await;
    assert_eq!((page.status.as_u16(), page.header("location")), (303, "/login?next=/jobs/1/clone%3Fa%3Db"));
    for none in ["", "nothing", "http://evil.example//evil.example"] {
        let page = form(none).await;
        assert!(page.status == 303 && page.header("location").starts_with("/login?next="), "{none}: {page:?}");
        let next = served.send(served.stranger(Method::GET, page.header("location")), "").await;
        assert!(next.text().contains("name=\"next\" value=\"/"), "{}", next.text());
        assert!(!next.text().contains("value=\"//"), "{}", next.text());
    }
}

#[tokio::test]
async fn links_are_made_by_administrators() {
    let served = Served::start().await;
    let farm = served.coordinator.farm();
    let request = v1::CreateTokenRequest { name: "ci".into(), role: "submit".into(), ..Default::default() };
    let submitter = farm.create_token(&Actor::local(), request).await.unwrap().secret;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
    let mut client = FarmClient::new(channel.connect().await.unwrap());
    let ask = |secret: &str| {
        let mut request = tonic::Request::new(v1::CreateLoginLinkRequest {});
        request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
        request
    };
    let refused = ApiError::from(client.create_login_link(ask(&submitter)).await.unwrap_err());
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    let reply = client.create_login_link(ask(&served.admin_token())).await.unwrap().into_inner();
    assert_eq!(reply.url, format!("http://{}", served.address()));
    let signed_in = cookie(&use_link(&served, reply.path.trim_start_matches("/login?once=")).await);
    assert_eq!(info(&served, &signed_in).await.json()["actor"], "admin");
}

#[tokio::test]
async fn a_stream_ends_with_the_log_in_that_opened_it() {
    use http_body_util::BodyExt as _;
    let served = Served::start().await;
    let signed_in =
        [cookie(&use_link(&served, &link(&served)).await), cookie(&use_link(&served, &link(&served)).await)];
    let mut streams = Vec::new();
    for cookie in &signed_in {
        let (head, mut body) =
            served.open(served.stranger(Method::GET, "/events?topic=/").header("cookie", cookie), "").await;
        assert_eq!(head.status, 200);
        assert!(body.frame().await.unwrap().is_ok(), "the first fragment");
        streams.push(body);
    }
    let out = served.stranger(Method::POST, "/logout").header("cookie", &signed_in[0]);
    assert_eq!(served.send(out, "").await.status, 303);
    let mut ended = streams.remove(0);
    let end = async { while ended.frame().await.is_some() {} };
    tokio::time::timeout(served::DEADLINE, end).await.expect("the stream ends with its log-in");
    // The other browser's goes on: no end comes while the first one's did.
    let going_on =
        tokio::time::timeout(std::time::Duration::ZERO, async { while streams[0].frame().await.is_some() {} });
    assert!(going_on.await.is_err(), "the other stream goes on");
}
