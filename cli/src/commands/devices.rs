//! `planforge devices`: what the farm can build for; the last column is the flag to paste.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables,
};
use planforge_proto::{v1, view::DeviceView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave out devices whose agent is away
    #[arg(long)]
    online: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let farm = Farm::open(context, Need::Devices).await?;
    let request = v1::ListDevicesRequest { online_only: args.online };
    let devices = farm.rpc().list_devices(request).await.map_err(|e| farm.error(e))?.into_inner().devices;
    farm.close(context.printer).await;
    if devices.is_empty() {
        context.printer.note("no devices: no agent has joined yet");
    } else {
        context.printer.data(&tables::devices(&devices))?;
    }
    let devices: Vec<_> = devices.into_iter().map(DeviceView::from).collect();
    context.printer.object(&serde_json::json!({ "devices": devices }))
}
