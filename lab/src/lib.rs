//! The lab: reference model, crash images, behaviour suite.
