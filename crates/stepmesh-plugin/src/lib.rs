//! The kit for authors of StepMesh accelerator backends.
