//! What tells steps apart for the tactic cache.

use crate::{
    program::{Program, Work},
    view::{BufferId, View},
};

/// Everything about a step that decides its time, apart from where its memory lies.
pub fn signature(program: &Program, work: &Work) -> String {
    let anonymous = |view: &View| {
        let view = View { buffer: BufferId(0), offset: view.offset % 8, ..view.clone() };
        serde_json::to_value(view).expect("a view has only JSON types")
    };
    let (read, written) = work.views();
    let views: Vec<_> = read.into_iter().chain([written]).map(anonymous).collect();
    let how = match work {
        Work::Conv(conv) => serde_json::json!([
            conv.strides,
            conv.pads_before,
            conv.pads_after,
            conv.dilations,
            conv.groups,
            conv.activation,
            conv.bias.is_some(),
            conv.residual.is_some(),
            conv.taps.is_some()
        ]),
        Work::Product(product) => {
            let constant = program.is_constant(&product.b);
            let has = [product.bias.is_some(), product.residual.is_some(), constant];
            serde_json::json!([product.alpha, product.activation, has])
        }
        Work::Attention(attention) => serde_json::json!([attention.scale]),
        Work::Kernel(_) => serde_json::Value::Null,
    };
    serde_json::json!([work.kind(), program.tf32, views, how]).to_string()
}
