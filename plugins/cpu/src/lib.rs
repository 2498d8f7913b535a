//! The StepMesh backend for host memory.
