package launcher

import "github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"

// Sources identify a client, and hold the files that the client has opened itself, by
// their paths in the configuration.
type Sources = part.Sources
