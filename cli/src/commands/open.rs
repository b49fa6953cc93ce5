//! `planforge open`: the way into the page for a browser.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need, Place},
};
use planforge_proto::{ErrorCode, v1};

#[derive(Debug, clap::Args)]
pub struct Args {}

pub async fn run(context: &Context<'_>, _args: Args) -> Result<(), Failure> {
    let farm = Farm::open(context, Need::Lasting).await?;
    let result = print_link(context, &farm).await;
    farm.close(context.printer).await;
    result
}

async fn print_link(context: &Context<'_>, farm: &Farm) -> Result<(), Failure> {
    let reply = farm.rpc().create_login_link(v1::CreateLoginLinkRequest {}).await;
    let reply = reply.map_err(|e| farm.error(e))?.into_inner();
    // The address that the user knows it by, where there is one.
    let base = match Place::choose(&context.settings)? {
        Place::Server(endpoint) => endpoint.to_string(),
        Place::ThisMachine(_) => reply.url,
    };
    if base.is_empty() {
        return Err(Failure::new(ErrorCode::Refused, "this farm has no page: it listens on no port")
            .hint("planforge up keeps one, with a page"));
    }
    let url = format!("{base}{}", reply.path);
    context.printer.note(&format!("signs one browser in, once, within {} minutes", reply.expires_in_s / 60));
    context.printer.data(&url)?;
    context.printer.object(&serde_json::json!({ "url": url, "expires_in_s": reply.expires_in_s }))
}
