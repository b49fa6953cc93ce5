//! Says what a model's outputs are, by a session on the CPU that fuses nothing.
