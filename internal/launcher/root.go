package launcher

// The state root says which process is a sandbox's first and which cgroups are its own.
// A launcher of root kills and freezes by its word.
