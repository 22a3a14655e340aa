"""What is held of the rows: what they have to meet, and how the fields of their records change."""
