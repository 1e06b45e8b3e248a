"""A unit of work to committed token ids: the device thread, programs, graphs, memory plan."""
