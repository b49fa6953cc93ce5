//! `planforge share`: links for reading one request or one model without a token.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need, Place},
    settings::Key,
    tables,
};
use clap::Subcommand;
use planforge_proto::{ErrorCode, v1, view::ShareView};

const DAY_S: u64 = 24 * 60 * 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Make a link; whoever has it reads that request or model, and nothing else
    Create(Create),
    /// List the links that are good, newest first
    List,
    /// End a link
    Revoke {
        /// Its id
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
struct Create {
    #[command(flatten)]
    of: Of,
    /// For so long
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=366))]
    days: u64,
}

#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Of {
    /// A request and its jobs, by its id
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// A model and its engines, by its digest
    #[arg(long, value_name = "DIGEST")]
    model: Option<String>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Lasting, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    let printer = context.printer;
    let project: String = context.settings.get(Key::Project).unwrap_or_default().into();
    match action {
        Action::Create(Create { of, days }) => {
            // The address that the user knows it by, where there is one.
            let base = match Place::choose(&context.settings)? {
                Place::Server(endpoint) => endpoint.to_string(),
                Place::ThisMachine(_) => farm.page().await?,
            };
            if base.is_empty() {
                return Err(Failure::new(ErrorCode::Refused, "this farm has no page: it listens on no port")
                    .hint("planforge up keeps one, with a page"));
            }
            let request = v1::CreateShareRequest {
                project,
                request_id: of.request.unwrap_or_default(),
                model_digest: of.model.unwrap_or_default(),
                ttl_s: days * DAY_S,
            };
            let reply = farm.rpc().create_share(request).await.map_err(|e| farm.error(e))?.into_inner();
            let url = format!("{}{}", base.trim_end_matches('/'), reply.path);
            let id = reply.share.as_ref().map(|share| share.id.clone()).unwrap_or_default();
            printer.note(&format!("whoever has it reads this for {days} days; planforge share revoke {id} ends it"));
            printer.data(&url)?;
            printer.object(&serde_json::json!({ "url": url, "share": reply.share.map(ShareView::from) }))
        }
        Action::List => {
            let request = v1::ListSharesRequest { project };
            let shares = farm.rpc().list_shares(request).await.map_err(|e| farm.error(e))?.into_inner().shares;
            match shares.is_empty() {
                true => printer.note("no links: planforge share create makes one"),
                false => printer.data(&tables::shares::shares(&shares, tables::now_ms()))?,
            }
            let shares: Vec<_> = shares.into_iter().map(ShareView::from).collect();
            printer.object(&serde_json::json!({ "shares": shares }))
        }
        Action::Revoke { id } => {
            let request = v1::RevokeShareRequest { id };
            let reply = farm.rpc().revoke_share(request).await.map_err(|e| farm.error(e))?.into_inner();
            printer.note("the link is good no more");
            printer.object(&serde_json::json!({ "revoked": reply.share.map(ShareView::from) }))
        }
    }
}
