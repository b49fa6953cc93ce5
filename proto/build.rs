//! Compiles the contract with a pure-Rust protobuf compiler, so that building needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["planforge/v1/common.proto", "planforge/v1/farm.proto", "planforge/v1/fleet.proto"];
    println!("cargo:rerun-if-changed=planforge");
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
