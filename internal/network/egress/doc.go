// Package egress is the door of the proxied network: a sandbox reaches the names that its rules allow,
// and nothing else. The sandbox's network namespace captures all connections (netns/capture). Two
// processes per state root serve the sockets of all sandboxes:
//
//   - The parent keeps the sockets, the texts of the rules, the names and the counts. The parent reads no
//     byte that a sandbox has sent: names, events and questions of the worker are text to it, within bounds.
//   - The worker (internal/network/egress/gateway) answers and proxies, without any privilege. The parent
//     replaces a worker that has ended. Connections that are open then fail.
//
// Programs that ask a proxy find one at [spec.ProxyServer]. A [Decider] decides about names that no rule covers.
//
// The processes start with the first sandbox, and end some seconds after the last one. They outlive their
// starter. If both are killed, nothing passes, and [Egress.Admit] makes new ones.
package egress
