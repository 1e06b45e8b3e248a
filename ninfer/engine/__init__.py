"""Who runs next, on which pages, until when.  Sees no JSON, no text, no arrays."""
