//! Any bytes: the reader refuses them with an error, or gives a model all of whose tensors can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use planforge_onnx::{Model, OnnxError, proto::tensor_proto::DataType, tensor::for_each_tensor};

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    match Model::from_bytes(bytes.to_vec().into()) {
        // The walk must have found, with its place, whatever the decoder would stumble over.
        Err(OnnxError::Decode { source, .. }) => panic!("{source}"),
        Err(_) => {}
        Ok(model) => {
            let read = for_each_tensor(&model.proto, &mut |tensor| {
                if tensor.data_type == DataType::String as i32 { Ok(()) } else { model.tensor_bytes(tensor).map(drop) }
            });
            read.expect("what was opened can be read");
        }
    }
});
