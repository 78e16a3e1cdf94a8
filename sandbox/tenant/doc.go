// Package tenant keeps the files of a service's users apart on disk, and translates paths
// between a sandbox and the host.
//
//	tenants, err := tenant.Open("/var/lib/service/data")
//	session, err := tenants.Session("alice", "4711") // …/data/alice/4711
//	defer session.Close()
//	sb, err := m.Create(ctx, session.Config(sandbox.Config{}))
//	f, err := session.Open("/workspace/report.txt", os.O_RDONLY, 0)
//
// Only a session's own directory is ever in a sandbox, as its workspace: users and
// sessions see nothing of each other, with any ids. Ids are names, and cannot be paths.
// The sandbox can change the content of the directory at any moment, so nothing there is
// ever opened by a path: a [Workspace] walks held descriptors, and refuses a path that
// leads out of it.
//
// Errors of a [Workspace] have the sandbox's paths and never the host's: they can be shown
// inside.
//
// The package is not for files that only the sandbox has: [sandbox.Files] reaches those.
package tenant
