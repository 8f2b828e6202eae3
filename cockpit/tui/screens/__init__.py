"""What fills the terminal: one screen a file, its style sheet beside it."""
