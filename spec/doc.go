// Package spec describes a sandbox and turns the description into an OCI
// runtime specification.
//
// For most uses: fill a [Config] (its zero value is the safest sandbox there
// is), call [Config.Complete], which fills in the defaults and reports every
// mistake by the name of the field, and hand it to a launcher. Launchers call
// [Build] with what only the host knows (where the prepared root lies, the id
// range, the seccomp profile) and get the specification to start.
//
// The package is pure: it reads no file and makes no system call, and the same
// input gives the same bytes. What a configuration means on a given host (does
// the workspace exist, may it be mounted) is decided elsewhere.
package spec
