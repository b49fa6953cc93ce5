//! What a person does from the page, by its forms: clone, priority, links for reading; and what its log search finds.

use super::*;
use http::request::Builder;

/// A browser that is signed in as the administrator, and sends forms from the page itself.
struct Person {
    cookie: String,
    own: String,
}

impl Person {
    async fn new(served: &Served) -> Self {
        let form = format!("token={}&next=%2F", served.admin_token());
        let login = served.stranger(Method::POST, "/login").header("content-type", FORM);
        let login = served.send(login, form).await;
        let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
        Self { cookie, own: format!("http://{}", served.address()) }
    }

    fn form(&self, served: &Served, path: &str) -> Builder {
        let request = served.stranger(Method::POST, path).header("content-type", FORM);
        request.header("cookie", &self.cookie).header("origin", &self.own)
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

#[tokio::test]
async fn a_person_clones_a_job_with_changes_and_says_how_urgent_one_is() {
    let served = Served::start_with(|config| config.farm.lease_ms = 3_600_000).await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    submit(&served, "before.onnx").await;
    agent.assigned().await;
    let id = submit_as(&served, "digits.onnx", r#"{"threads":1}"#).await;
    let person = Person::new(&served).await;

    let page = served.get(&format!("/jobs/{id}")).await.text();
    assert!(page.contains("/do/priority") && page.contains(&format!("/jobs/{id}/clone")), "{page}");
    let set = served.send(person.form(&served, "/do/priority"), format!("id={id}&priority=7")).await;
    assert_eq!((set.status.as_u16(), set.header("location")), (303, &*format!("/jobs/{id}")), "{}", set.text());
    assert_eq!(served.get(&format!("/api/v1/jobs/{id}")).await.json()["priority"], 7);
    let wrong = served.send(person.form(&served, "/do/priority"), format!("id={id}&priority=70000")).await;
    assert!(wrong.status == 400 && wrong.text().contains("1000"), "{}", wrong.text());
    // A foreign page sets nothing.
    let foreign = served.stranger(Method::POST, "/do/priority").header("content-type", FORM);
    let foreign = foreign.header("cookie", &person.cookie).header("origin", "http://127.0.0.1:1");
    assert_eq!(served.send(foreign, format!("id={id}&priority=1")).await.status, 403);

    let form = served.get(&format!("/jobs/{id}/clone")).await.text();
    for shown in ["action=\"/do/clone\"", "&#34;threads&#34;: 1", SKU, "name=\"priority\"", "value=\"7\""] {
        assert!(form.contains(shown), "{shown}: {form}");
    }
    assert_eq!(served.get(&format!("/jobs/{id}/clone?format=json")).await.json()["job"]["id"], id.as_str());
    let fields = |skus: &str, spec: &str| {
        format!("id={id}&skus={skus}&spec={spec}&builds=2&priority=-3&tags=night%2C+a%3Db&force=1")
    };
    let done = served.send(person.form(&served, "/do/clone"), fields(SKU, "%7B%22threads%22%3A2%7D")).await;
    let to = done.header("location").to_owned();
    assert!(done.status == 303 && to.starts_with("/jobs/") && !to.ends_with(&id), "{}", done.text());
    let copy = served.get(&format!("/api/v1{to}")).await.json();
    let told = (&copy["spec"]["threads"], &copy["builds"], &copy["priority"], &copy["model"]["name"]);
    assert_eq!(told, (&2.into(), &2.into(), &(-3).into(), &"digits.onnx".into()), "{copy:#}");
    assert_eq!(copy["tags"], serde_json::json!(["a=b", "night"]));
    // Several device kinds become one request.
    let several = served.send(person.form(&served, "/do/clone"), fields(&format!("{SKU}%2C+t4"), "%7B%7D")).await;
    let to = several.header("location").to_owned();
    assert!(several.status == 303 && to.starts_with("/requests/"), "{}", several.text());
    assert!(served.get(&to).await.text().contains(">t4<"), "{to}");
    let refused = served.send(person.form(&served, "/do/clone"), fields(SKU, "%7Bno+document")).await;
    assert!(refused.status.is_client_error() && refused.text().contains("spec"), "{}", refused.text());
}

#[tokio::test]
async fn a_person_makes_a_link_sees_it_once_and_revokes_it() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    succeed(&served, &mut agent, &assign).await;
    let job = support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    let person = Person::new(&served).await;
    let model = job.model.unwrap().digest;
    for (what, of) in [("request", &job.request_id), ("model", &model)] {
        let page = served.get(&format!("/{what}s/{of}")).await.text();
        assert!(page.contains("action=\"/do/share\"") && page.contains(&format!("name=\"{what}\"")), "{page}");
        let made = served.send(person.form(&served, "/do/share"), format!("{what}={of}&days=3")).await;
        let words = made.text();
        assert!(made.status == 200 && words.contains("for 3 days"), "{words}");
        assert_eq!(made.header("cache-control"), "no-store");
        let at = words.find("/shared/").expect("the link");
        let path: String = words[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '/').collect();
        let read = served.send(served.stranger(Method::GET, &path), "").await;
        assert!(read.status == 200 && read.text().contains("digits.onnx"), "{}", read.text());
        assert_eq!((read.header("referrer-policy"), read.header("x-robots-tag")), ("no-referrer", "noindex, nofollow"));
        let list = served.get("/farm").await.text();
        let secret = path.rsplit('/').next().unwrap();
        assert!(list.contains("action=\"/do/unshare\"") && !list.contains(secret), "it is shown once: {list}");
        let shares = served.get("/farm?format=json").await.json()["shares"].as_array().unwrap().clone();
        assert_eq!(shares.len(), 1, "{shares:?}");
        let share = shares[0]["id"].as_str().unwrap();
        let gone = served.send(person.form(&served, "/do/unshare"), format!("id={share}")).await;
        assert_eq!((gone.status.as_u16(), gone.header("location")), (303, "/farm"), "{}", gone.text());
        assert_eq!(served.send(served.stranger(Method::GET, &path), "").await.status, 404);
    }
}

#[tokio::test]
async fn a_log_is_searched_on_the_server_and_a_timeline_tells_phases() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    agent
        .say(Kind::Progress(v1::Progress {
            lease: assign.lease.clone(),
            phase: "compile".into(),
            ..Default::default()
        }))
        .await;
    succeed(&served, &mut agent, &assign).await;
    support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    let text = served.get(&format!("/jobs/{id}?q=FAST")).await.text();
    for shown in [
        "compiling &#60;<mark>fast</mark>&#62;",
        "1 of 2 lines has it",
        "value=\"FAST\"",
        "id=\"timeline\"",
        ">compile<",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let none = served.get(&format!("/jobs/{id}?q=%3Cscript%3E")).await.text();
    assert!(none.contains("No line of 2 has it.") && !none.contains("<script>\""), "{none}");
    let found = served.get(&format!("/jobs/{id}?q=done&format=json")).await.json();
    let told = (&found["log"]["matching"], &found["log"]["total"], &found["log"]["lines"][0]["text"]);
    assert_eq!(told, (&1.into(), &2.into(), &"done".into()), "{found:#}");
    assert_eq!(served.get(&format!("/jobs/{id}?q={}", "a".repeat(300))).await.status, 400);
    assert!(
        served.get(&format!("/jobs/{id}")).await.text().contains("name=\"q\""),
        "the form stands there without scripts"
    );
}

#[tokio::test]
async fn devices_tell_of_their_day_and_pause_while_they_measure_and_the_farm_of_what_is_stored() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    let device = assign.lease.as_ref().unwrap().device.clone();
    let beat = async |agent: &mut Agent, json: &str| {
        let telemetry = vec![v1::DeviceTelemetry { device: device.clone(), json: json.into() }];
        let leases = assign.lease.clone().into_iter().collect();
        agent.say(Kind::Heartbeat(v1::Heartbeat { leases, telemetry })).await;
    };
    let shows = async |words: &str| {
        support::until(words, || async {
            let text = served.get("/devices").await.text();
            text.contains(words).then_some(text)
        })
        .await
    };
    let sample = r#"{"sm_clock_mhz":1590,"memory_clock_mhz":5001,"temperature_c":54.0,"power_w":56.2,"power_limit_w":70.0,
        "memory_used_mib":600,"throttle":["thermal"],"measured_unix_ms":[1763600000000,1763600060000]}"#;
    beat(&mut agent, sample).await;
    let text = shows("clocks 1,590 and 5,001 MHz").await;
    for shown in
        ["54 °C", "56 of 70 W", "600 MiB in use", "throttled: thermal", "measured from <time", "2025-11-20T00:54:20Z"]
    {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    beat(&mut agent, r#"{"measuring_from_unix_ms":1763600000000}"#).await;
    let text = shows("nothing else is asked of it meanwhile").await;
    assert!(!text.contains("MHz") && !text.contains("54 °C"), "what was told before says nothing of now: {text}");

    agent
        .say(Kind::Progress(v1::Progress {
            lease: assign.lease.clone(),
            phase: "measure".into(),
            ..Default::default()
        }))
        .await;
    succeed(&served, &mut agent, &assign).await;
    support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    let text = shows("class=\"day\"").await;
    assert!(text.contains("% measuring") && text.contains("class=\"measuring\" d=\"M23"), "{text}");
    let days = served.get("/devices?format=json").await.json()["days"].clone();
    let hours = days[0]["day"]["hours"].as_array().unwrap();
    let spent = |what: &str| hours.iter().filter_map(|hour| hour[what].as_u64()).sum::<u64>();
    assert!(hours.len() == 24 && spent("measuring_ms") + spent("building_ms") > 0, "{days:#}");

    let stored = served.get("/farm?format=json").await.json()["stored"].clone();
    let of = |kind: &str| stored.as_array().unwrap().iter().find(|heap| heap["kind"] == kind).cloned();
    assert!(of("plans").is_some_and(|heap| heap["blobs"] == 1 && heap["project"] == "default"), "{stored:#}");
    assert!(of("models and cards").is_some_and(|heap| heap["bytes"].as_u64() > Some(0)), "{stored:#}");
    assert!(served.get("/farm").await.text().contains("Storage by kind and project"));
}

#[tokio::test]
async fn an_administrator_forgets_agents_revokes_tokens_sets_quotas_and_tidies_on_the_page() {
    let served = Served::start().await;
    let agent = Agent::usual(farm(&served), "gone-host").await;
    let person = Person::new(&served).await;
    let online = served.get("/devices").await.text();
    assert!(online.contains("/do/drain") && !online.contains("/do/forget"), "one that is there would join again");
    drop(agent);
    let forms = support::until("the agent is away", || async {
        let text = served.get("/devices").await.text();
        text.contains("action=\"/do/forget\"").then_some(text)
    })
    .await;
    assert!(forms.contains("<details class=\"sure\">"), "what cannot be taken back is asked for twice: {forms}");
    let id = served.get("/devices?format=json").await.json()["agents"][0]["id"].as_str().unwrap().to_owned();
    let gone = served.send(person.form(&served, "/do/forget"), format!("agent={id}")).await;
    assert_eq!((gone.status.as_u16(), gone.header("location")), (303, "/devices"), "{}", gone.text());
    assert!(!served.get("/devices").await.text().contains("gone-host"));

    let set = served.send(person.form(&served, "/do/project"), "name=vision&share=3&max_jobs=50&max_gib=2").await;
    assert_eq!((set.status.as_u16(), set.header("location")), (303, "/farm"), "{}", set.text());
    let wrong = served.send(person.form(&served, "/do/project"), "name=vision&max_jobs=many").await;
    assert!(wrong.status == 400 && wrong.text().contains("many"), "{}", wrong.text());
    let page = served.get("/farm").await.text();
    for shown in ["vision", "2.00 GiB", "90 days after their end", "Versions", "/do/gc", "/do/scrub", "project.set"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }

    let request = v1::CreateTokenRequest { name: "leaver".into(), role: "read".into(), ..Default::default() };
    farm(&served).create_token(&Actor::local(), request).await.unwrap();
    let tokens = served.get("/farm?format=json").await.json()["tokens"].clone();
    let token = tokens.as_array().unwrap().iter().find(|token| token["name"] == "leaver").cloned().unwrap();
    assert!(!tokens.to_string().contains("secret") && token["revoked"] == false, "{tokens:#}");
    let revoked = format!("id={}", token["id"].as_str().unwrap());
    assert_eq!(served.send(person.form(&served, "/do/revoke"), revoked).await.status, 303);
    let tokens = served.get("/farm?format=json").await.json()["tokens"].clone();
    let token = tokens.as_array().unwrap().iter().find(|token| token["name"] == "leaver").cloned().unwrap();
    assert_eq!(token["revoked"], true, "{tokens:#}");

    let told = served.send(person.form(&served, "/do/gc"), "").await;
    assert!(told.status == 200 && told.text().contains("Nothing has gone") && told.text().contains("Ended jobs"));
    let begun = served.send(person.form(&served, "/do/gc"), "go=1").await;
    assert_eq!((begun.status.as_u16(), begun.header("location")), (303, "/activity?what=gc"), "{}", begun.text());
    assert_eq!(served.send(person.form(&served, "/do/scrub"), "").await.status, 303);
    support::until("both are in the audit log", || async {
        let audit = served.get("/activity?format=json").await.json()["audit"].to_string();
        (audit.contains("blobs.scrub") && audit.contains("collection")).then_some(())
    })
    .await;
}
