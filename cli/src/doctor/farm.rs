//! The coordinator, when one is configured: does it answer, and what may this user do there?

use super::Check;
use crate::{
    context::Context,
    credentials::token,
    failure::Failure,
    farm::{self, Place},
};
use planforge_proto::v1;
use std::time::{Duration, Instant};

const AREA: &str = "farm";
/// Longest that a coordinator may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks the way to the coordinator; without one there is nothing to check.
pub async fn checks(context: &Context<'_>) -> Vec<Check> {
    let endpoint = match Place::choose(&context.settings) {
        Ok(Place::Server(endpoint)) => endpoint,
        Ok(Place::ThisMachine(folder)) => {
            let seen = format!("none configured; this machine's own farm in {}", folder.display());
            return vec![Check::ok(AREA, "coordinator", seen)];
        }
        Err(failure) => return vec![failed("coordinator", "no job can be submitted", &failure)],
    };
    let secret = match token(&context.settings) {
        Ok(secret) => secret,
        Err(failure) => return vec![failed("token", "the token cannot be used", &failure)],
    };
    let started = Instant::now();
    let asked = tokio::time::timeout(PATIENCE, async {
        let (client, _way) = farm::connect(endpoint, secret).await?;
        let info = client.farm().get_server_info(v1::GetServerInfoRequest {}).await;
        Ok::<_, Failure>(info.map_err(|status| client.error(status))?.into_inner())
    });
    match asked.await {
        Err(_) => {
            let check = Check::ok(AREA, "coordinator", format!("no answer within {} s", PATIENCE.as_secs()));
            vec![check.problem("no job can be submitted", "check the address, the network and the coordinator")]
        }
        Ok(Err(failure)) => vec![failed("coordinator", "no job can be submitted", &failure)],
        Ok(Ok(info)) => answered(&info, started.elapsed()),
    }
}

fn failed(name: &str, meaning: &str, failure: &Failure) -> Check {
    let action = if failure.hint.is_empty() { "check the settings" } else { &failure.hint };
    Check::ok(AREA, name, failure.to_string()).problem(meaning, action)
}

fn answered(info: &v1::ServerInfo, took: Duration) -> Vec<Check> {
    let here = env!("CARGO_PKG_VERSION");
    let seen = format!("planforge {} answered in {} ms", info.version, took.as_millis());
    let mut coordinator = Check::ok(AREA, "coordinator", seen);
    if info.version != here {
        coordinator = coordinator.warning(format!("this program is {here}"), "bring both to the same version");
    }
    let token = Check::ok(AREA, "token", format!("{} as {}, project {}", info.role, info.actor, info.project));
    let token = match info.role.as_str() {
        "read" => token.warning("jobs can be seen, not submitted", "ask for a token with the role submit"),
        "" => token.problem("the coordinator does not know this user", "give a token: --token-file FILE"),
        _ => token,
    };
    vec![coordinator, token]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn versions_and_roles_are_judged() {
        let states = |version: &str, role: &str| {
            let (version, role) = (version.to_owned(), role.to_owned());
            let info = v1::ServerInfo { version, role, actor: "me".into(), project: "p".into(), ..Default::default() };
            answered(&info, Duration::from_millis(3)).iter().map(|check| check.state).collect::<Vec<_>>()
        };
        assert_eq!(states(env!("CARGO_PKG_VERSION"), "admin"), [State::Ok, State::Ok]);
        assert_eq!(states("0.0.1", "read"), [State::Warning, State::Warning]);
        assert_eq!(states("0.0.1", "")[1], State::Problem);
    }
}
