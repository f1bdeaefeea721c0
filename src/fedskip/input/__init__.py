"""What users write: how it is read into types, and the one error that says what is wrong with it."""
