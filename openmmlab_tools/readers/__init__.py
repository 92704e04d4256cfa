"""A file for each layout that labelling tools write; `form` is the one form that all readers return."""
