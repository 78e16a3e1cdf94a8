// Package rules has the rules of the proxied network: the names and addresses that a sandbox may
// reach. It also has the text forms of both sides' settings: files of rules, and an upstream proxy. The package does no I/O
// and starts no goroutine. A [List] never changes, so several goroutines may use it.
//
// A rule is one of these texts:
//
//	NAME                   this name
//	*.SUFFIX               all names below SUFFIX, at any depth, but not SUFFIX itself
//	ADDRESS, ADDRESS/BITS  these addresses, for connections that have no name
//	@PRESET                the names of a service: see [Presets]
//
// All but a preset may end in :PORT or :FIRST-LAST. An IPv6 address with ports stands in brackets.
// Without ports an allow rule is for the ports 80 and 443, and a deny rule is for all ports.
//
// A name may be followed by a path, and may have methods in front: "GET,HEAD example.com/docs". Such
// a rule is for requests of plain HTTP. Its path is a prefix of whole segments: /docs covers /docs/a,
// but not /docs2. An allow rule of this form is for port 80 if it has no port, and it allows no other
// traffic on its ports: the proxy cannot look into TLS that is passed through. For the same reason a
// deny rule of this form refuses all connections on its ports that are not plain HTTP.
//
// Any rule may end in " ; " and a reason for people.
//
// Deny rules win over allow rules. A name or an address without a rule is refused. The caller asks
//
//   - [List.Name] to answer a DNS query,
//   - [List.Request] for each request of plain HTTP,
//   - [List.Connect] for all other connections to a name,
//   - [List.Address] for a connection without a name, and for each address that a name resolves to.
package rules
