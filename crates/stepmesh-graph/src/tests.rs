//! What the rules accept and refuse, and the two arithmetics.
