//! Any bytes that read as ONNX: digests are made and the importer refuses or builds a graph; nothing panics or hangs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use planforge_engine_core::{identity::model::identify_open, import::import};
use planforge_onnx::Model;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes.to_vec().into()) {
        identify_open(&model).expect("what was opened has an identity");
        let _ = import(&model, None);
    }
});
