//! What the passes are told of processors.

use planforge_passes::Target;
use planforge_types::BuildSpec;

/// Option of the build spec: `off` leaves the model's operators apart.
pub const OPTION_FUSION: &str = "fusion";

/// What the passes are told of CPUs, and of what the spec asks for.
pub(crate) fn target(spec: &BuildSpec) -> Target {
    Target { unfused: spec.options.contains_key(OPTION_FUSION), ..crate::TARGET }
}
