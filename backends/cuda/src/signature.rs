//! What tells steps apart for the tactic cache.

use crate::{
    program::{Program, Work},
    view::{BufferId, View},
};
use planforge_graph::ir::{Activation, GeluForm};

/// Everything about a step that decides its time, apart from where its memory lies.
pub fn signature(program: &Program, work: &Work) -> String {
    let anonymous = |view: &View| {
        let view = View { buffer: BufferId(0), offset: view.offset % 8, ..view.clone() };
        serde_json::to_value(view).expect("a view has only JSON types")
    };
    let (read, written) = work.views();
    let views: Vec<_> = read.into_iter().chain([written]).map(anonymous).collect();
    let decides = work.decides(&|view| program.is_constant(view));
    let mut all = serde_json::json!([work.kind(), program.tf32, views, decides]);
    // What may be computed in more ways is another step.
    if let Some(parts) = all.as_array_mut()
        && program.approximate_gelu
        && work.activation() == Some(Activation::Gelu(GeluForm::Erf))
    {
        parts.push("approximate gelu".into());
    }
    all.to_string()
}
