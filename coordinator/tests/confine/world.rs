//! A farm with two projects, of which one has an engine.

use crate::{
    served::Served,
    support::{SKU, agent, agent::Agent},
};
use http::Method;
use planforge_coordinator::{auth::Actor, server::CoordinatorConfig};
use planforge_proto::v1::{self, farm_client::FarmClient};
use planforge_types::Digest;
use tonic::{
    Request,
    metadata::MetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Role submit, of the project that has the engine.
    Own,
    /// Role submit, of the other project.
    Foreign,
    /// Role admin, of no project.
    FarmAdmin,
    /// Role admin, of the project that has the engine.
    ProjectAdmin,
    /// Role agent, another agent's than the one that built it.
    Agent,
    Nobody,
}

pub const EVERYBODY: [Who; 6] = [Who::Own, Who::Foreign, Who::FarmAdmin, Who::ProjectAdmin, Who::Agent, Who::Nobody];

pub struct World {
    pub served: Served,
    /// By who calls, in the order of [`EVERYBODY`]; empty: no token.
    tokens: Vec<String>,
    pub model: v1::Model,
    pub model_bytes: Vec<u8>,
    /// Answered, with plan and report.
    pub job: v1::Job,
    pub report_digest: String,
    pub log_digest: String,
    pub card_digest: String,
    pub agent: Option<Agent>,
}

#[derive(Clone)]
pub struct Bearer(String);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, tonic::Status> {
        if !self.0.is_empty() {
            let value: MetadataValue<_> = format!("Bearer {}", self.0).parse().expect("ASCII");
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

pub type Client = FarmClient<InterceptedService<Channel, Bearer>>;

pub async fn make_token(served: &Served, name: &str, role: &str, project: &str) -> v1::CreateTokenReply {
    let ask = v1::CreateTokenRequest { name: name.into(), role: role.into(), project: project.into(), ttl_s: 0 };
    served.coordinator.farm().create_token(&Actor::local(), ask).await.expect("a token")
}

/// A model of one file with these bytes.
pub fn model_of(name: &str, bytes: &[u8]) -> v1::Model {
    let digest = Digest::of(bytes).to_string();
    let file = v1::ModelFile { name: name.into(), digest: digest.clone(), size_bytes: bytes.len() as u64 };
    v1::Model { digest, name: name.into(), files: vec![file], ..v1::Model::default() }
}

pub fn request_of(model: &v1::Model) -> v1::SubmitRequest {
    v1::SubmitRequest { models: vec![model.clone()], skus: vec![SKU.into()], ..v1::SubmitRequest::default() }
}

/// What a caller's repository declares: red's people an engine of red's model, the others one of a model of theirs.
pub fn declaration(world: &World, who: Who) -> serde_json::Value {
    let (model, digest) = match who {
        Who::Own | Who::ProjectAdmin => ("red-model", world.model.digest.clone()),
        _ => ("other", Digest::of(b"other").to_string()),
    };
    serde_json::json!({
        "name": "shop",
        "specs": [{ "name": "default" }],
        "cells": [{ "model": model, "model_digest": digest, "sku": SKU, "spec": "default" }],
    })
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(adjust: impl FnOnce(&mut CoordinatorConfig)) -> Self {
        let served = Served::start_with(adjust).await;
        let tokens = vec![
            make_token(&served, "red-submit", "submit", "red").await.secret,
            make_token(&served, "blue-submit", "submit", "blue").await.secret,
            make_token(&served, "farm-admin", "admin", "").await.secret,
            make_token(&served, "red-admin", "admin", "red").await.secret,
            make_token(&served, "other-agent", "agent", "").await.secret,
            String::new(),
        ];
        let (model_bytes, blobs) = (b"the weights of red".to_vec(), served.coordinator.blobs().clone());
        let model = model_of("red-model.onnx", &model_bytes);
        let mut agent = Agent::usual(served.coordinator.farm(), "builder").await;
        let mut world = Self {
            served,
            tokens,
            model,
            model_bytes,
            job: v1::Job::default(),
            report_digest: String::new(),
            log_digest: String::new(),
            card_digest: String::new(),
            agent: None,
        };
        let sent = world.upload(Who::Own, &world.model_bytes.clone()).await;
        assert_eq!(sent, 201, "red sends its model");
        let mut client = world.client(Who::Own).await;
        let reply = client.submit(request_of(&world.model)).await.expect("red submits").into_inner();
        assert!(reply.missing_blobs.is_empty(), "{reply:?}");
        let assign = agent.assigned().await;
        let store = async |bytes: Vec<u8>| blobs.store(bytes.into()).await.expect("stored").to_string();
        let plan = agent::plan_of(&assign, "lot");
        let report = format!(
            r#"{{"schema_version":1,"simulated":true,"job":"{}","attempt":1,"latency_ms":{{"median":1.5}},"accuracy":null}}"#,
            reply.jobs[0].id
        );
        (world.card_digest, world.log_digest) = (store(b"card".to_vec()).await, store(b"log\n".to_vec()).await);
        world.report_digest = store(report.into_bytes()).await;
        let finished = v1::Finished {
            lease: assign.lease.clone(),
            outcome: "succeeded".into(),
            plan_bytes: plan.len() as u64,
            plan_digest: store(plan).await,
            card_digest: world.card_digest.clone(),
            report_digest: world.report_digest.clone(),
            log_digest: world.log_digest.clone(),
            accurate: true,
            ..v1::Finished::default()
        };
        agent.say(v1::agent_message::Kind::Finished(finished)).await;
        let ack = agent.acknowledged().await;
        assert!(ack.accepted, "{ack:?}");
        let id = v1::GetJobRequest { id: reply.jobs[0].id.clone() };
        world.job = client.get_job(id).await.expect("red's job").into_inner();
        assert!(!world.job.plan_digest.is_empty(), "{:?}", world.job);
        world.agent = Some(agent);
        world
    }

    pub fn token(&self, who: Who) -> &str {
        let at = EVERYBODY.iter().position(|known| *known == who).expect("one of everybody");
        &self.tokens[at]
    }

    pub async fn client(&self, who: Who) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.served.address())).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        FarmClient::with_interceptor(channel, Bearer(self.token(who).to_owned()))
    }

    pub fn http(&self, who: Who, method: Method, path: &str) -> http::request::Builder {
        let request = self.served.stranger(method, path);
        match self.token(who) {
            "" => request,
            token => request.header("authorization", format!("Bearer {token}")),
        }
    }

    /// Announces and sends bytes; the status of the last answer.
    pub async fn upload(&self, who: Who, bytes: &[u8]) -> u16 {
        let announced = serde_json::json!({ "digest": Digest::of(bytes), "size_bytes": bytes.len() }).to_string();
        let begin = self.http(who, Method::POST, "/v1/uploads").header("content-type", "application/json");
        let begun = self.served.send(begin, announced).await;
        let location = begun.header("location").to_owned();
        if location.is_empty() {
            return begun.status.as_u16();
        }
        let patch = self
            .http(who, Method::PATCH, &location)
            .header("content-type", "application/partial-upload")
            .header("upload-offset", 0)
            .header("upload-complete", "?1");
        self.served.send(patch, bytes.to_vec()).await.status.as_u16()
    }

    /// What is red's and is in no request: nobody else may be told it.
    pub fn marks(&self) -> Vec<String> {
        let job = &self.job;
        [&job.id, &job.request_id, &job.engine_key, &job.plan_digest, &self.report_digest, &self.log_digest]
            .into_iter()
            .cloned()
            .chain(["red-model".to_owned(), "red-submit".to_owned(), "red-admin".to_owned()])
            .collect()
    }
}
