//! Reading prior files: `.pt` and safetensors, bounded and without executing anything.
