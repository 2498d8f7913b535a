//! The fabrics of StepMesh: shared memory, TCP and a simulated network.
