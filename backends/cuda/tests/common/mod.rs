//! What tests of generated kernels share.

use planforge_cuda::{
    codegen::Generated,
    view::{BufferId, Kind, View},
};
use planforge_kernels_cuda::{
    cubin::Cubin,
    nvrtc::{self, Arch, Source},
};

/// Compute capabilities, times ten, that kernels are generated for.
pub const ARCHITECTURES: [u32; 6] = [75, 80, 86, 89, 90, 100];

/// What NVRTC compiles for; none, said loudly, where it is not found and need not be.
pub fn supported() -> Vec<u32> {
    nvrtc::supported().unwrap_or_else(|error| {
        assert!(std::env::var_os("PLANFORGE_NEED_NVRTC").is_none(), "{error}");
        planforge_skipped::skipped(error);
        Vec::new()
    })
}

/// Compiles a kernel for one compute capability; its code holds together, and has as many parameters as its source.
pub fn compile_for(capability: u32, generated: &Generated) {
    let arch = Arch { capability, specific: capability >= 90 };
    let source = Source { name: &generated.source.name, text: &generated.source.text, options: &[] };
    match nvrtc::compile(source, arch) {
        Ok(compiled) => {
            let cubin = Cubin::parse(&compiled.bytes).unwrap_or_else(|why| panic!("{} for {arch}: {why}", source.name));
            assert_eq!(cubin.capability(), Some(capability));
            let head = source.text.split_once(&format!(" {}(", source.name)).map_or("", |(_, rest)| rest);
            let head = head.split(')').next().unwrap_or_default();
            // Those that only some have are macros.
            let macros = head.split(' ').filter(|word| word.contains("_PARAMETER"));
            let defined = |name: &str| source.text.split_once(&format!("#define {} ,", name.trim_end_matches(',')));
            let lines = macros.filter_map(defined).filter_map(|(_, rest)| rest.lines().next());
            let parameters = head.split(',').count() + lines.map(|line| line.split(',').count()).sum::<usize>();
            assert_eq!(cubin.parameters()[source.name], vec![8; parameters], "{} for {arch}", source.name);
        }
        Err(error) => panic!("{error}\n{}", generated.source.text),
    }
}

pub fn rows(kind: Kind, dims: &[u64]) -> View {
    View::rows(BufferId(0), kind, dims)
}

pub fn image(kind: Kind, dims: &[u64]) -> View {
    View::channels_last(BufferId(0), kind, dims)
}
