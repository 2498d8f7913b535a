//! The StepMesh host: finds, loads and drives accelerator backends.
