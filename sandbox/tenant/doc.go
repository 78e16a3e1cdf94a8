// Package tenant keeps the files of a service's users apart on disk, and
// translates paths between a sandbox and the host.
//
//	tenants, err := tenant.Open("/var/lib/service/data")
//	session, err := tenants.Session("alice", "4711") // …/data/alice/4711
//	defer session.Close()
//	sb, err := m.Create(ctx, session.Config(sandbox.Config{}))
//	f, err := session.Open("/workspace/report.txt", os.O_RDONLY, 0)
//
// Only a session's own directory is ever in a sandbox, as its workspace: users and
// sessions have nothing of each other, whatever they are called. Ids are names,
// and can't be paths. What is in the directory is the sandbox's to change at any
// moment, so that nothing there is ever opened by a path: a [Workspace] walks
// held descriptors, and what leads out of it is refused.
//
// Errors of a [Workspace] have the sandbox's paths and never the host's: they can
// be shown to whoever is in there.
//
// What it is not for: files that only the sandbox has, which [sandbox.Files]
// reaches.
package tenant
